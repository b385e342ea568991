"""Adafactor's scaling of gradients, which stores the second moments of a matrix as one number per row and one per
column.

    V_ij = R_i C_j / mean(R),  U = G / sqrt(V),  U /= max(1, rms(U)),  U *= max(0.001, rms(W))

The formula holds for each matrix W with both sides of at least `FACTORED_FROM` (Shazeer and Stern 2018, arXiv
1804.04235, algorithm 4). Smaller matrices and vectors store a second moment per element. The moments of step t decay by
1 - t^-0.8. There is no first moment.
"""

import re

import jax
import optax

from efficient_attention.models.sharding import path_name

# As in T5's code, the second moments of a matrix are factored if both of its dimensions are at least this large.
FACTORED_FROM = 128
# An update is scaled by its parameter's RMS, but at least by this number, so that zero parameters still change.
LEAST_SCALE = 1e-3


def scale_by_adafactor(stacked: str | None) -> optax.GradientTransformation:
    """Returns Adafactor's gradient transformation without the learning rate. The size of each update is relative to the
    size of its parameter.

    Args:
        stacked: as in `make_optimizer`; each layer of these parameters is scaled as a separate parameter.
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

    return optax.partition({'alone': scale, 'stacked': vmap_over_layers(scale)}, kinds)


def vmap_over_layers(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a transformation that applies `inner` to each layer separately, along the first axis of parameters that
    stack all layers.
    """

    def init(params: optax.Params) -> optax.OptState:
        return jax.vmap(inner.init)(params) if jax.tree.leaves(params) else optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        return jax.vmap(inner.update)(updates, state, params) if jax.tree.leaves(updates) else (updates, state)

    return optax.GradientTransformation(init, update)
