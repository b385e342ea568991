"""Transformer-XL's relative positions: computes the term that a layer adds to its logits for each distance of query and
key.
"""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.relative import Relative
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer_constructors import linear, truncated_normal_init
from efficient_attention.modules.layer_context import ContentAndDistanceBiases, SharedTerms
from efficient_attention.modules.positions import sinusoid


class DistanceBiases(nnx.Module):
    """Transformer-XL's learned biases u and v, of one layer or shared by all layers."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        shape = config.heads, config.head_width
        self.content = nnx.Param(truncated_normal_init(config)(rngs.params(), shape))
        self.distance = nnx.Param(truncated_normal_init(config)(rngs.params(), shape))

    def __call__(self) -> ContentAndDistanceBiases:
        """Returns Transformer-XL's biases: u for contents and v for distances."""
        return ContentAndDistanceBiases(self.content[...], self.distance[...])

    def shared_terms(self, positions_BL: Array | None) -> SharedTerms:  # noqa: ARG002  distances do not depend on positions
        """Returns Transformer-XL's biases u and v as terms that all layers share; `positions_BL` is ignored.

        The parameter `positions_BL` exists because `PositionBias` has the same method.
        """
        return SharedTerms(distance_biases=self())


class DistanceTerm(nnx.Module):
    """Transformer-XL's relative term of one layer: logits_ij = ((q_i + u) k_j + (q_i + v) W sinusoid(i - j)) / sqrt(K).

    Source: Dai et al. 2019, arXiv 1901.02860, section 3.3. With `clamp_length` = c, distances above c count as c.
    Unlike in the released code, no dropout acts on the sinusoids. One mask for all rows would depend on how a batch is
    sharded.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.projection = linear(
            config, config.width, config.heads * config.head_width, rngs, axes='DI', use_bias=False
        )
        self.biases = None if config.relative_shared_biases else DistanceBiases(config, rngs=rngs)

    def __call__(
        self, q_BLHK: Array, distances: int, shared: ContentAndDistanceBiases | None
    ) -> tuple[Array, Relative]:
        """Returns the queries plus u, and Transformer-XL's relative term for the distances 0 ... `distances` - 1.

        `shared` holds u and v if all layers share them.
        """
        config = self.config
        biases = shared if self.biases is None else self.biases()
        if biases is None:
            raise ValueError("relative 'transformer_xl' with shared biases needs the argument `distance_biases`")
        rows = min(distances, config.clamp_length + 1) if config.clamp_length else distances
        sinusoids_PD = sinusoid(jnp.arange(rows), config.width).astype(config.compute_dtype)
        table_PI = self.projection(shard_activations(sinusoids_PD, 'PD'))
        table_PHK = shard_activations(table_PI.reshape(rows, config.heads, config.head_width), 'PHK')
        content_BLHK, distance_BLHK = (q_BLHK + bias_HK.astype(q_BLHK.dtype)[None, None] for bias_HK in biases)
        return content_BLHK, Relative(distance_BLHK, table_PHK)
