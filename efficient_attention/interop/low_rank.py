"""Kernels as the product of two by their singular values, and back; the ranks that keep a share of their energy.

Sources: Eckart and Young 1936: no other product of this rank is nearer to the matrix; Hsu et al. 2022, arXiv
2207.00112: weights of its rows.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from efficient_attention.config.model import RANK_KINDS, ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.factors import factored
from efficient_attention.interop.parameters import parameter_shapes
from efficient_attention.interop.pretrained import Pretrained, check_no_codes
from efficient_attention.interop.small_folder import parts_of_names


def low_rank(
    pretrained: Pretrained,
    *,
    share: float | None = None,
    ranks: tuple[str, ...] = (),
    weights: Mapping[Any, Any] | None = None,
) -> Pretrained:
    """The same model with factors in the place of kernels and of the token table.

    Args:
        pretrained: an encoder.
        share: of the sum of squared singular values that is kept: each kind gets the least rank that keeps so much in
            all layers, with all numbers counted alike. Weighted sums may lie in the few rows of a table that every
            text has, so that a product of rank 1 would keep most of them.
        ranks: entries of `model.ranks`; None of a kind that they do not name.
        weights: how much each input of the kernels and each row of the table matters, as `input_weights` gives them;
            None = all alike.

    Raises:
        InputError: no matrix has fewer numbers as a product, or the share or a rank does not serve.
    """
    check_can_factor(pretrained, share)
    model, params = pretrained.model, pretrained.params()
    if share is not None:
        ranks = tuple(f'{kind}={rank}' for kind, rank in ranks_of(params['encoder'], share).items())
    smaller = dataclasses.replace(model, ranks=ranks)
    useless = whole_anyway(params['encoder'], smaller)
    if useless and share is None:
        raise InputError(f'--ranks {useless[0]}: no matrix of this kind has fewer numbers as a product of that rank')
    smaller = dataclasses.replace(model, ranks=tuple(entry for entry in ranks if entry not in useless))
    parts = parts_of_names(frozenset(params), pretrained.head)
    found = factored(params, parameter_shapes(smaller, parts), weights)
    if sum(one.size for one in leaves(found)) >= sum(one.size for one in leaves(params)):
        raise InputError('no matrix has fewer numbers as a product of two; name smaller ranks or a smaller share')
    return dataclasses.replace(pretrained, model=smaller, params=lambda: found, codes=None)


def check_can_factor(pretrained: Pretrained, share: float | None) -> None:
    """Raises InputError where a model is not taken apart, whatever the ranks, or the share does not serve."""
    model = pretrained.model
    if model.decoder_layers:
        raise InputError('the kernels of an encoder-decoder are not taken apart; those of encoders are')
    if model.ranks:
        raise InputError(f'its kernels are products already, with model.ranks {", ".join(model.ranks)}')
    check_no_codes(pretrained)
    if share is not None and not 0.0 < share < 1.0:
        raise InputError(
            f'the share of squared singular values that is kept (--low_rank) is {share}; it must be above 0 and below 1'
        )


def whole_anyway(params: Mapping[Any, Any], model: ModelConfig) -> tuple[str, ...]:
    """The entries of `model.ranks` at which no matrix of the kind has fewer numbers as a product: all stay whole."""
    shapes = {(kind, *matrix.shape) for kind, matrix in matrices(params)}
    taken_apart = {kind for kind, *sides in shapes if model.rank_of(kind, *sides)}
    return tuple(f'{kind}={rank}' for kind, rank in model.ranks_by_kind if kind not in taken_apart)


def ranks_of(params: Mapping[Any, Any], share: float) -> dict[str, int]:
    """The least rank of each kind that keeps the share of the energy of each of an encoder's matrices."""
    ranks: dict[str, int] = {}
    for kind, matrix in matrices(params):
        energy = np.cumsum(np.square(np.linalg.svd(matrix, compute_uv=False)))
        least = int(np.searchsorted(energy, share * energy[-1]) + 1) if energy[-1] > 0.0 else 1
        ranks[kind] = max(ranks.get(kind, 1), least)
    return ranks


def matrices(tree: Mapping[Any, Any], name: str = '') -> Iterator[tuple[str, np.ndarray]]:
    """The kernels of layers and the token table, each layer's alone, with their kinds."""
    for key, node in tree.items():
        if isinstance(node, Mapping):
            yield from matrices(node, str(key))
        elif name in RANK_KINDS and key in ('kernel', 'embedding'):
            for matrix in node.reshape(-1, *node.shape[-2:]):
                if matrix.size:
                    yield name, matrix


def leaves(tree: Mapping[Any, Any]) -> Iterator[np.ndarray]:
    """The arrays of nested dicts."""
    for node in tree.values():
        if isinstance(node, Mapping):
            yield from leaves(node)
        else:
            yield node
