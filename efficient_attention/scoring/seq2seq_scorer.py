"""Scores continuations with an encoder-decoder: the context is its source, the continuation its target."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.request import Lengths
from efficient_attention.data.pairs.pair_encoder import PairEncoder
from efficient_attention.data.tokenizers.special_tokens import tokens_by_role
from efficient_attention.errors import InputError
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.scoring.padded_rows import batches_by_key, pad_rows, padded_length, split_into_batches
from efficient_attention.scoring.pairs import ALONE, Pair, PairTokens, Scorer, number_unique
from efficient_attention.scoring.target_scores import score_targets


class Seq2SeqScorer(Scorer):
    """Scores continuations as targets of a trained encoder-decoder; uses the first device.

    Args:
        model: the trained encoder-decoder.
        encoder: the tokenizers of both sides.
        name: names the model in reports.
        batch_size: rows at a time.
    """

    rule = ALONE

    def __init__(self, model: EncoderDecoder, encoder: PairEncoder, name: str = '', *, batch_size: int = 16) -> None:
        self.model, self.encoder, self.name, self.batch_size = model, encoder, name, batch_size
        self.longest = encoder.source.length
        unknown = tokens_by_role(encoder.target.tokenizer).get('unknown')
        self.unknown = -1 if unknown is None else encoder.target.tokenizer.get_vocab()[unknown]
        self.is_padded = not any(
            mechanism.key_access.by_length
            for part in (model.config.encoder, model.config.decoder)
            for mechanism in part.mechanisms
        )
        graph, self.params = nnx.split(model)
        self.score_rows = jax.jit(functools.partial(score_target_rows, graph))

    def encode(self, pair: Pair) -> PairTokens:
        """Returns the source with its end symbol and the target without one, as ids in the model's reading order.

        Raises:
            InputError: the continuation has no token.
        """
        source, target = self.encoder.source, self.encoder.target
        if target.is_reversed:
            raise InputError('the model predicts its targets from the end, so it cannot score continuations')
        [context], [whole] = source.ids([pair.context]), target.ids([pair.continuation])
        ids = whole[target.symbols.special_id_count - 1 : -1]
        if not len(ids):
            raise InputError(f'the continuation {pair.continuation[:40]!r} has no token')
        return PairTokens(tuple(context[source.reversed_positions(len(context))].tolist()), tuple(ids.tolist()))

    def fits(self, row: PairTokens) -> bool:
        """Returns whether the model can read the source and the target."""
        source, target = self.encoder.lengths
        return len(row.context) <= source and len(row.continuation) + len(self.start) <= target

    @property
    def start(self) -> list[int]:
        """Returns the ids that the decoder reads before each target."""
        symbols = self.encoder.target.symbols
        return [symbols.start, *([symbols.begin] if symbols.begin >= 0 else [])]

    def sizes(self, row: PairTokens) -> str:
        """Returns how many tokens source and target have and how many the model reads, for messages."""
        source, target = self.encoder.lengths
        mine = len(row.continuation) + len(self.start)
        return f'{len(row.context)} source and {mine} target tokens; the model reads {source} and {target} at most'

    def score_tokens(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        """Returns each target's log-probability and whether greedy decoding gives it; a source that several targets
        share is encoded once.
        """
        unique, places = number_unique(rows)
        found: list[tuple[float, bool]] = [(0.0, False)] * len(unique)
        by_source: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(unique):
            by_source.setdefault(row.context, []).append(number)

        def shape(numbers: list[int]) -> tuple[int, int, int]:
            longest = max(len(unique[number].continuation) for number in numbers) + len(self.start)
            source = len(unique[numbers[0]].context)
            if not self.is_padded:
                return source, longest, len(numbers)
            most = self.encoder.lengths
            return padded_length(source, most[0]), padded_length(longest, most[1]), len(numbers)

        parts = [part for numbers in by_source.values() for part in split_into_batches(numbers, self.batch_size)]
        for options in sorted({len(part) for part in parts}):
            groups = [part for part in parts if len(part) == options]
            sources = max(1, self.batch_size // options)
            for (length, target, _), batch in batches_by_key(groups, shape, sources):
                tokens_BM, lengths_B = pad_rows([unique[numbers[0]].context for numbers in batch], length, sources)
                filled = [*batch, *[batch[0]] * (sources - len(batch))]
                targets = [(*self.start, *unique[number].continuation) for numbers in filled for number in numbers]
                targets_bL, lengths_b = pad_rows(targets, target, sources * options)
                arrays = tokens_BM, lengths_B, targets_bL, lengths_b, jnp.int32(len(self.start))
                log_probs, is_greedy = jax.device_get(self.score_rows(self.params, *arrays))
                for place, number in enumerate(number for numbers in batch for number in numbers):
                    found[number] = float(log_probs[place]), bool(is_greedy[place])
        return [found[place] for place in places]


def score_target_rows(
    graph: nnx.GraphDef,
    params: Any,
    source_BM: Array,
    source_lengths_B: Array,
    tokens_bL: Array,
    lengths_b: Array,
    start: Array,
) -> tuple[Array, Array]:
    """Returns the log-probability of each target, float32 [b], and whether it is greedy, bool [b].

    b is B times the number of targets per source; these are adjacent. Each begins with `start` tokens, which are not
    scored.
    """
    model = nnx.merge(graph, params)
    options = len(tokens_bL) // len(source_BM)
    encoded = model.encode(source_BM, Lengths(source_lengths_B))
    other = jax.tree.map(lambda x: jnp.repeat(x, options, axis=0), encoded)
    hidden_bLD = model.decoder.hidden(tokens_bL, Lengths(lengths_b), other=other)
    targets_bL = jnp.roll(tokens_bL, -1, axis=1)
    first = start - 1  # the position that predicts the first scored token
    hidden_bLD, targets_bL = (jnp.roll(x, -first, axis=1) for x in (hidden_bLD, targets_bL))
    return score_targets(model.logits, model.config.decoder.vocab_size, hidden_bLD, targets_bL, lengths_b - start)
