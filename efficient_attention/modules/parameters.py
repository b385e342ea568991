"""The initial values of parameters, and layers that hold them in float32 and compute in the config's dtype."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.table import Table


def weight_init(config: LayerConfig) -> Callable[..., jax.Array]:
    """A normal of standard deviation `init_std`, cut at two deviations, as in BERT's code."""
    return jax.nn.initializers.truncated_normal(config.init_std)


def linear(
    config: LayerConfig,
    inputs: int,
    outputs: int,
    rngs: nnx.Rngs,
    *,
    axes: str = 'DE',
    use_bias: bool = True,
    in_float32: bool = False,
) -> Dense:
    """A dense layer [..., inputs] -> [..., outputs].

    Args:
        config: initial values and dtype.
        inputs: width of what it reads.
        outputs: width of what it gives.
        rngs: of the initial values.
        axes: the letters of the kernel's axes, by which it lies on a mesh.
        use_bias: whether it adds a bias.
        in_float32: its result is not rounded to the config's dtype.
    """
    return Dense(
        inputs,
        outputs,
        axes=axes,
        use_bias=use_bias,
        dtype=config.compute_dtype,
        param_dtype=jnp.float32,
        preferred_element_type=jnp.float32 if in_float32 else None,
        kernel_init=weight_init(config),
        rngs=rngs,
    )


def layer_norm(config: LayerConfig, width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer normalisation with scale and bias; statistics in float32 whatever the input."""
    return nnx.LayerNorm(
        width, epsilon=config.norm_epsilon, dtype=config.compute_dtype, param_dtype=jnp.float32, rngs=rngs
    )


def embedding(config: LayerConfig, rows: int, width: int, rngs: nnx.Rngs, *, axes: str = 'LE') -> Table:
    """A table of `rows` vectors; `axes` are the letters by which it lies on a mesh."""
    return Table(rows, width, axes=axes, **table_options(config), rngs=rngs)


def table_options(config: LayerConfig) -> dict[str, Any]:
    """The options that all tables of vectors have, as keyword arguments of `nnx.Embed`."""
    return {'dtype': config.compute_dtype, 'param_dtype': jnp.float32, 'embedding_init': weight_init(config)}
