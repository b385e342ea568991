"""An interpolated n-gram model: a baseline that a language model must beat on the same text.

Witten-Bell smoothing: with n(h c) the count of token c after context h, n(h) the count of the context and T(h) the
number of different tokens seen after it,

    p_k(c | h) = (n(h c) + T(h) p_(k-1)(c | h without its first token)) / (n(h) + T(h)),

from the uniform p_0 = 1 / V up to p_n; an unseen context keeps p_(k-1). Source: Witten and Bell 1991, method C; the
interpolated form is in Chen and Goodman 1998, section 2.4.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

CHUNK = 2**20  # number of held-out tokens that are scored at a time


@dataclasses.dataclass(frozen=True, eq=False)
class NgramCounts:
    """Counts of the n-grams of one order k, and of their contexts.

    The context of a token is the (k - 1)-gram before the token, given by its number; for k = 1, the number is 0. The
    number of a k-gram is its index in `keys`.
    """

    # sorted codes of the k-grams, int64; the code of a k-gram is (number of its context) x V + its last token
    keys: np.ndarray
    counts: np.ndarray  # per k-gram
    totals: np.ndarray  # n(h), the count of each context
    kinds: np.ndarray  # T(h), the number of different tokens after each context


def count_ngrams(ids: np.ndarray, vocab_size: int, order: int) -> list[NgramCounts]:
    """Returns the counts of all 1-grams to `order`-grams of a text, given as token ids [N] below `vocab_size`."""
    ids = np.asarray(ids, np.int64)
    contexts, size, orders = np.zeros(len(ids), np.int64), 1, []
    for k in range(1, order + 1):
        keys, grams, counts = np.unique(contexts * vocab_size + ids[k - 1 :], return_inverse=True, return_counts=True)
        totals = np.bincount(contexts, minlength=size)
        kinds = np.bincount(keys // vocab_size, minlength=size)
        orders.append(NgramCounts(keys, counts, totals, kinds))
        # Each k-gram is the context of the (k + 1)-grams that extend it by one token.
        contexts, size = grams[:-1], len(keys)
    return orders


def token_bits(orders: list[NgramCounts], ids: np.ndarray, vocab_size: int, *, chunk: int = CHUNK) -> np.ndarray:
    """Returns -log2 of each token's probability given the tokens before it, float64 [N - 1]; the first token is
    excluded.
    """
    context = len(orders) - 1
    parts = []
    for start in range(1, len(ids), chunk):
        first = max(0, start - context)
        probabilities = _ngram_probabilities(orders, np.asarray(ids[first : start + chunk], np.int64), vocab_size)
        parts.append(-np.log2(probabilities[start - first :]))
    return np.concatenate(parts) if parts else np.zeros(0)


def _ngram_probabilities(orders: list[NgramCounts], ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """Returns the n-gram model's probability of each token given the tokens before it, float64 [n]."""
    probabilities = np.full(len(ids), 1.0 / vocab_size)
    contexts = np.zeros(len(ids), np.int64)  # -1 = the context is missing or was not seen in training
    for order in orders:
        is_known = contexts >= 0
        known = contexts[is_known]
        places, is_seen = _find_in_sorted_keys(order.keys, known * vocab_size + ids[is_known])
        counts = np.where(is_seen, order.counts[places], 0)
        kinds, totals = order.kinds[known], order.totals[known]
        # A context that occurs only at the end of the training text has no next token, so its n(h) is 0.
        # A context with n(h) = 0 keeps the probability of the lower order.
        mixed = (counts + kinds * probabilities[is_known]) / np.maximum(totals + kinds, 1)
        probabilities[is_known] = np.where(totals > 0, mixed, probabilities[is_known])
        grams = np.full(len(ids), -1)
        grams[is_known] = np.where(is_seen, places, -1)
        contexts = np.concatenate([[-1], grams[:-1]])
    return probabilities


def _find_in_sorted_keys(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each wanted number in a sorted array, and whether the array contains the number."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return places, keys[places] == wanted


def next_token_probabilities(orders: list[NgramCounts], before: Sequence[int], vocab_size: int) -> np.ndarray:
    """Returns the n-gram model's probability of each next token, float64 [V], given the ids of the tokens before it."""
    probabilities_V = np.full(vocab_size, 1.0 / vocab_size)
    for k, order in enumerate(orders):
        if k > len(before):
            break
        context = _context_number(orders, before[len(before) - k :], vocab_size)
        if context < 0 or not order.totals[context]:
            break
        first, last = np.searchsorted(order.keys, (context * vocab_size, (context + 1) * vocab_size))
        total, kinds = order.totals[context], order.kinds[context]
        probabilities_V *= kinds / (total + kinds)
        probabilities_V[order.keys[first:last] - context * vocab_size] += order.counts[first:last] / (total + kinds)
    return probabilities_V


def _context_number(orders: list[NgramCounts], context: Sequence[int], vocab_size: int) -> int:
    """Returns the number of a context; -1 if it does not occur in the training text."""
    number = 0
    for order, id in zip(orders, context, strict=False):
        key = number * vocab_size + id
        place = int(np.searchsorted(order.keys, key))
        if place == len(order.keys) or order.keys[place] != key:
            return -1
        number = place
    return number
