"""Generates target token ids from source token ids with a trained encoder-decoder, in batches of sources of similar
length.
"""

import dataclasses
import functools
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.devices import device_kind
from efficient_attention.attention.request import Lengths
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.value_checks import check_in_interval
from efficient_attention.errors import InputError, require
from efficient_attention.inference.beam_search import Hypotheses, find_best_texts, make_cached_decoder, read_prompts
from efficient_attention.inference.search_settings import SamplingSeeds, SearchSettings, TokenLimits
from efficient_attention.models.alignment import cross_weights
from efficient_attention.models.encoder_decoder import EncoderDecoder

Ids = Sequence[int] | np.ndarray
# Number of batches that run in parallel on a CPU.
# A single batch leaves cores idle between matrix products and while results are copied.
CPU_BATCHES = 2


class GeneratedTarget(NamedTuple):
    """A target text that the search generated for a source, as token ids with its score.

    Args:
        ids: the target's ids without the end symbol.
        score: summed log-probability of all tokens, end symbol included, over the length penalty.
        log_probability: the summed log-probability, in nats.
        is_ended: whether the end symbol came before the token limit.
        alignment: float32 [ids, source], the weights by which each id was chosen: the last layer's cross-attention,
            mean over its heads. None if not requested.
    """

    ids: np.ndarray
    score: float
    log_probability: float
    is_ended: bool
    alignment: np.ndarray | None = None


Found = list[tuple[int, list[GeneratedTarget]]]  # one pair per source: (number of the source, its targets)


@dataclasses.dataclass(frozen=True)
class SourceBatching:
    """Settings for batching the sources, and for the maximum length of their targets.

    Args:
        rows: maximum number of sources per batch.
        lengths: ascending row lengths to pad to; a longer source is padded to the next power of two.
        ratio: a target has at most ratio x tokens of its source + extra tokens, and at most
            `SearchSettings.max_tokens`. Vaswani et al. 2017, section 6.1, use 1 and 50.
        extra: see `ratio`.

    Raises:
        InputError: a value is out of range.
    """

    rows: int = 16
    lengths: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    ratio: float = 1.0
    extra: int = 50

    def __post_init__(self) -> None:
        check_in_interval('rows', self.rows, 1)
        is_rising = all(low < high for low, high in zip((0, *self.lengths), self.lengths, strict=False))
        require(is_rising, 'lengths', self.lengths, 'rising and above 0')
        check_in_interval('ratio', self.ratio, 0)
        check_in_interval('extra', self.extra, 0)

    def padded_length(self, length: int) -> int:
        """Returns the row length to which a source of `length` tokens is padded."""
        return next((one for one in self.lengths if one >= length), power_of_two(length))

    def max_target_tokens(self, length: int, search: SearchSettings) -> int:
        """Returns the maximum number of target tokens for a source of `length` tokens; always above
        `search.min_tokens`.
        """
        return min(search.max_tokens, max(search.min_tokens + 1, math.ceil(self.ratio * length) + self.extra))


class SourceBatch(NamedTuple):
    """A batch of sources: the numbers of its sources, their padded row length, and the number of rows including padding
    rows.
    """

    numbers: list[int]
    length: int
    size: int


class PaddedSources(NamedTuple):
    """A batch of padded sources: token ids, the number of tokens in each row, and the prompt ids that begin every
    target.
    """

    tokens_BM: Array
    lengths_B: Array
    prompt_P: Array


