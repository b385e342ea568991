"""Defines attention as the papers do, in loops of float64 NumPy; tests compare `attend` with these functions.

Nothing here uses the library. Every function computes one row of a batch, from float64 arrays: queries [L, H, K], keys
and values [M, G, K]. What the library draws at random (rotations, projections, dropout masks) is an argument.
"""

import itertools
import math

import numpy as np

# The logit of a position with itself in LSH attention (Kitaev et al. 2020, section 2; value of the released code).
SELF_LOGIT = -1e5
RELU_FLOOR = 1e-3  # This is added to relu features, as in the released code of Choromanski et al. 2020.


def same_segment(query_segments: np.ndarray, key_segments: np.ndarray) -> np.ndarray:
    """Returns booleans [L, M]: whether query and key have the same segment; segment 0, padding, matches nothing."""
    return np.array([(key_segments == segment) & (segment != 0) for segment in query_segments])


def scaled_logits(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Returns the logits q k / sqrt(K) as [H, L, M]: Vaswani et al. 2017, arXiv 1706.03762, equation 1.

    With fewer key heads, neighbouring query heads share one: Shazeer 2019, arXiv 1911.02150; Ainslie et al. 2023, arXiv
    2305.13245.
    """
    (queries, heads, width), (keys, groups, _) = query.shape, key.shape
    logits = np.zeros((heads, queries, keys))
    for h, i in itertools.product(range(heads), range(queries)):
        logits[h, i] = key[:, h // (heads // groups)] @ query[i, h] / math.sqrt(width)
    return logits


def relative_term(
    query: np.ndarray, table: np.ndarray, first: int, query_positions: np.ndarray, key_positions: np.ndarray
) -> np.ndarray:
    """Returns the relative-position logits p_i r_(i - j) / sqrt(K) as [H, L, M]: Dai et al. 2019, arXiv 1901.02860,
    terms b and d of section 3.3.

    `table` [P, H, K] has the vectors of the distances `first`, `first` + 1, ...; a distance outside the table takes the
    vector of the nearest distance in it.
    """
    queries, heads, width = query.shape
    term = np.zeros((heads, queries, len(key_positions)))
    for h, i in itertools.product(range(heads), range(queries)):
        distances = int(query_positions[i]) - np.asarray(key_positions, int)
        nearest = np.clip(distances, first, first + len(table) - 1)
        term[h, i] = table[nearest - first, h] @ query[i, h] / math.sqrt(width)
    return term


def softmax(logits: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns softmax weights [H, L, M] over the allowed keys and the log-sum-exp [H, L].

    A query without an allowed key has weights 0 and log-sum-exp -inf.
    """
    weights, lse = np.zeros_like(logits), np.full(logits.shape[:2], -np.inf)
    allowed = np.broadcast_to(allowed, logits.shape)
    for place in np.ndindex(lse.shape):
        own = logits[place][allowed[place]]
        if own.size:
            lse[place] = own.max() + np.log(np.exp(own - own.max()).sum())
            weights[place][allowed[place]] = np.exp(own - lse[place])
    return weights, lse


def entmax(logits: np.ndarray, allowed: np.ndarray, alpha: float) -> np.ndarray:
    """Returns weights [H, L, M] of alpha-entmax over the allowed keys, found by bisection.

    Peters et al. 2019, arXiv 1905.05702, equation 10: p = max((alpha - 1) z - tau, 0)^(1 / (alpha - 1)) with the tau by
    which p sums to 1.
    """
    weights = np.zeros_like(logits)
    allowed = np.broadcast_to(allowed, logits.shape)
    for place in np.ndindex(logits.shape[:2]):
        z = (alpha - 1.0) * logits[place][allowed[place]]
        if not z.size:
            continue
        low, high = z.max() - 1.0, z.max()
        for _ in range(100):
            tau = (low + high) / 2.0
            total = (np.maximum(z - tau, 0.0) ** (1.0 / (alpha - 1.0))).sum()
            low, high = (tau, high) if total > 1.0 else (low, tau)
        weights[place][allowed[place]] = np.maximum(z - low, 0.0) ** (1.0 / (alpha - 1.0))
    return weights


def hard(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Returns weights [H, L, M] that are 1 on the allowed key of the largest logit (Xu et al. 2015, arXiv
    1502.03044).
    """
    weights = np.zeros_like(logits)
    allowed = np.broadcast_to(allowed, logits.shape)
    for place in np.ndindex(logits.shape[:2]):
        keys = np.flatnonzero(allowed[place])
        if keys.size:
            weights[place][keys[logits[place][keys].argmax()]] = 1.0
    return weights


def synthesized(kind: str, query: np.ndarray, key: np.ndarray, learned: dict[str, np.ndarray]) -> np.ndarray:
    """Returns Synthesizer logits [H, L, M] at positions 0, 1, ...: Tay et al. 2020, arXiv 2005.00743, equations 2, 5, 6
    and 8.
    """
    (queries, heads, width), keys = query.shape, len(key)
    logits = np.zeros((heads, queries, keys))
    for h, i in itertools.product(range(heads), range(queries)):
        if kind == 'dense':
            logits[h, i] = learned['keys'][h, :keys] @ np.maximum(query[i, h], 0.0)
        elif kind == 'factorized':
            logits[h, i] = learned['keys'][h, :keys] @ learned['queries'][h, i]
        else:
            logits[h, i] = learned['table'][h, i, :keys]
        if kind == 'random+dot':
            logits[h, i] += key[:, h // (heads // key.shape[1])] @ query[i, h] / math.sqrt(width)
    return logits


def local_p(
    logits: np.ndarray, centres: np.ndarray, segments: np.ndarray, places: np.ndarray, radius: int
) -> np.ndarray:
    """Returns local-p weights [H, L, M] of one row: Luong et al. 2015, arXiv 1508.04025, equations 9 and 10, with sigma
    = D / 2.

    `centres` [L, H] are sigmoid(v tanh(W h)), `segments` the segments of queries [L] and of keys [M], `places` [M] the
    places of keys in their text.
    """
    weights, sigma = np.zeros_like(logits), radius / 2.0
    for h, i in itertools.product(range(logits.shape[0]), range(logits.shape[1])):
        own = (segments[1] == segments[0][i]) & (segments[1] != 0)
        p = own.sum() * centres[i, h]
        near = own & (np.abs(places - p) <= radius)
        a = softmax(logits[h : h + 1, i : i + 1], near[None])[0][0, 0]
        weights[h, i] = a * np.exp(-((places - p) ** 2) / (2.0 * sigma**2))
    return weights


def dropped(weights: np.ndarray, keep: np.ndarray, rate: float) -> np.ndarray:
    """Returns weights after dropout (Srivastava et al. 2014, JMLR 15): kept weights are divided by the kept share."""
    return weights * keep / (1.0 - rate)


def mixed(weights: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Returns outputs [L, H, K]: each query's weighted sum of values."""
    (heads, queries, _), groups = weights.shape, value.shape[1]
    out = np.zeros((queries, heads, value.shape[2]))
    for h, i in itertools.product(range(heads), range(queries)):
        out[i, h] = weights[h, i] @ value[:, h // (heads // groups)]
    return out


# ---- LSH: Kitaev et al. 2020, arXiv 2001.04451, section 2 ----


def lsh_buckets(query: np.ndarray, rotations: list[np.ndarray]) -> np.ndarray:
    """Returns the LSH bucket [L] of each x in [L, K]: the argmax of [x R; -x R].

    Several rotations R [K, b / 2] give the digits of one number, lowest digit first.
    """
    numbers, base = np.zeros(len(query), int), 1
    for rotation in rotations:
        numbers += base * np.array([np.argmax(np.concatenate([x @ rotation, -(x @ rotation)])) for x in query])
        base *= 2 * rotation.shape[1]
    return numbers


def lsh_weights(
    query: np.ndarray,
    buckets_by_round: list[np.ndarray],
    segments: np.ndarray,
    size: int,
    *,
    causal: bool = False,
    within_buckets: bool = False,
    deduplicate: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights [L, L] and log-sum-exp [L] of LSH attention for one head's queries [L, K].

    The code lists the keys of each query over all rounds. Keys are the queries at unit length; logits are q k without
    another factor. A round sorts positions by (segment, bucket, position) with padding last, and cuts them into chunks
    of `size`. A query reads its chunk and the chunk before it; the chunk before the first one is the last one.
    """
    length = len(query)
    found: list[list[int]] = [[] for _ in range(length)]
    for buckets in buckets_by_round:
        order = sorted(range(length), key=lambda i: (segments[i] == 0, segments[i], buckets[i], i))
        chunks = [order[start : start + size] for start in range(0, length, size)]
        for number, chunk in enumerate(chunks):
            before = chunks[number - 1] if len(chunks) > 1 else []
            for i, j in itertools.product(chunk, [*before, *chunk]):
                is_apart = segments[i] != segments[j] or segments[j] == 0 or (causal and j > i)
                if is_apart or (within_buckets and buckets[i] != buckets[j]) or (deduplicate and j in found[i]):
                    continue
                found[i].append(j)
    weights, lse = np.zeros((length, length)), np.full(length, -np.inf)
    units = np.array([unit(x) for x in query])
    for i, keys in enumerate(found):
        logits = [SELF_LOGIT if i == j else float(logit) for j, logit in zip(keys, units[keys] @ query[i], strict=True)]
        if keys:
            lse[i] = max(logits) + math.log(sum(math.exp(logit - max(logits)) for logit in logits))
        for j, logit in zip(keys, logits, strict=True):
            weights[i, j] += math.exp(logit - lse[i])
    return weights, lse


def unit(x: np.ndarray) -> np.ndarray:
    """Returns x / |x|, and zeros for a vector of zeros."""
    return x / (np.linalg.norm(x) or 1.0)


# ---- FAVOR+: Choromanski et al. 2020, arXiv 2009.14794 ----


def favor_features(x: np.ndarray, projection: np.ndarray, kernel: str) -> np.ndarray:
    """Returns FAVOR features [..., R] of x [..., K]: positive ones (equation 5 with x / K^(1/4)), or those of the relu
    kernel.
    """
    if kernel == 'relu':
        return np.maximum(x @ projection.T, 0.0) + RELU_FLOOR
    x = x / x.shape[-1] ** 0.25
    return np.exp(x @ projection.T - (x**2).sum(-1, keepdims=True) / 2) / math.sqrt(len(projection))


def favor_weights(
    query: np.ndarray, key: np.ndarray, projection: np.ndarray, kernel: str, allowed: np.ndarray
) -> np.ndarray:
    """Returns FAVOR's implicit weights [H, L, M]: products of features, divided by their sum over the allowed keys
    (equation 4).
    """
    of_queries, of_keys = (favor_features(x, projection, kernel) for x in (query, key))
    return normalised_products(of_queries, of_keys, allowed)


def linear_weights(query: np.ndarray, key: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Returns weights [H, L, M] of linear attention with features elu(x) + 1.

    Katharopoulos et al. 2020, arXiv 2006.16236, equations 4, 5 and 7.
    """
    of_queries, of_keys = (np.where(x > 0, x + 1.0, np.exp(np.minimum(x, 0.0))) for x in (query, key))
    return normalised_products(of_queries, of_keys, allowed)


def cosine_weights(query: np.ndarray, key: np.ndarray, length: int, allowed: np.ndarray) -> np.ndarray:
    """Returns weights [H, L, M]: relu(q) relu(k) cos(pi (i - j) / 2 N), divided by their sum over keys (Qin et al.
    2022, arXiv 2202.08791).
    """
    (queries, heads, _), keys = query.shape, len(key)
    weights = np.zeros((heads, queries, keys))
    for h, i in itertools.product(range(heads), range(queries)):
        group = h // (heads // key.shape[1])
        products = np.maximum(key[:, group], 0.0) @ np.maximum(query[i, h], 0.0)
        products = products * np.cos(np.pi / 2 * (i - np.arange(keys)) / length) * allowed[i]
        weights[h, i] = products / (products.sum() or 1.0)
    return weights


def normalised_products(of_queries: np.ndarray, of_keys: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Returns weights [H, L, M] from features [L, H, R] and [M, G, R]: each query's products, divided by their sum."""
    (queries, heads, _), (keys, groups, _) = of_queries.shape, of_keys.shape
    weights = np.zeros((heads, queries, keys))
    for h, i in itertools.product(range(heads), range(queries)):
        products = (of_keys[:, h // (heads // groups)] @ of_queries[i, h]) * allowed[i]
        weights[h, i] = products / (products.sum() or 1.0)
    return weights
