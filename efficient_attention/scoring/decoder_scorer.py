"""Scores texts with a decoder: contexts that several continuations share are read once and kept as a cache."""

import functools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.request import Lengths
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.data.text.text_units import TextUnits, WordUnits
from efficient_attention.errors import InputError
from efficient_attention.inference.beam_search import find_best_texts, read_prompts
from efficient_attention.inference.generate import allowed_token_mask
from efficient_attention.inference.language_models import LanguageModel
from efficient_attention.inference.search_settings import SearchSettings, TokenLimits
from efficient_attention.models.cached_decoding import PIECE, CachedDecoder, cache_specs, read_prompt_but_last
from efficient_attention.models.sharding import batch_sharding, make_mesh
from efficient_attention.scoring.padded_rows import (
    batches_by_key,
    pad_rows,
    padded_count,
    padded_length,
    split_into_batches,
)
from efficient_attention.scoring.pairs import Pair, PairTokens, Scorer, move_spaces, number_unique
from efficient_attention.scoring.target_scores import score_targets

SHORTEST_SHARED = 64  # tokens; shorter contexts are read with each continuation, which compiles fewer programs


class UnitsScorer(Scorer):
    """Base class of scorers that read the units of a language model, such as bytes or tokenizer pieces."""

    units: TextUnits
    reads_windows = True

    def encode(self, pair: Pair) -> PairTokens:
        """Returns the tokens of a pair by the rule of pairs.py; raises InputError if the continuation has none."""
        return encode_with_units(self.units, pair)

    @functools.cached_property
    def line_ends(self) -> tuple[int, ...]:
        """Returns the ids that end a line."""
        return line_ends(self.units)