class Seq2SeqGenerator:
    """Generates token ids of targets from token ids of sources, with an encoder-decoder on one device.

    One program is compiled per pair of row length and row count; the count is the batch's maximum or a power of two. On
    a CPU, two batches of half the rows are searched in parallel threads. A source's targets depend neither on the other
    sources nor on padding. The exception is an encoder that depends on the row length, which `batching` decides.

    Args:
        graph: the graph of an `EncoderDecoder`, from `lay_out_for_inference`.
        params: its parameters, from `lay_out_for_inference`.
        search: how targets are searched and scored; its token limit is lowered to the decoder's positions.
        prompt: ids that begin every target, such as the start symbol; neither counted nor returned.
        batching: how sources are batched.
        may_follow: bool [V], the ids that targets may contain; all ids by default.

    Raises:
        InputError: an id is outside the vocabulary, or the decoder's attention depends on the length of its row.
    """

    def __init__(
        self,
        graph: nnx.GraphDef,
        params: Any,
        search: SearchSettings,
        *,
        prompt: Sequence[int] = (0,),
        batching: SourceBatching | None = None,
        may_follow: np.ndarray | None = None,
    ) -> None:
        self.graph, self.params, self.batching = graph, params, batching or SourceBatching()
        self.config = nnx.merge(graph, params).config
        # The property builds a new config at each access, so its value is kept here.
        self.encoder = self.config.encoder
        self.at_once = min(CPU_BATCHES if device_kind() == 'cpu' else 1, self.batching.rows)
        self.rows = self.batching.rows // self.at_once
        # (rows per batch, row length, whether alignments are computed) of each compiled program
        self.compiled = set[tuple[int, int, bool]]()
        size, limit = self.config.decoder.vocab_size, self.config.decoder.position_limit
        if reason := unsearchable_reason(self.config):
            raise InputError(reason)
        if self.config.decoder_layers and self.config.cross_mechanism.randomness.in_training:
            logging.getLogger(__name__).warning(
                'model.cross_attention %r samples keys only in training; a search reads the most probable key',
                self.config.cross_attention,
            )
        self.prompt_P = to_id_array(prompt, 'prompt', size)
        room = search.max_tokens if limit is None else limit + 1 - len(self.prompt_P)
        self.search = dataclasses.replace(search, max_tokens=min(search.max_tokens, room))
        self.may_follow_V = jnp.ones(size, bool) if may_follow is None else jnp.asarray(may_follow, bool)
        if self.may_follow_V.shape != (size,):
            raise InputError(f'may_follow has the shape {self.may_follow_V.shape}; the model has {size} ids')

    def __call__(self, sources: Sequence[Ids], *, alignments: bool = False) -> list[list[GeneratedTarget]]:
        """Returns the best targets of each source, best first, in the order of the sources.

        Raises InputError in the same cases as `iterate_targets`.
        """
        found = dict(self.iterate_targets(sources, alignments=alignments))
        return [found[number] for number in range(len(sources))]

    def iterate_targets(
        self, sources: Sequence[Ids], *, alignments: bool = False, draws: SamplingSeeds | None = None
    ) -> Iterator[tuple[int, list[GeneratedTarget]]]:
        """Yields (number of the source, its best targets) as soon as targets are found; short sources come first.

        If tokens are sampled, a target depends only on its source and its entry in `draws`. By default the seed is 0
        and the numbers are the numbers of the sources.

        Raises:
            InputError: a source is empty, longer than the model can read, or has an id outside the vocabulary.
        """
        rows = [
            to_id_array(source, f'source {number}', self.config.vocab_size) for number, source in enumerate(sources)
        ]
        batches = list(self.batches([self.row_length(len(row), number) for number, row in enumerate(rows)], rows))
        draws = draws or SamplingSeeds(0, np.arange(len(rows)))
        find = functools.partial(self.targets_of_batch, rows=rows, draws=draws, alignments=alignments)
        if self.at_once > 1 and len(batches) > 1:
            yield from self.iterate_targets_in_threads(batches, find, alignments)
            return
        for batch in batches:
            yield from find(batch)

    def iterate_targets_in_threads(
        self, batches: list[SourceBatch], find: Callable[[SourceBatch], Found], alignments: bool
    ) -> Iterator[tuple[int, list[GeneratedTarget]]]:
        """Yields (number of the source, its best targets) while several batches run in parallel threads.

        A caller that stops early waits for none of the running batches.
        """
        # JAX keeps the default device and the matmul precision per thread, so each thread sets them again.
        device, precision = (getattr(jax.config, f'jax_default_{name}') for name in ('device', 'matmul_precision'))

        def search(batch: SourceBatch) -> Found:
            with jax.default_device(device), jax.default_matmul_precision(precision):
                return find(batch)

        begun, pool = deque[Future[Found]](), ThreadPoolExecutor(self.at_once)
        try:
            for batch in batches:
                begun.append(pool.submit(search, batch))
                program = batch.size, batch.length, alignments
                if program not in self.compiled:  # Waiting keeps two threads from compiling the same program.
                    wait([begun[-1]])
                    self.compiled.add(program)
                while len(begun) > self.at_once or begun and begun[0].done():
                    yield from begun.popleft().result()
            for found in begun:
                yield from found.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def targets_of_batch(
        self, batch: SourceBatch, rows: list[np.ndarray], draws: SamplingSeeds, alignments: bool
    ) -> Found:
        """Returns (number of the source, its best targets) for each source of a batch."""
        together = self.pad_sources([rows[number] for number in batch.numbers], batch.length, batch.size)
        number_B = np.zeros(batch.size, np.int32)
        number_B[: len(batch.numbers)] = np.asarray(draws.number_B)[batch.numbers]
        draws = SamplingSeeds(jnp.int32(draws.seed), jnp.asarray(number_B))
        return list(zip(batch.numbers, self.search_batch(together, len(batch.numbers), draws, alignments), strict=True))

    def batches(self, lengths: list[int], rows: Sequence[Sized]) -> Iterator[SourceBatch]:
        """Yields batches of sources, shortest sources first; `lengths` are the padded row lengths of the sources.

        Sources that do not fill a batch join rows up to twice as long, because each new batch size compiles a program.
        """
        full, waiting = 0, list[int]()  # `full` = row length of the last full batch, whose program is reused
        numbers = sorted(range(len(rows)), key=lambda number: (lengths[number], len(rows[number])))
        for length, group in itertools.groupby(numbers, key=lambda number: lengths[number]):
            if waiting and (length > 2 * lengths[waiting[0]] or self.encoder.is_affected_by_padding):
                yield self.partial_batch(waiting, lengths[waiting[-1]], full)
                waiting = []
            waiting += group
            while len(waiting) >= self.rows:
                yield SourceBatch(waiting[: self.rows], length, self.rows)
                full, waiting = length, waiting[self.rows :]
        if waiting:
            yield self.partial_batch(waiting, lengths[waiting[-1]], full)

    def partial_batch(self, numbers: list[int], length: int, full: int) -> SourceBatch:
        """Returns a batch with fewer sources than the maximum; a few padding rows fill it up to a size that is already
        compiled or a power of two.
        """
        return SourceBatch(numbers, length, self.rows if length == full else min(power_of_two(len(numbers)), self.rows))

    def row_length(self, length: int, number: int) -> int:
        """Returns the padded row length for the source with this number; raises InputError if the source is too long
        for the model.
        """
        limit = self.config.source_limit
        if limit is not None and length > limit:
            raise InputError(f'source {number} has {length} tokens; the model has {limit} positions')
        padded = self.batching.padded_length(length)
        return padded if limit is None else min(padded, limit)

    def search_batch(
        self, sources: PaddedSources, count: int, draws: SamplingSeeds, alignments: bool
    ) -> list[list[GeneratedTarget]]:
        """Returns the best targets for the first `count` sources of a padded batch; the other rows are padding."""
        lengths = np.asarray(sources.lengths_B)
        most = [self.batching.max_target_tokens(int(length), self.search) for length in lengths[:count]]
        most_B = np.pad(np.asarray(most, np.int32), (0, len(lengths) - count))
        longest = self.batching.max_target_tokens(sources.tokens_BM.shape[1], self.search)
        search = dataclasses.replace(self.search, max_tokens=longest)
        limits = TokenLimits(self.may_follow_V, jnp.asarray(most_B), draws if self.search.sampling else None)
        found = search_targets(self.graph, self.params, sources, limits, search=search)
        weights_BnTM = (
            target_alignment_weights(self.graph, self.params, sources, found.tokens_BnT) if alignments else None
        )
        found, weights_BnTM = jax.device_get((found, weights_BnTM))
        return [self.targets_of_row(found, row, int(lengths[row]), weights_BnTM) for row in range(count)]

    def pad_sources(self, rows: list[np.ndarray], length: int, size: int) -> PaddedSources:
        """Returns the sources padded to `size` rows of this length; additional rows are padding."""
        tokens_BM, lengths_B = np.zeros((size, length), np.int32), np.zeros(size, np.int32)
        for row, ids in enumerate(rows):
            tokens_BM[row, : len(ids)], lengths_B[row] = ids, len(ids)
        return PaddedSources(jnp.asarray(tokens_BM), jnp.asarray(lengths_B), jnp.asarray(self.prompt_P))

    def targets_of_row(
        self, found: Hypotheses, row: int, length: int, weights_BnTM: np.ndarray | None
    ) -> list[GeneratedTarget]:
        """Returns the targets that the search found for one source of `length` tokens; there may be fewer than
        `search.best`.
        """
        targets = []
        for place, made in enumerate(found.lengths_Bn[row]):
            is_ended = bool(made) and found.tokens_BnT[row, place, made - 1] in self.search.end_token_ids
            ids = np.asarray(found.tokens_BnT[row, place, : made - is_ended])
            alignment = None if weights_BnTM is None else weights_BnTM[row, place, : len(ids), :length]
            numbers = float(found.scores_Bn[row, place]), float(found.log_probs_Bn[row, place])
            targets += [GeneratedTarget(ids, *numbers, bool(is_ended), alignment)] if made else []
        return targets


