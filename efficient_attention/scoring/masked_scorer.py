"""Scores whole texts with a masked language model, by pseudo-log-likelihood.

Each token is predicted with itself and the later tokens of its word masked, so that a word of several tokens is not
given away by its own end (Kauf and Ivanova 2023, arXiv 2305.10588; the sum over tokens: Salazar et al. 2020, arXiv
1910.14659).
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.request import Lengths
from efficient_attention.errors import InputError
from efficient_attention.inference.fill_mask import MaskFiller
from efficient_attention.scoring.padded_rows import batches_by_key, pad_rows, padded_count, padded_length
from efficient_attention.scoring.pairs import WHOLE, Pair, PairTokens, Scorer, number_unique

# Ids with special tokens and masks, the positions to predict, and the ids that belong there.
MaskedRow = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class MaskedScorer(Scorer):
    """Scores whole texts with a pretrained encoder that fills masks; it cannot score a continuation after a context.

    Args:
        filler: the encoder with its head and tokenizer.
        name: names the model in reports.
        batch_size: masked rows at a time; a text of n tokens has n rows.
    """

    rule = WHOLE

    def __init__(self, filler: MaskFiller, name: str = '', *, batch_size: int = 64) -> None:
        self.filler, self.name, self.batch_size = filler, name, batch_size
        self.longest, self.unknown = filler.length, filler.vocabulary.unknown
        graph, self.params = nnx.split(filler.model)
        self.score_places = jax.jit(functools.partial(score_masked_places, graph))

    def encode(self, pair: Pair) -> PairTokens:
        """Returns the tokens of a text, without special tokens; raises InputError if there is a context or no token."""
        if pair.context:
            raise InputError(
                f'{self.name or "the model"} is an encoder, which scores whole texts; a continuation after a context '
                'needs a language model'
            )
        ids = self.token_ids(pair.continuation)
        if not ids:
            raise InputError(f'the text {pair.continuation[:40]!r} has no token')
        return PairTokens((), ids)

    def fits(self, row: PairTokens) -> bool:
        """Returns whether the model can read the text and its two special tokens in one row."""
        return len(row.continuation) + 2 <= self.filler.length

    def sizes(self, row: PairTokens) -> str:
        """Returns how many tokens a text has and how many the model reads, for messages."""
        return f'{len(row.continuation) + 2} tokens with its special tokens; the model reads {self.longest} at most'

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Returns the ids of a text without special tokens."""
        return tuple(self.filler.reader.encode(text, add_special_tokens=False).ids)

    def score_tokens(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        """Returns each text's pseudo-log-likelihood, and whether every token is the most probable one at its mask."""
        unique, places = number_unique(rows)
        variants = [list(self.masked_rows(row.continuation)) for row in unique]
        scores = iter(self.score_masks([row for one in variants for row in one]))
        found = []
        for one in variants:
            of_row = [next(scores) for _ in one]
            found.append((sum(log_prob for log_prob, _ in of_row), all(is_best for _, is_best in of_row)))
        return [found[place] for place in places]

    def masked_rows(self, ids: tuple[int, ...]) -> Iterator[MaskedRow]:
        """Yields one row per token of a text, in which this token and the later tokens of its word are masked."""
        vocabulary, count = self.filler.vocabulary, len(ids)
        for place in range(count):
            end = place + 1
            while end < count and vocabulary.is_continuation[ids[end]]:
                end += 1
            masked = (*ids[:place], *[vocabulary.mask] * (end - place), *ids[end:])
            yield (vocabulary.cls, *masked, vocabulary.sep), (place + 1,), (ids[place],)

    def score_gaps(self, gaps: Sequence[tuple[str, str, str]]) -> list[float]:
        """Returns, for each (before, inside, after), the mean log-probability per token of `inside`.

        The gap has as many masks as the text has tokens (Kocijan et al. 2019, arXiv 1905.06290).

        Raises:
            InputError: a text has no token, or its row is too long.
        """
        rows = [self.gap_row(*gap) for gap in gaps]
        scores = self.score_masks(rows)
        return [log_prob / len(row[2]) for row, (log_prob, _) in zip(rows, scores, strict=True)]

    def gap_row(self, before: str, inside: str, after: str) -> MaskedRow:
        """Returns the row of a text in a gap; raises InputError if the text has no token or the row is too long."""
        left, ids, right = self.token_ids(before), self.token_ids(inside), self.token_ids(after)
        vocabulary = self.filler.vocabulary
        row = (vocabulary.cls, *left, *[vocabulary.mask] * len(ids), *right, vocabulary.sep)
        if not ids:
            raise InputError(f'{inside[:40]!r} has no token')
        if len(row) > self.filler.length:
            raise InputError(
                f'the text with {inside[:40]!r} has {len(row)} tokens; the model reads {self.longest} at most'
            )
        return row, tuple(range(1 + len(left), 1 + len(left) + len(ids))), ids

    def score_masks(self, rows: Sequence[MaskedRow]) -> list[tuple[float, bool]]:
        """Returns the log-probability of each row's targets at its masks, and whether all are the most probable."""
        found: list[tuple[float, bool]] = [(0.0, False)] * len(rows)

        def shape(number: int) -> tuple[int, int]:
            length = padded_length(len(rows[number][0]), self.longest)
            return length, 1 if len(rows[number][1]) == 1 else padded_count(len(rows[number][1]), length)

        for (length, count), batch in batches_by_key(range(len(rows)), shape, self.batch_size):
            tokens_BL, lengths_B = pad_rows([rows[number][0] for number in batch], length, self.batch_size)
            places_BP, counts_B = pad_rows([rows[number][1] for number in batch], count, self.batch_size)
            targets_BP, _ = pad_rows([rows[number][2] for number in batch], count, self.batch_size)
            results = self.score_places(self.params, tokens_BL, lengths_B, places_BP, targets_BP, counts_B)
            log_probs_B, is_best_B = jax.device_get(results)
            for place, number in enumerate(batch):
                found[number] = float(log_probs_B[place]), bool(is_best_B[place])
        return found


def score_masked_places(
    graph: nnx.GraphDef,
    params: Any,
    tokens_BL: Array,
    lengths_B: Array,
    places_BP: Array,
    targets_BP: Array,
    counts_B: Array,
) -> tuple[Array, Array]:
    """Returns the summed log-probability of each row's targets at the given places, float32 [B], and whether all are
    the most probable tokens, bool [B].
    """
    model = nnx.merge(graph, params)
    logits_BPV = model.masked_logits(model.encoder(tokens_BL, Lengths(lengths_B)), places_BP)
    chosen_BP = jnp.take_along_axis(logits_BPV, targets_BP[..., None], axis=-1)[..., 0]
    log_probs_BP = chosen_BP - jax.nn.logsumexp(logits_BPV, axis=-1)
    is_target_BP = jnp.arange(targets_BP.shape[1])[None] < counts_B[:, None]
    is_best_BP = logits_BPV.argmax(axis=-1) == targets_BP
    return jnp.where(is_target_BP, log_probs_BP, 0).sum(axis=1), (is_best_BP | ~is_target_BP).all(axis=1)
