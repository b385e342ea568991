"""Compresses a model by low-rank factorisation: replaces kernels by products of two smaller matrices, from their
singular values.

No other product of the same rank is nearer to the matrix (Eckart and Young 1936). Rows of the matrix may have weights
(Hsu et al. 2022, arXiv 2207.00112).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from efficient_attention.config.model import RANK_KINDS, ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.compact_import import heads_by_parameter_names
from efficient_attention.interop.low_rank_factors import factor_params
from efficient_attention.interop.pretrained import Pretrained, check_convertible, check_not_quantized
from efficient_attention.interop.tensor_conversion import parameter_shapes


def low_rank(
    pretrained: Pretrained,
    *,
    share: float | None = None,
    ranks: tuple[str, ...] = (),
    weights: Mapping[Any, Any] | None = None,
) -> Pretrained:
    """Returns the model with low-rank factors in place of its kernels and token embedding table.

    Args:
        pretrained: an encoder.
        share: share of the squared singular values to keep: each kind of matrix gets the least rank that keeps this
            share in all layers. The sums ignore `weights`: weighted sums may lie in the few table rows that occur in
            every text, so rank 1 would keep most of them.
        ranks: entries of `model.ranks`; kinds that they do not name stay whole.
        weights: importance of each kernel input and table row, from `input_importance`; None = equal.

    Raises:
        InputError: no matrix gets smaller as a product, or the share or a rank is invalid.
    """
    check_can_factor(pretrained, share)
    model, params = pretrained.model, pretrained.params()
    if share is not None:
        ranks = tuple(f'{kind}={rank}' for kind, rank in ranks_for_energy(params['encoder'], share).items())
    smaller = dataclasses.replace(model, ranks=ranks)
    useless = ranks_without_saving(params['encoder'], smaller)
    if useless and share is None:
        raise InputError(f'--ranks {useless[0]}: no matrix of this kind has fewer numbers as a product of that rank')
    smaller = dataclasses.replace(model, ranks=tuple(entry for entry in ranks if entry not in useless))
    parts = heads_by_parameter_names(frozenset(params), pretrained.head)
    found = factor_params(params, parameter_shapes(smaller, parts), weights)
    if sum(one.size for one in nested_dict_arrays(found)) >= sum(one.size for one in nested_dict_arrays(params)):
        raise InputError('no matrix has fewer numbers as a product of two; name smaller ranks or a smaller share')
    return dataclasses.replace(pretrained, model=smaller, params=lambda: found, codes=None)


def check_can_factor(pretrained: Pretrained, share: float | None) -> None:
    """Raises InputError if a model's kernels cannot be factored at any rank, or if `share` is not between 0 and 1."""
    check_convertible(pretrained, 'factored')
    model = pretrained.model
    if model.decoder_layers:
        raise InputError('the kernels of an encoder-decoder cannot be factored; only those of encoders can')
    if model.ranks:
        raise InputError(f'its kernels are factored already, with model.ranks {", ".join(model.ranks)}')
    check_not_quantized(pretrained)
    if share is not None and not 0.0 < share < 1.0:
        raise InputError(
            f'the share of squared singular values that is kept (--low_rank) is {share}; it must be above 0 and below 1'
        )


def ranks_without_saving(params: Mapping[Any, Any], model: ModelConfig) -> tuple[str, ...]:
    """Returns the entries of `model.ranks` that factor no matrix, because two factors of that rank would not be smaller
    than the matrix.
    """
    shapes = {(kind, *matrix.shape) for kind, matrix in factorable_matrices(params)}
    taken_apart = {kind for kind, *sides in shapes if model.kernel_rank(kind, *sides)}
    return tuple(f'{kind}={rank}' for kind, rank in model.ranks_by_kind if kind not in taken_apart)


def ranks_for_energy(params: Mapping[Any, Any], share: float) -> dict[str, int]:
    """Returns {kind of matrix: rank}: the least rank that keeps `share` of the squared singular values in every matrix
    of that kind.
    """
    ranks: dict[str, int] = {}
    for kind, matrix in factorable_matrices(params):
        energy = np.cumsum(np.square(np.linalg.svd(matrix, compute_uv=False)))
        least = int(np.searchsorted(energy, share * energy[-1]) + 1) if energy[-1] > 0.0 else 1
        ranks[kind] = max(ranks.get(kind, 1), least)
    return ranks


def factorable_matrices(tree: Mapping[Any, Any], name: str = '') -> Iterator[tuple[str, np.ndarray]]:
    """Yields (kind, matrix) for each kernel and for the token embedding table; stacked layers give one matrix per
    layer.
    """
    for key, node in tree.items():
        if isinstance(node, Mapping):
            yield from factorable_matrices(node, str(key))
        elif name in RANK_KINDS and key in ('kernel', 'embedding'):
            for matrix in node.reshape(-1, *node.shape[-2:]):
                if matrix.size:
                    yield name, matrix


def nested_dict_arrays(tree: Mapping[Any, Any]) -> Iterator[np.ndarray]:
    """Yields all arrays in nested dicts."""
    for node in tree.values():
        if isinstance(node, Mapping):
            yield from nested_dict_arrays(node)
        else:
            yield node
