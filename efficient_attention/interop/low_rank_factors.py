"""Factors weight matrices into products of two low-rank matrices, and multiplies such factors back into full
matrices.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tree = dict[Any, Any]
# name of a full matrix -> names of its two low-rank factors
PAIRS = {'kernel': ('left', 'right'), 'embedding': ('table', 'projection')}
# The importance weights have mean 1. This number is added to each weight, so that no matrix row is ignored.
LEAST_WEIGHT = 0.01
LEAVES = {'left': 'kernel', 'right': 'kernel', 'table': 'embedding', 'projection': 'kernel'}


def multiply_factors(params: Mapping[Any, Any]) -> Tree:
    """Returns the model's parameters with each pair of low-rank factors replaced by their product."""
    for whole, (first, second) in PAIRS.items():
        if set(params) == {first, second}:
            product = np.matmul(params[first][LEAVES[first]], params[second][LEAVES[second]])
            return {whole: product} | {name: leaf for name, leaf in params[second].items() if name != LEAVES[second]}
    return {key: multiply_factors(node) if isinstance(node, Mapping) else node for key, node in params.items()}


def factor_params(
    params: Mapping[Any, Any], wanted: Mapping[Any, Any], weights: Mapping[Any, Any] | None = None
) -> Tree:
    """Returns the model's parameters, with a matrix replaced by two low-rank factors wherever `wanted` has factors.

    Both factors of a pair get the square roots of the singular values, so that neither is larger than the other.
    `weights` has an array [..., I] at the path of a matrix [..., I, O]: how much each input matters. With weights, the
    matrix's rows are multiplied by the roots of the weights before the decomposition, and the first factor's rows
    divided by them after.
    """
    found: Tree = {}
    weights = weights or {}
    for key, node in params.items():
        inner = wanted.get(key)
        pair = next((pair for pair in PAIRS.values() if isinstance(inner, Mapping) and set(pair) == set(inner)), None)
        if pair is not None and inner is not None:
            found[key] = factor_matrix(node, pair, inner[pair[1]][LEAVES[pair[1]]].shape[-2], weights.get(key))
        elif isinstance(node, Mapping):
            found[key] = factor_params(node, inner or {}, weights.get(key))
        else:
            found[key] = node
    return found


def factor_matrix(
    dense: Mapping[str, np.ndarray], pair: tuple[str, str], rank: int, weights: Mapping[str, np.ndarray] | None = None
) -> Tree:
    """Factors a kernel or embedding table [..., I, O] into [..., I, r] and [..., r, O] by singular values; a bias stays
    with the second factor.
    """
    whole = next(name for name in PAIRS if name in dense)
    matrix = np.asarray(dense[whole], np.float32)
    scale = np.float32(1.0) if weights is None else importance_scale_per_row(weights[whole])
    left, values, right = np.linalg.svd(scale * matrix, full_matrices=False)
    root = np.sqrt(values[..., :rank])
    first, second = left[..., :rank] * root[..., None, :] / scale, root[..., :, None] * right[..., :rank, :]
    rest = {name: leaf for name, leaf in dense.items() if name != whole}
    return {pair[0]: {LEAVES[pair[0]]: first}, pair[1]: {LEAVES[pair[1]]: second} | rest}


def importance_scale_per_row(weights: np.ndarray) -> np.ndarray:
    """Returns the number [..., I, 1] by which each matrix row is scaled before factoring. Even the least important row
    keeps a small scale.
    """
    means = weights.mean(axis=-1, keepdims=True)
    shares = weights / np.where(means > 0.0, means, 1.0)
    return np.sqrt(shares + LEAST_WEIGHT)[..., None].astype(np.float32)
