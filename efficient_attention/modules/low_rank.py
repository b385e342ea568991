"""Low-rank dense layers and embedding tables: the full matrix is replaced by a product of two smaller matrices."""

from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.embedding_table import EmbeddingTable
from efficient_attention.modules.layer_constructors import embedding, linear


class LowRankDense(nnx.Module):
    """A dense layer with a low-rank kernel, x A B + b: [..., I] -> [..., r] -> [..., O]."""

    def __init__(self, config: LayerConfig, like: Dense, rank: int, *, rngs: nnx.Rngs) -> None:
        """Creates both factors of the kernel; `like` is the dense layer that they replace."""
        self.left = linear(config, like.in_features, rank, rngs, use_bias=False)
        self.right = linear(config, rank, like.out_features, rngs, use_bias=like.bias is not None)

    def __call__(self, inputs: Float[Array, '... I']) -> Float[Array, '... O']:
        """Returns the inputs multiplied by both factors of the kernel, plus the bias if there is one."""
        return self.right(self.left(inputs))


class LowRankTable(nnx.Module):
    """A low-rank embedding table T P: narrow vectors T [V, r] multiplied by a projection P [r, E].

    The product replaces the vector of a full table, before embeddings are summed and normalised. A factorised embedding
    (ALBERT's `embedding_width`) applies its projection after sum and norm.
    """

    def __init__(self, config: LayerConfig, like: EmbeddingTable, rank: int, *, rngs: nnx.Rngs) -> None:
        """Creates both factors of the table; `like` is the embedding table that they replace."""
        self.table = embedding(config, like.num_embeddings, rank, rngs)
        self.projection = linear(config, rank, like.features, rngs, use_bias=False)

    def __call__(self, inputs: Int[Array, '...']) -> Float[Array, '... E']:
        """Returns the embedding vectors of these row numbers, such as token ids."""
        return self.projection(self.table(inputs))

    def table_vectors(self, dtype: DTypeLike) -> Float[Array, '...']:
        """Returns all embedding vectors of the table, [V, E], in the dtype `dtype`."""
        return self.table.table_vectors(dtype) @ self.projection.float32_kernel().astype(dtype)


def with_low_rank(module: nnx.Module, config: LayerConfig, kinds: tuple[str, ...], rngs: nnx.Rngs) -> None:
    """Replaces the dense layers and embedding tables with these names by low-rank ones, if the config gives a rank for
    them.
    """
    if not isinstance(config, ModelConfig):  # a `LayerConfig` has no field for ranks
        return
    for kind in kinds if config.ranks else ():
        layer = getattr(module, kind)
        if isinstance(layer, Dense) and (rank := config.kernel_rank(kind, layer.in_features, layer.out_features)):
            setattr(module, kind, LowRankDense(config, layer, rank, rngs=rngs))
        if isinstance(layer, EmbeddingTable) and (
            rank := config.kernel_rank(kind, layer.num_embeddings, layer.features)
        ):
            setattr(module, kind, LowRankTable(config, layer, rank, rngs=rngs))
