"""Defines mechanisms whose weights depend on the whole row, such as Linformer, for one row in loops of float64 NumPy.

Tests compare `attend` with these functions, as with those of contract.py. `valid` [M] and `asks` [L] say which keys and
which queries are tokens; weights of the others are zero.
"""

import itertools
import math
from typing import Any

import numpy as np

from tests.attention.contract import softmax


def linformer_weights(
    query: np.ndarray, key: np.ndarray, mixtures: tuple[np.ndarray, np.ndarray], asks: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """Returns Linformer's weights [H, L, M]: Wang et al. 2020, arXiv 2006.04768, equation 7, with E and F [1 or H, R,
    N], N at least M.
    """
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
    """Returns `count` landmarks: landmark j is the mean of valid tokens floor(j n / m) to floor((j + 1) n / m) - 1.

    n is the number of valid tokens and m is `count`. A landmark without tokens is None.
    """
    tokens = x[valid]
    found: list[np.ndarray | None] = []
    for j in range(count):
        first, last = j * len(tokens) // count, (j + 1) * len(tokens) // count
        found.append(tokens[first:last].mean(0) if last > first else None)
    return found


def softmax_of(queries: list, keys: list, width: int) -> np.ndarray:
    """Returns softmax weights of query vectors over key vectors; a vector that is None has zeros in its row or
    column.
    """
    weights = np.zeros((len(queries), len(keys)))
    there = [j for j, key in enumerate(keys) if key is not None]
    for i, query in enumerate(queries):
        if query is not None and there:
            logits = np.array([query @ keys[j] / math.sqrt(width) for j in there])
            shares = np.exp(logits - logits.max())
            weights[i, there] = shares / shares.sum()
    return weights


def iterated_inverse(matrix: np.ndarray, iterations: int) -> np.ndarray:
    """Returns Z, the approximate inverse of Xiong et al. 2021, arXiv 2102.03902, equation 13, starting from A^T /
    (|A|_1 |A|_inf).
    """
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
    """Returns Nystrom weights [H, L, M]: equation 14 of Xiong et al. 2021, plus a convolution [H, W] of the values
    along the row.
    """
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
            for i, offset in itertools.product(np.flatnonzero(asks), range(-half, half + 1)):
                if 0 <= i + offset < keys and valid[i + offset]:
                    weights[h, i, i + offset] += convolution[h, offset + half]
    return weights


def induced_weights(
    query: np.ndarray, key: np.ndarray, points: np.ndarray, asks: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """Returns weights [H, L, M]: points [H, P, K] read the keys, and queries read the points (Lee et al. 2019, arXiv
    1810.00825).
    """
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


def sinkhorn_shares(logits: np.ndarray, there: np.ndarray, iterations: int, *, causal: bool) -> np.ndarray:
    """Returns S [n, n] of Tay et al. 2020, arXiv 2002.11296, section 3.1.2: rows and columns are divided by their sums,
    in turn.

    Causal: row i is divided by its sum over the blocks before i. Blocks that are not `there` have zero columns, and
    zero rows too unless the attention is causal.
    """
    count = len(logits)
    allowed = [[bool(there[j]) and (j < i if causal else bool(there[i])) for j in range(count)] for i in range(count)]
    shares = np.where(allowed, np.exp(logits), 0.0)
    for _ in range(1 if causal else iterations):
        for axis in (1,) if causal else (1, 0):
            total = shares.sum(axis, keepdims=True)
            shares = shares / np.where(total > 0.0, total, 1.0)
    return shares


def sinkhorn_weights(
    query: np.ndarray,
    key: np.ndarray,
    sort: np.ndarray,
    asks: np.ndarray,
    valid: np.ndarray,
    *,
    options: Any,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """Returns Sinkhorn weights [H, L, M]: Tay et al. 2020, arXiv 2002.11296, equations 1 to 5.

    `sort` is [H, K, N], and `noise` [H, n, n] is added to the logits of the sorting. A query reads the tokens of its
    own block. It also reads each slot of a sorted block: a mix of the tokens that the row's blocks have at this slot.
    """
    (length, heads, width), groups, size = query.shape, key.shape[1], options.block
    weights, count, tokens = np.zeros((heads, length, length)), -(-length // size), np.eye(length)
    there = [valid[i * size : (i + 1) * size].any() for i in range(count)]
    for h in range(heads):
        k = key[:, h // (heads // groups)]
        logits = np.zeros((count, count))
        for i in range(count):
            first, last = (0, i * size + 1) if options.causal else (i * size, (i + 1) * size)
            logits[i] = (k[first:last] * valid[first:last, None]).sum(0) @ sort[h, :, :count]
        logits = (logits + (0.0 if noise is None else noise[h])) / options.temperature
        shares = sinkhorn_shares(logits, np.array(there), options.iterations, causal=options.causal)
        mixes = [sorted_slots(row, valid, size) for row in shares]
        for i in range(count):
            own = [] if options.cut else [u for u in range(i * size, min((i + 1) * size, length)) if valid[u]]
            places = [place for place, is_there in zip(mixes, there, strict=True) if is_there][: options.cut]
            beside = [mix for place in places for mix in place] if options.cut else mixes[i]
            read = np.array([tokens[u] for u in own] + beside).reshape(-1, length)
            vectors = read @ k
            for t in [t for t in range(i * size, min((i + 1) * size, length)) if asks[t]]:
                slots = [n for n in range(len(read)) if not (options.causal and n < len(own) and own[n] > t)]
                if slots:
                    scores = vectors[slots] @ query[t, h] / math.sqrt(width)
                    parts = np.exp(scores - scores.max())
                    weights[h, t] = (parts / parts.sum()) @ read[slots]
    return weights


def sorted_slots(shares: np.ndarray, valid: np.ndarray, size: int) -> list[np.ndarray]:
    """Returns for each slot of a sorted block the shares [M] of the tokens mixed in it; shares sum to 1, empty slots
    are left out.
    """
    slots = []
    for s in range(size):
        mix = np.zeros(len(valid))
        for j, share in enumerate(shares):
            if j * size + s < len(valid) and valid[j * size + s]:
                mix[j * size + s] = share
        if mix.sum() > 0.0:
            slots.append(mix / mix.sum())
    return slots


def layer_norm(x: np.ndarray) -> np.ndarray:
    """Returns (x - mean) / deviation of each vector, without scale or bias: Ba et al. 2016, arXiv 1607.06450."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def nearest_places(x: np.ndarray, centroids: np.ndarray, is_token: np.ndarray, size: int) -> list[list[np.ndarray]]:
    """Returns for each head and centroid the places of the `size` tokens [L, H, K] whose product with the centroid is
    largest.
    """
    found = []
    for h, centroids_of_head in enumerate(centroids):
        tokens = np.flatnonzero(is_token)
        products = layer_norm(x[tokens, h]) @ centroids_of_head.T
        orders = [np.argsort(-column, kind='stable')[:size] for column in products.T]
        found.append([tokens[order] for order in orders])
    return found


def routing_weights(
    query: np.ndarray,
    key: np.ndarray,
    members: tuple[list[list[np.ndarray]], list[list[np.ndarray]]],
    allowed: np.ndarray,
    *,
    options: Any,
) -> np.ndarray:
    """Returns routing weights [H, L, M]: Roy et al. 2020, arXiv 2003.05997, algorithm 1; the first heads are local.

    `allowed` is [L, M]. `members` are the queries and the keys that each centroid of the other heads takes. A query in
    several clusters gets the mean of its results over the clusters where it may read any key.
    """
    (length, heads, width), groups = query.shape, key.shape[1]
    weights, places = np.zeros((heads, length, length)), np.arange(length)
    for h in range(heads):
        is_local = h < options.local_heads
        q, k = query[:, h], key[:, h // (heads // groups)]
        q, k = (q, k) if is_local else (layer_norm(q), layer_norm(k))
        for i in range(length):
            if is_local:
                read = [places[abs(i - places) <= options.window]]
            else:
                pairs = zip(*(side[h - options.local_heads] for side in members), strict=True)
                read = [keys for queries, keys in pairs if i in queries]
            read = [keys[allowed[i, keys]] for keys in read if allowed[i, keys].any()]
            for keys in read:
                parts = np.exp(k[keys] @ q[i] / math.sqrt(width))
                weights[h, i, keys] += parts / parts.sum() / len(read)
    return weights


def routing_statistics(vectors: list[np.ndarray], centroids: np.ndarray) -> np.ndarray:
    """Returns [H, C, K + 1]: for each centroid the sum of the unit vectors nearest to it, and their number.

    The unit vectors are [H][tokens, K].
    """
    heads, clusters, width = centroids.shape
    sums = np.zeros((heads, clusters, width + 1))
    for h, tokens in enumerate(vectors):
        for x in layer_norm(tokens) / math.sqrt(width):
            sums[h, np.argmax(centroids[h] @ x)] += [*x, 1.0]
    return sums
