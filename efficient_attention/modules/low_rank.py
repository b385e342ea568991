"""A dense layer, and a table, whose matrix is the product of two with fewer numbers together."""

from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.parameters import embedding, linear
from efficient_attention.modules.table import Table


class LowRank(nnx.Module):
    """x A B + b: [..., I] -> [..., r] -> [..., O]."""

    def __init__(self, config: LayerConfig, like: Dense, rank: int, *, rngs: nnx.Rngs) -> None:
        """`like`: the dense layer in whose place it stands."""
        self.left = linear(config, like.in_features, rank, rngs, use_bias=False)
        self.right = linear(config, rank, like.out_features, rngs, use_bias=like.bias is not None)

    def __call__(self, inputs: Float[Array, '... I']) -> Float[Array, '... O']:
        """The two products, and the bias where there is one."""
        return self.right(self.left(inputs))


class LowRankTable(nnx.Module):
    """Rows of T P: a table of narrow vectors [V, r] and a matrix [r, E] that makes them wide.

    The product stands where a whole table's vector would, before sums and norms; a factorised embedding (ALBERT's
    `embedding_width`) has its matrix behind them.
    """

    def __init__(self, config: LayerConfig, like: Table, rank: int, *, rngs: nnx.Rngs) -> None:
        """`like`: the table in whose place it stands."""
        self.table = embedding(config, like.num_embeddings, rank, rngs)
        self.projection = linear(config, rank, like.features, rngs, use_bias=False)

    def __call__(self, inputs: Int[Array, '...']) -> Float[Array, '... E']:
        """The vectors of these rows."""
        return self.projection(self.table(inputs))

    def vectors(self, dtype: DTypeLike) -> Float[Array, '...']:
        """All of them [V, E] in this dtype, as products read them."""
        return self.table.vectors(dtype) @ self.projection.weights().astype(dtype)


def with_low_rank(module: nnx.Module, config: LayerConfig, kinds: tuple[str, ...], rngs: nnx.Rngs) -> None:
    """Puts products of two in the place of a module's dense layers and tables of these names, where ranks say so."""
    if not isinstance(config, ModelConfig):  # of a layer alone
        return
    for kind in kinds if config.ranks else ():
        layer = getattr(module, kind)
        if isinstance(layer, Dense) and (rank := config.rank_of(kind, layer.in_features, layer.out_features)):
            setattr(module, kind, LowRank(config, layer, rank, rngs=rngs))
        if isinstance(layer, Table) and (rank := config.rank_of(kind, layer.num_embeddings, layer.features)):
            setattr(module, kind, LowRankTable(config, layer, rank, rngs=rngs))
