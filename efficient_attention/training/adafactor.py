"""Adafactor's scaling of gradients: the second moments of a matrix are kept as one number a row and one a column.

    V_ij = R_i C_j / mean(R),  U = G / sqrt(V),  U /= max(1, rms(U)),  U *= max(0.001, rms(W))

for each matrix W of at least `FACTORED_FROM` a side (Shazeer and Stern 2018, arXiv 1804.04235, algorithm 4); smaller
ones and vectors keep their second moments. The moments of step t decay by 1 - t^-0.8, and there is no first moment.
"""

import re

import jax
import optax

from efficient_attention.models.sharding import path_name

FACTORED_FROM = 128  # the shorter side of a matrix whose moments are factored, as in T5's code
LEAST_SCALE = 1e-3  # of a parameter, so that one drawn as zeros moves


def scale_by_adafactor(stacked: str | None) -> optax.GradientTransformation:
    """The updates of Adafactor before the learning rate, which is relative to the size of each parameter.

    Args:
        stacked: as in `make_optimizer`; each layer of these parameters is scaled as a parameter of its own.
    """
    scale = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=FACTORED_FROM),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(LEAST_SCALE),
    )
    if stacked is None:
        return scale

    def kinds(params: optax.Params) -> optax.Params:
        def kind(path: tuple, _: jax.typing.ArrayLike) -> str:
            return 'stacked' if re.search(stacked, path_name(path)) else 'alone'

        return jax.tree_util.tree_map_with_path(kind, params)

    return optax.partition({'alone': scale, 'stacked': of_each_layer(scale)}, kinds)


def of_each_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """`inner` along the first axis of every parameter, as if each layer had its own."""

    def init(params: optax.Params) -> optax.OptState:
        return jax.vmap(inner.init)(params) if jax.tree.leaves(params) else optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        return jax.vmap(inner.update)(updates, state, params) if jax.tree.leaves(updates) else (updates, state)

    return optax.GradientTransformation(init, update)
