"""Initialises parameters and constructs basic layers with float32 parameters that compute in the config's dtype."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.embedding_table import EmbeddingTable


def truncated_normal_init(config: LayerConfig) -> Callable[..., jax.Array]:
    """Returns a normal initialiser with standard deviation `init_std`, truncated at two standard deviations, as in
    BERT's code.
    """
    return jax.nn.initializers.truncated_normal(config.init_std)


def kernel_init(config: LayerConfig, fan_in_std: float) -> Callable[..., jax.Array]:
    """Returns the initialiser of a matrix: a normal distribution with standard deviation `fan_in_std` if the config
    says 'fan_in', otherwise `truncated_normal_init`.
    """
    return jax.nn.initializers.normal(fan_in_std) if config.kernel_init == 'fan_in' else truncated_normal_init(config)


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
    """Returns a new dense layer [..., inputs] -> [..., outputs], initialised as the config says.

    Args:
        config: initialisation and dtype.
        inputs: input width.
        outputs: output width.
        rngs: generators of the initial values.
        axes: letters of the kernel's axes, by which it is sharded over a mesh.
        use_bias: whether the layer adds a bias.
        in_float32: whether the result stays float32, whatever the config's dtype.
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
    """Returns a new layer norm with scale and bias; for 'rms', an RMS norm with only a scale.

    Statistics are float32, whatever the dtype of the input. Sources: Ba et al. 2016, arXiv 1607.06450; Zhang and
    Sennrich 2019, arXiv 1910.07467.
    """
    kind = {'layer': nnx.LayerNorm, 'rms': nnx.RMSNorm}[config.norm_kind]
    return kind(width, epsilon=config.norm_epsilon, dtype=config.compute_dtype, param_dtype=jnp.float32, rngs=rngs)


def embedding(config: LayerConfig, rows: int, width: int, rngs: nnx.Rngs, *, axes: str = 'LE') -> EmbeddingTable:
    """Returns a new embedding table of `rows` vectors; the letters `axes` determine how it is sharded over a mesh."""
    dtype, draw = config.compute_dtype, truncated_normal_init(config)
    table = EmbeddingTable(rows, width, dtype=dtype, param_dtype=jnp.float32, embedding_init=draw, rngs=rngs)
    table.axes = axes
    return table