@functools.partial(jax.jit, static_argnames=('graph', 'search'))
def search_targets(
    graph: nnx.GraphDef, params: Any, sources: PaddedSources, limits: TokenLimits, *, search: SearchSettings
) -> Hypotheses:
    """Returns the best targets that the search finds for each source of a padded batch."""
    model: EncoderDecoder = nnx.merge(graph, params)
    cached = make_cached_decoder(model.decoder, len(sources.prompt_P), search)
    other = model.encode(sources.tokens_BM, Lengths(sources.lengths_B))
    prompt_BP = jnp.broadcast_to(sources.prompt_P, (len(sources.tokens_BM), len(sources.prompt_P)))
    begun = read_prompts(cached, prompt_BP, jnp.ones_like(prompt_BP), other)
    return find_best_texts(cached, begun, search, limits)[0]


@functools.partial(jax.jit, static_argnames='graph')
def target_alignment_weights(graph: nnx.GraphDef, params: Any, sources: PaddedSources, tokens_BnT: Array) -> Array:
    """Returns the cross-attention weights of each target token over the source, float32 [B, n, T, M]: last layer, mean
    over heads.
    """
    model: EncoderDecoder = nnx.merge(graph, params)
    other = model.encode(sources.tokens_BM, Lengths(sources.lengths_B))
    rows, before = len(tokens_BnT), len(sources.prompt_P)
    prompt_BP = jnp.broadcast_to(sources.prompt_P, (rows, before))

    def of_one(tokens_BT: Array) -> Array:
        read_BL = jnp.concatenate([prompt_BP, tokens_BT[:, :-1]], axis=1)
        weights_BHLM = cross_weights(model.decoder, read_BL, jnp.ones_like(read_BL), other)
        return weights_BHLM.mean(axis=1)[:, before - 1 :]

    return jax.lax.map(of_one, tokens_BnT.swapaxes(0, 1)).swapaxes(0, 1)


def unsearchable_reason(config: ModelConfig) -> str:
    """Returns why this decoder cannot generate text by beam search or sampling; '' if it can.

    A decoder whose attention depends on the length of its row cannot be searched: the length is known only at the end.
    """
    for text, mechanism in zip(config.decoder_attention.split(';'), config.decoder.mechanisms, strict=True):
        if mechanism.key_access.by_length:
            return (
                f'model.decoder_attention {text.strip()!r} depends on the length of its row, which a search '
                'knows only at its end; such a model gives only a loss'
            )
    return ''


def to_id_array(ids: Ids, name: str, size: int) -> np.ndarray:
    """Returns token ids as an int32 array; raises InputError if the list is empty or an id is not from 0 to `size` -
    1.
    """
    row = np.asarray(ids)
    if row.ndim != 1 or not len(row) or not np.issubdtype(row.dtype, np.integer):
        raise InputError(f'{name} is {str(ids)[:40]}; it must be one id or more')
    for value in (row.min(), row.max()):
        if not 0 <= value < size:
            raise InputError(f'{name} has the id {value}; the model has {size} ids')
    return row.astype(np.int32)


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least the given positive number."""
    return 1 << (number - 1).bit_length()
