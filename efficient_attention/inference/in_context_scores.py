"""Scores in-context learning: how often a language model predicts the value of a key that it has seen in the row, and
which attention heads look the value up.

The rows are generated (data/sources/recall_rows.py). The score that tells most is the accuracy at a key's second
occurrence: the key's value was shown once, in this row and in no other.

Heads are named as by Olsson et al. 2022 (arXiv 2209.11895): a previous-token head attends to the token before, and an
induction head attends to the token after an earlier occurrence of the current token.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.data.sources.recall_rows import KEYS, NEW_KEYS, SYMBOLS, RecallRows, recall_row, symbol_word
from efficient_attention.errors import InputError
from efficient_attention.inference.language_models import LanguageModel
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.layer_readings import self_attention_weights

MOST_SIGHTS = 3  # this number of earlier occurrences or more is one group
GAPS = (1, 2, 4, 8, 16)  # lower bounds of the groups by pairs since the last occurrence
# 'trained': keys of training; 'new': words that training has only as values; 'untrained': ids that training never has
KEY_KINDS = ('trained', 'new', 'untrained')
BATCH_SIZE = 50  # rows that the model reads at a time


class RecallTest(NamedTuple):
    """Test rows as token ids, with two counts for each pair.

    Args:
        tokens_BL: int32; key, value, key, value, ...
        sights_BP: number of earlier pairs of the row with the same key.
        gaps_BP: number of pairs since the latest of these pairs; 0 if there is none.
    """

    tokens_BL: np.ndarray
    sights_BP: np.ndarray
    gaps_BP: np.ndarray


def recall_test(model: LanguageModel, wanted: RecallRows, kind: str = 'trained') -> RecallTest | None:
    """Returns test rows whose keys are of a kind in `KEY_KINDS`; None for 'untrained' if
    the model has too few unused ids.

    Raises:
        InputError: a word of the rows is unknown to the model.
    """
    units = model.units
    ids = units.encode(' '.join(symbol_word(symbol) for symbol in range(SYMBOLS)))
    if len(ids) != SYMBOLS or units.unknown in ids:
        raise InputError("the model does not know the words of generated rows; it needs data.source 'recall:...'")
    symbols_BL = np.stack(
        [recall_row(wanted, number, KEYS if kind == 'trained' else NEW_KEYS) for number in range(wanted.rows)]
    )
    tokens_BL = ids[symbols_BL].astype(np.int32)
    if kind == 'untrained':
        if model.config.vocab_size < units.size + len(NEW_KEYS):
            return None
        # No key of a row is also a value in it, so only keys get other ids.
        tokens_BL[:, ::2] = units.size + symbols_BL[:, ::2] - NEW_KEYS.start
    return RecallTest(tokens_BL, *sights_and_gaps(symbols_BL[:, ::2]))


def sights_and_gaps(keys_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each pair of a row, the number of earlier pairs with the same key, and the number of pairs since the
    latest of them (0 if there is none): two int arrays [B, P].
    """
    is_earlier_BPP = np.tril(keys_BP[:, :, None] == keys_BP[:, None, :], -1)
    numbers_P = np.arange(1, keys_BP.shape[1] + 1)
    latest_BP = (is_earlier_BPP * numbers_P).max(2)
    return is_earlier_BPP.sum(2), np.where(latest_BP > 0, numbers_P - latest_BP, 0)


def predicted_values(model: LanguageModel, tokens_BL: np.ndarray) -> np.ndarray:
    """Returns the most probable token after each key, int [B, P]; `tokens_BL` has the keys at even positions."""
    return in_batches(lambda tokens_BL: predict_after_keys(model.graph, model.params, tokens_BL), tokens_BL)


@functools.partial(jax.jit, static_argnames='graph')  # compiled once for all numbers and kinds of keys
def predict_after_keys(graph: nnx.GraphDef, params: Any, tokens_BL: jax.Array) -> jax.Array:
    """Returns the most probable token after each token at an even position, int32 [B, L / 2]."""
    decoder: Decoder = nnx.merge(graph, params)
    return decoder.logits(decoder.hidden(tokens_BL, jnp.ones_like(tokens_BL))[:, ::2]).argmax(-1)


def in_batches(function: Callable[[np.ndarray], jax.Array], tokens_BL: np.ndarray) -> np.ndarray:
    """Applies a function to batches of rows, and returns the results of all rows, concatenated."""
    parts = [
        np.asarray(function(tokens_BL[start : start + BATCH_SIZE])) for start in range(0, len(tokens_BL), BATCH_SIZE)
    ]
    return np.concatenate(parts)


def recall_accuracy(test: RecallTest, predicted_BP: np.ndarray) -> dict[str, list[float | None]]:
    """Returns the shares of right values, in groups; None for an empty group.

    'sights' has a share per number of earlier occurrences of the key: 0, 1, ..., `MOST_SIGHTS` or more. 'pairs_since'
    has a share per group of `GAPS`, over all keys that occurred earlier.
    """
    is_right_BP = predicted_BP == test.tokens_BL[:, 1::2]
    sights_BP = np.minimum(test.sights_BP, MOST_SIGHTS)
    groups_BP = np.searchsorted(GAPS, test.gaps_BP, side='right')  # group 0 has the keys that did not occur earlier
    return {
        'sights': group_means(is_right_BP, sights_BP, range(MOST_SIGHTS + 1)),
        'pairs_since': group_means(is_right_BP, groups_BP, range(1, len(GAPS) + 1)),
    }


def group_means(values: np.ndarray, groups: np.ndarray, wanted: range) -> list[float | None]:
    """Returns the mean of the values in each wanted group; None for an empty group."""
    return [float(values[groups == group].mean()) if (groups == group).any() else None for group in wanted]


def head_scores(model: LanguageModel, test: RecallTest) -> dict[str, list[list[float]]]:
    """Returns four scores for each head of each layer: mean weights, as [layers][heads] numbers from 0 to 1.

    'previous_token' and 'two_back' are the weights that a token gives to the tokens one and two places before it.
    'induction' is the weight that the second occurrence of a key gives to the token after its first occurrence, and
    'after_value' the weight that it gives to the token after that, which also has the value if layer 1 copied it there.

    Raises:
        InputError: the model has recurrent layers.
    """

    @jax.jit
    def weights_of(params: nnx.State, tokens_BL: jax.Array) -> jax.Array:
        decoder: Decoder = nnx.merge(model.graph, params)
        return self_attention_weights(decoder, tokens_BL, jnp.ones_like(tokens_BL)).swapaxes(0, 1)

    weights_BNHLL = in_batches(lambda tokens_BL: weights_of(model.params, tokens_BL), test.tokens_BL)
    row_S, pair_S = np.nonzero(test.sights_BP == 1)
    if not len(row_S):
        raise InputError('no row has a key twice; use more pairs or fewer keys')
    first_S = pair_S - test.gaps_BP[row_S, pair_S]
    scores = {
        name: np.diagonal(weights_BNHLL, -distance, axis1=3, axis2=4).mean((0, 3))
        for name, distance in (('previous_token', 1), ('two_back', 2))
    }
    scores |= {
        name: weights_BNHLL[row_S, :, :, 2 * pair_S, 2 * first_S + distance].mean(0)
        for name, distance in (('induction', 1), ('after_value', 2))
    }
    return {name: score_NH.tolist() for name, score_NH in scores.items()}
