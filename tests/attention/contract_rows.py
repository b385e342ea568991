"""The contract of mechanisms that read a row as a whole, as contract.py: one row in loops of float64 NumPy.

`valid` [M] and `asks` [L] say which keys are tokens and which queries are; the others have zeros in their places.
"""

import itertools
import math

import numpy as np

from tests.attention.contract import softmax


def linformer_weights(
    query: np.ndarray, key: np.ndarray, mixtures: tuple[np.ndarray, np.ndarray], asks: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """[H, L, M]: Wang et al. 2020, arXiv 2006.04768, equation 7, with E and F [1 or H, R, N], N at least M."""
    (queries, heads, width), (keys, groups, _) = query.shape, key.shape
    weights = np.zeros((heads, queries, keys))
    for h in range(heads):
        of_keys, of_values = (matrix[h % len(matrix), :, :keys] * valid for matrix in mixtures)
        slots = of_keys @ key[:, h // (heads // groups)]
        for i in np.flatnonzero(asks):
            logits = slots @ query[i, h] / math.sqrt(width)
            shares = np.exp(logits - logits.max())
            weights[h, i] = (shares / shares.sum()) @ of_values
    return weights


def landmarks(x: np.ndarray, valid: np.ndarray, count: int) -> list[np.ndarray | None]:
    """Means of the valid tokens number [j n / m, (j + 1) n / m) of n, or None where there are none."""
    tokens = x[valid]
    found: list[np.ndarray | None] = []
    for j in range(count):
        first, last = j * len(tokens) // count, (j + 1) * len(tokens) // count
        found.append(tokens[first:last].mean(0) if last > first else None)
    return found


def softmax_of(queries: list, keys: list, width: int) -> np.ndarray:
    """Weights of vectors over vectors; those that are None have zeros, as rows and as columns."""
    weights = np.zeros((len(queries), len(keys)))
    there = [j for j, key in enumerate(keys) if key is not None]
    for i, query in enumerate(queries):
        if query is not None and there:
            logits = np.array([query @ keys[j] / math.sqrt(width) for j in there])
            shares = np.exp(logits - logits.max())
            weights[i, there] = shares / shares.sum()
    return weights


def iterated_inverse(matrix: np.ndarray, iterations: int) -> np.ndarray:
    """Z of Xiong et al. 2021, arXiv 2102.03902, equation 13, from A^T / (|A|_1 |A|_inf)."""
    size = np.linalg.norm(matrix, 1) * np.linalg.norm(matrix, np.inf)
    inverse, one = matrix.T / (size or 1.0), np.eye(len(matrix))
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * one - product @ (15 * one - product @ (7 * one - product))) / 4
    return inverse


def nystrom_weights(
    query: np.ndarray,
    key: np.ndarray,
    asks: np.ndarray,
    valid: np.ndarray,
    *,
    count: int,
    iterations: int,
    convolution: np.ndarray | None = None,
) -> np.ndarray:
    """[H, L, M]: equation 14 of the same, plus a convolution [H, W] of values over places."""
    (queries, heads, width), (keys, groups, _) = query.shape, key.shape
    weights = np.zeros((heads, queries, keys))
    for h in range(heads):
        q, k = query[:, h], key[:, h // (heads // groups)]
        means = landmarks(q, asks, count), landmarks(k, valid, count)
        own_queries = [q[i] if asks[i] else None for i in range(queries)]
        own_keys = [k[j] if valid[j] else None for j in range(keys)]
        middle = iterated_inverse(softmax_of(*means, width), iterations)
        weights[h] = softmax_of(own_queries, means[1], width) @ middle @ softmax_of(means[0], own_keys, width)
        if convolution is not None:
            half = convolution.shape[1] // 2
            for i, j in itertools.product(np.flatnonzero(asks), np.flatnonzero(valid)):
                if abs(j - i) <= half:
                    weights[h, i, j] += convolution[h, j - i + half]
    return weights


def induced_weights(
    query: np.ndarray, key: np.ndarray, points: np.ndarray, asks: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """[H, L, M]: points [H, P, K] read the keys, queries read the points (Lee et al. 2019, arXiv 1810.00825)."""
    (queries, heads, width), (keys, groups, _) = query.shape, key.shape
    weights = np.zeros((heads, queries, keys))
    if not valid.any():
        return weights
    for h in range(heads):
        k = key[:, h // (heads // groups)]
        reads, _ = softmax(
            (points[h] @ k.T / math.sqrt(width))[None], np.broadcast_to(valid, (1, len(points[h]), keys))
        )
        logits = query[:, h] @ (reads[0] @ k).T / math.sqrt(width)
        weights[h] = softmax(logits[None], np.ones((1, *logits.shape), bool))[0][0] @ reads[0]
        weights[h, ~asks] = 0.0
    return weights
