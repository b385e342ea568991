"""Parameters with factors for some matrices, and with the matrices themselves."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tree = dict[Any, Any]
PAIRS = {'kernel': ('left', 'right'), 'embedding': ('table', 'projection')}  # the names of a whole matrix's factors
LEAVES = {'left': 'kernel', 'right': 'kernel', 'table': 'embedding', 'projection': 'kernel'}


def products(params: Mapping[Any, Any]) -> Tree:
    """The parameters with the product in the place of each pair of factors."""
    for whole, (first, second) in PAIRS.items():
        if set(params) == {first, second}:
            product = np.matmul(params[first][LEAVES[first]], params[second][LEAVES[second]])
            return {whole: product} | {name: leaf for name, leaf in params[second].items() if name != LEAVES[second]}
    return {key: products(node) if isinstance(node, Mapping) else node for key, node in params.items()}


def factored(params: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> Tree:
    """The parameters with factors where `wanted`, the shapes of a model's parameters, has them.

    Each of a pair has the root of the singular values, so that neither is larger than the other.
    """
    found: Tree = {}
    for key, node in params.items():
        inner = wanted.get(key)
        pair = next((pair for pair in PAIRS.values() if isinstance(inner, Mapping) and set(pair) == set(inner)), None)
        if pair is not None and inner is not None:
            found[key] = pair_of(node, pair, inner[pair[1]][LEAVES[pair[1]]].shape[-2])
        elif isinstance(node, Mapping):
            found[key] = factored(node, inner or {})
        else:
            found[key] = node
    return found


def pair_of(dense: Mapping[str, np.ndarray], pair: tuple[str, str], rank: int) -> Tree:
    """The two factors of a kernel or table, [..., I, r] and [..., r, O]; what else the layer has goes to the second."""
    whole = next(name for name in PAIRS if name in dense)
    left, values, right = np.linalg.svd(np.asarray(dense[whole], np.float32), full_matrices=False)
    root = np.sqrt(values[..., :rank])
    first, second = left[..., :rank] * root[..., None, :], root[..., :, None] * right[..., :rank, :]
    rest = {name: leaf for name, leaf in dense.items() if name != whole}
    return {pair[0]: {LEAVES[pair[0]]: first}, pair[1]: {LEAVES[pair[1]]: second} | rest}
