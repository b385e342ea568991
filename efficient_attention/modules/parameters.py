"""The initial values of parameters, and layers that hold them in float32 and compute in the config's dtype."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.table import Table


def weight_init(config: LayerConfig) -> Callable[..., jax.Array]:
    """A normal of standard deviation `init_std`, cut at two deviations, as in BERT's code."""
    return jax.nn.initializers.truncated_normal(config.init_std)


def kernel_init(config: LayerConfig, fan_in_std: float) -> Callable[..., jax.Array]:
    """The initial values of a matrix: those of all weights, or a normal that goes by its inputs."""
    return jax.nn.initializers.normal(fan_in_std) if config.kernel_init == 'fan_in' else weight_init(config)


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
    layer = Dense(
        inputs,
        outputs,
        use_bias=use_bias,
        dtype=config.compute_dtype,
        param_dtype=jnp.float32,
        preferred_element_type=jnp.float32 if in_float32 else None,
        kernel_init=kernel_init(config, 1.0 / math.sqrt(inputs)),
        rngs=rngs,
    )
    layer.axes = axes
    return layer


def make_norm(config: LayerConfig, width: int, rngs: nnx.Rngs) -> nnx.LayerNorm | nnx.RMSNorm:
    """Layer normalisation with scale and bias, or 'rms' with a scale alone; statistics in float32 whatever the input.

    Sources: Ba et al. 2016, arXiv 1607.06450; Zhang and Sennrich 2019, arXiv 1910.07467.
    """
    kind = {'layer': nnx.LayerNorm, 'rms': nnx.RMSNorm}[config.norm_kind]
    return kind(width, epsilon=config.norm_epsilon, dtype=config.compute_dtype, param_dtype=jnp.float32, rngs=rngs)


def embedding(config: LayerConfig, rows: int, width: int, rngs: nnx.Rngs, *, axes: str = 'LE') -> Table:
    """A table of `rows` vectors; `axes` are the letters by which it lies on a mesh."""
    dtype, draw = config.compute_dtype, weight_init(config)
    table = Table(rows, width, dtype=dtype, param_dtype=jnp.float32, embedding_init=draw, rngs=rngs)
    table.axes = axes
    return table