class DecoderScorer(UnitsScorer):
    """Scores texts with a trained language model of this project or of a Hugging Face folder, on all local devices.

    Args:
        language_model: the decoder and its units.
        name: names the model in reports.
        batch_size: rows at a time; rounded up to a multiple of the device count.
        longest: maximum tokens to read at once; 0 = the model's positions, or the length of its training rows (with
            segment memory, memory included).
        shares_contexts: whether shared contexts are read once. The scores are the same without.

    Raises:
        InputError: a number is out of range.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        name: str = '',
        *,
        batch_size: int = 16,
        longest: int = 0,
        shares_contexts: bool = True,
    ) -> None:
        config = language_model.config
        self.name, self.config, self.units = name, config, language_model.units
        self.unknown = self.units.unknown
        self.longest = longest_row(config, language_model.length, longest)
        self.mesh = make_mesh(MeshConfig(), jax.local_devices())
        self.batch_size = -(-batch_size // self.mesh.size) * self.mesh.size
        self.params = jax.device_put(language_model.params, NamedSharding(self.mesh, PartitionSpec()))
        self.is_padded = not any(mechanism.key_access.by_length for mechanism in config.mechanisms)
        self.longest_shared = longest_shared_row(config) if shares_contexts and self.is_padded else 0
        graph, on_mesh = language_model.graph, using_mesh(self.mesh)
        self.score_rows = jax.jit(on_mesh(functools.partial(score_rows, graph)))
        self.score_shared = jax.jit(on_mesh(functools.partial(score_shared_contexts, graph)))
        self.generate_rows = jax.jit(on_mesh(functools.partial(generate_rows, graph)), static_argnames='search')
        self.may_follow_V = allowed_token_mask(self.units, config.vocab_size)

    def score_tokens(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        """Returns each row's log-probability and whether greedy decoding gives its continuation."""
        unique, places = number_unique(rows)
        found: list[tuple[float, bool]] = [(0.0, False)] * len(unique)
        by_context: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(unique):
            by_context.setdefault(row.context, []).append(number)
        shared: list[list[int]] = []
        single: list[int] = []
        for context, numbers in by_context.items():
            longest = max(unique[number].positions for number in numbers)
            if len(numbers) > 1 and len(context) >= SHORTEST_SHARED and longest <= self.longest_shared:
                shared += split_into_batches(numbers, self.batch_size)
            else:
                single += numbers
        self._score_shared(unique, shared, found)
        self._score_single(unique, single, found)
        return [found[place] for place in places]

    def generate(self, prompts: Sequence[str], most_tokens: Sequence[int]) -> list[str]:
        """Returns what greedy decoding adds to each prompt, up to the end of the line or the prompt's most tokens.

        Raises:
            InputError: no cache supports the decoder, or a prompt is longer than the model's positions.
        """
        rows = [encode_with_units(self.units, Pair('', prompt)).continuation for prompt in prompts]
        return [first_line(self.units, ids) for ids in self.generate_ids(rows, most_tokens, self.line_ends)]

    def generate_ids(
        self, rows: Sequence[Sequence[int]], most_tokens: Sequence[int], ends: Sequence[int]
    ) -> list[list[int]]:
        """Returns the ids that greedy decoding adds to each row of ids.

        A row ends with the first id in `ends`, after its number of ids in `most_tokens`, or where the decoder has no
        more positions.

        Raises:
            InputError: no cache supports the decoder, or a row is longer than the model's positions.
        """
        cache_specs(self.config, 1)
        limit = self.config.position_limit
        # The decoder does not read the last generated id, so this id needs no position.
        most = [
            count if limit is None else min(count, limit + 1 - len(row))
            for count, row in zip(most_tokens, rows, strict=True)
        ]
        if min(most, default=1) < 1:
            longest = max(map(len, rows))
            raise InputError(f'a prompt has {longest} tokens; the model has {limit} positions')
        end, *more_ends = ends or [-1]
        search = SearchSettings(
            beams=1, alpha=0.0, max_tokens=padded_length(max(most, default=1)), end=end, more_ends=tuple(more_ends)
        )
        found: list[list[int]] = [[]] * len(rows)
        for length, batch in batches_by_key(
            range(len(rows)), lambda number: padded_length(len(rows[number])), self.batch_size
        ):
            filled = [*batch, *[batch[0]] * (self.batch_size - len(batch))]
            limits = TokenLimits(self.may_follow_V, jnp.asarray([most[number] for number in filled], jnp.int32))
            arrays = self._put(*pad_rows([rows[number] for number in batch], length, self.batch_size))
            tokens_BT, lengths_B = jax.device_get(self.generate_rows(self.params, *arrays, limits, search=search))
            for place, number in enumerate(batch):
                found[number] = tokens_BT[place, : lengths_B[place]].tolist()
        return found

    def _score_single(self, rows: list[PairTokens], numbers: list[int], found: list[tuple[float, bool]]) -> None:
        """Scores batches of rows, each with its whole context; writes the results to `found`."""

        def shape(number: int) -> tuple[int, int]:
            row, length = rows[number], self._length(rows[number].positions)
            return length, padded_count(len(row.continuation), length)

        for (length, places), batch in batches_by_key(numbers, shape, self.batch_size):
            members = [rows[number] for number in batch]
            count = self.batch_size
            tokens_BL, lengths_B = pad_rows([(*row.context, *row.continuation)[:-1] for row in members], length, count)
            targets_BP, counts_B = pad_rows([row.continuation for row in members], places, count)
            self._keep(
                batch, found, self.score_rows(self.params, *self._put(tokens_BL, lengths_B, targets_BP, counts_B))
            )

    def _score_shared(self, rows: list[PairTokens], groups: list[list[int]], found: list[tuple[float, bool]]) -> None:
        """Scores groups of rows that have the same context; writes the results to `found`."""

        def shape(numbers: list[int]) -> tuple[int, int, int]:
            longest = max(len(rows[number].continuation) for number in numbers)
            return padded_length(len(rows[numbers[0]].context)), padded_length(longest), len(numbers)

        size = self.mesh.size
        by_shape: dict[tuple[int, int, int], list[list[int]]] = {}
        for group in groups:
            by_shape.setdefault(shape(group), []).append(group)
        for (length, places, options), members in by_shape.items():
            contexts = -(-max(1, self.batch_size // options) // size) * size
            for start in range(0, len(members), contexts):
                batch = members[start : start + contexts]
                tokens_BL, lengths_B = pad_rows([rows[group[0]].context for group in batch], length, contexts)
                filled = [*batch, *[batch[0]] * (contexts - len(batch))]
                targets = [rows[number].continuation for group in filled for number in group]
                targets_bP, counts_b = pad_rows(targets, places, contexts * options)
                results = self.score_shared(self.params, *self._put(tokens_BL, lengths_B, targets_bP, counts_b))
                self._keep([number for group in batch for number in group], found, results)

    def _length(self, length: int) -> int:
        return padded_length(length, self.longest) if self.is_padded else length

    def _put(self, *arrays: np.ndarray) -> list[Array]:
        return [jax.device_put(array, batch_sharding(self.mesh)) for array in arrays]

    def _keep(self, numbers: list[int], found: list[tuple[float, bool]], results: tuple[Array, Array]) -> None:
        log_probs, is_greedy = jax.device_get(results)
        for place, number in enumerate(numbers):
            found[number] = float(log_probs[place]), bool(is_greedy[place])


def score_rows(
    graph: nnx.GraphDef, params: Any, tokens_BL: Array, lengths_B: Array, targets_BP: Array, counts_B: Array
) -> tuple[Array, Array]:
    """Returns the log-probability of each row's targets, float32 [B], and whether all are greedy, bool [B].

    In each row, the last `counts_B` of `lengths_B` tokens predict the targets.
    """
    model = nnx.merge(graph, params)
    hidden_BLD = model.hidden(tokens_BL, Lengths(lengths_B))
    places_BP = (lengths_B - counts_B)[:, None] + jnp.arange(targets_BP.shape[1])[None]
    hidden_BPD = jnp.take_along_axis(hidden_BLD, jnp.minimum(places_BP, tokens_BL.shape[1] - 1)[..., None], axis=1)
    return score_targets(model.logits, model.config.vocab_size, hidden_BPD, targets_BP, counts_B)


def score_shared_contexts(
    graph: nnx.GraphDef, params: Any, tokens_BL: Array, lengths_B: Array, targets_bP: Array, counts_b: Array
) -> tuple[Array, Array]:
    """Returns the log-probability of each target after its context, float32 [b], and whether it is greedy, bool [b].

    b is B times the number of options, and the options of a context are adjacent. The context's keys and values are
    computed once.
    """
    model = nnx.merge(graph, params)
    batch, length = tokens_BL.shape
    options = len(targets_bP) // batch
    cached = CachedDecoder(model, length + targets_bP.shape[1])
    segments_BL = (jnp.arange(length)[None] < lengths_B[:, None]).astype(jnp.int32)
    start = cached.init_state(batch)
    state, last_B = read_prompt_but_last(cached, start, tokens_BL, segments_BL, min(PIECE, length))
    state = state.repeat_rows(options)
    read_bP = jnp.concatenate([jnp.repeat(last_B, options)[:, None], targets_bP[:, :-1]], axis=1)
    segments_bP = (jnp.arange(read_bP.shape[1])[None] < counts_b[:, None]).astype(jnp.int32)
    hidden_bPD = cached.hidden(state, read_bP, segments_bP)[0]
    return score_targets(cached.logits, model.config.vocab_size, hidden_bPD, targets_bP, counts_b)


def generate_rows(
    graph: nnx.GraphDef,
    params: Any,
    tokens_BL: Array,
    lengths_B: Array,
    limits: TokenLimits,
    *,
    search: SearchSettings,
) -> tuple[Array, Array]:
    """Returns the greedy continuation of each prompt, int32 [B, T], and its number of tokens, int32 [B]."""
    model = nnx.merge(graph, params)
    cached = CachedDecoder(model, tokens_BL.shape[1] + search.max_tokens)
    segments_BL = (jnp.arange(tokens_BL.shape[1])[None] < lengths_B[:, None]).astype(jnp.int32)
    texts, _ = find_best_texts(cached, read_prompts(cached, tokens_BL, segments_BL), search, limits)
    return texts.tokens_BnT[:, 0], texts.lengths_Bn[:, 0]


def line_ends(units: TextUnits) -> tuple[int, ...]:
    """Returns the ids that end a line: those whose text has a line break, and the document separator."""
    return tuple(dict.fromkeys([*ids_with(units, ['\n']), *separator_ids(units)]))


def ids_with(units: TextUnits, words: Collection[str]) -> list[int]:
    """Returns the ids whose own text contains one of the strings."""
    known = [id for id in range(units.text_vocabulary_size) if id not in units.unwritten and id != units.unknown]
    texts = ((id, units.decode(np.array([id]))) for id in known)
    return [id for id, text in texts if any(word in text for word in words)]


def first_line(units: TextUnits, ids: Sequence[int]) -> str:
    """Returns the text of generated ids up to the end of the line, without spaces around it."""
    ids = [id for id in ids if id not in units.unwritten and id != units.unknown]
    return units.decode(np.asarray(ids, np.int64)).lstrip(' ').split('\n')[0].strip()


def longest_row(config: ModelConfig, trained: int | None, asked: int) -> int | None:
    """Returns the most tokens that a decoder reads at once, None = no limit; raises InputError if `asked` is not
    possible.
    """
    limit = config.position_limit
    if asked < 0 or (limit is not None and asked > limit):
        known = 'at least 0' if limit is None else f'from 0 to {limit}, the positions of the model'
        raise InputError(f'length is {asked}; it must be {known}')
    if asked or limit is not None:
        return asked or limit
    return None if trained is None or config.cell != 'none' else trained + config.memory_length


def longest_shared_row(config: ModelConfig) -> int:
    """Returns the longest row that a cache scores like a full pass; 0 if no cache supports the decoder.

    With segment memory a cache keeps the last `memory_length` tokens, and a full pass reads all tokens.
    """
    try:
        cache_specs(config, 1)
    except (InputError, NotImplementedError):
        return 0
    has_memory = config.memory_length > 0 and config.cell == 'none'
    return config.memory_length - config.same_length if has_memory else 2**31


def encode_with_units(units: TextUnits, pair: Pair) -> PairTokens:
    """Returns the tokens of a pair by the rule of pairs.py; raises InputError if the continuation has none."""
    if not pair.continuation:
        raise InputError('the continuation is empty')
    context, continuation = move_spaces(pair)
    ids = units.encode(context + continuation)
    first = len(units.encode(context)) if context else 0
    if first >= len(ids):
        raise InputError(f'the continuation {pair.continuation[:40]!r} has no token of its own after its context')
    before = ids[:first].tolist() or separator_ids(units)
    return PairTokens(tuple(before), tuple(ids[first:].tolist()))


def separator_ids(units: TextUnits) -> list[int]:
    """Returns the ids that stand for an empty context: the separator between documents."""
    # With word units, the end of a line (id 0) separates documents.
    return [0] if isinstance(units, WordUnits) else units.separator.tolist()
