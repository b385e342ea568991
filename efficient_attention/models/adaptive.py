"""Large vocabularies in clusters: narrower vectors for rarer words, and logits of a cluster only where it is needed.

Ids are in the order of falling frequency and `adaptive_cutoffs` cut them into a first cluster and tails. The first
cluster's softmax has one more entry for each tail:

    log p(word) = log p(tail | first) + log p(word | tail)

Sources: Grave et al. 2017, arXiv 1609.04309 (softmax); Baevski and Auli 2019, arXiv 1809.10853 (embeddings, widths);
Dai et al. 2019, arXiv 1901.02860 (tails in natural order, the output's first projection its own).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.parameters import embedding, linear


class Part(NamedTuple):
    """What gives the logits of one cluster: x @ projection @ table transposed + bias."""

    table_nE: Array
    projection_EE: Array | None
    bias_n: Array | None

    def logits(self, x_BLE: Array) -> Array:
        """float32 [B, L, n]."""
        if self.projection_EE is not None:
            x_BLE = x_BLE @ self.projection_EE.astype(x_BLE.dtype)
        table_nE = jnp.asarray(self.table_nE, x_BLE.dtype)
        logits_BLn = float32_einsum('BLE,nE->BLn', x_BLE, table_nE)
        return logits_BLn if self.bias_n is None else logits_BLn + self.bias_n[None, None]


class AdaptiveEmbedding(nnx.Module):
    """Vectors of width E from a table [n_i, E / divisor^i] and a projection for each cluster i."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.bounds = cluster_bounds(config)
        widths = cluster_widths(config)
        sizes = [stop - start for start, stop in self.bounds]
        self.tables = nnx.List([embedding(config, *shape, rngs) for shape in zip(sizes, widths, strict=True)])
        self.projections = nnx.List(
            [linear(config, width, config.embedding_width, rngs, use_bias=False) for width in widths]
        )

    def __call__(self, tokens_BL: Array) -> Array:
        """[B, L, E]; each cluster is looked up at every place and counts at those of its own tokens."""
        x_BLE: Array | float = 0.0
        for (start, stop), table, projection in zip(self.bounds, self.tables, self.projections, strict=True):
            is_own_BL = (tokens_BL >= start) & (tokens_BL < stop)
            rows_BLE = table(jnp.clip(tokens_BL - start, 0, stop - start - 1))
            x_BLE = x_BLE + projection(jnp.where(is_own_BL[..., None], rows_BLE, 0))
        return jnp.asarray(x_BLE)


class AdaptiveHead(nnx.Module):
    """Log-probabilities of the vocabulary by clusters, with the token tables or tables of its own.

    The tails' projections are the token embedding's where the output is tied; the first cluster's is always the head's.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width, narrow = config.embedding_width, cluster_widths(config)[0]
        self.bounds = cluster_bounds(config)
        self.projection = linear(config, config.width, width, rngs) if width != config.width else None
        self.own = None if config.tied_output else token_table(config, rngs)
        has_first = config.tied_output and config.adaptive_divisor > 1
        self.first = linear(config, width, narrow, rngs, use_bias=False) if has_first else None
        self.tails = linear(config, narrow, len(config.adaptive_cutoffs), rngs, use_bias=config.output_bias)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32)) if config.output_bias else None

    def __call__(self, x_BLD: Array, table: nnx.Embed | AdaptiveEmbedding) -> Array:
        """float32 log-probabilities [B, L, V]."""
        first, *tails = self.parts(table)
        x_BLE = self.narrow(x_BLD)
        log_p_BLn = jax.nn.log_softmax(first.logits(x_BLE))
        words = self.bounds[0][1]
        of_tails = [
            log_p_BLn[..., words + number, None] + jax.nn.log_softmax(tail.logits(x_BLE))
            for number, tail in enumerate(tails)
        ]
        return jnp.concatenate([log_p_BLn[..., :words], *of_tails], axis=-1)

    def narrow(self, x_BLD: Array) -> Array:
        """What the parts read, [B, L, E]."""
        return x_BLD if self.projection is None else self.projection(x_BLD)

    def parts(self, table: nnx.Embed | AdaptiveEmbedding) -> tuple[Part, ...]:
        """The first cluster, with an entry for each tail after its words, and the tails."""
        parts = [
            Part(rows, projection, None if self.bias is None else self.bias[...][start:stop])
            for (rows, projection), (start, stop) in zip(
                cluster_arrays(table if self.own is None else self.own, self.bounds), self.bounds, strict=True
            )
        ]
        return (self.with_tails(parts[0]), *parts[1:])

    def with_tails(self, first: Part) -> Part:
        """The first cluster's part with the entries of the tails after its words."""
        table_nE = jnp.concatenate([first.table_nE, self.tails.kernel[...].T])
        projection_EE = first.projection_EE if self.first is None else self.first.kernel[...]
        tails_bias = self.tails.bias
        if first.bias_n is None or tails_bias is None:
            return Part(table_nE, projection_EE, None)
        return Part(table_nE, projection_EE, jnp.concatenate([first.bias_n, tails_bias[...]]))


def cluster_arrays(
    table: nnx.Embed | AdaptiveEmbedding, bounds: tuple[tuple[int, int], ...]
) -> list[tuple[Array, Array | None]]:
    """Each cluster's rows, and the matrix from width E to theirs where clusters have widths of their own."""
    if isinstance(table, nnx.Embed):
        return [(table.embedding[...][start:stop], None) for start, stop in bounds]
    return [
        (rows.embedding[...], projection.kernel[...].T)
        for rows, projection in zip(table.tables, table.projections, strict=True)
    ]


def token_table(config: ModelConfig, rngs: nnx.Rngs) -> nnx.Embed | AdaptiveEmbedding:
    """Ids [B, L] to vectors [B, L, E]: one table, or one for each cluster where their widths differ."""
    if config.adaptive_divisor > 1:
        return AdaptiveEmbedding(config, rngs=rngs)
    return embedding(config, config.vocab_size, config.embedding_width, rngs)


def cluster_bounds(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """The first id of each cluster and the one after its last."""
    edges = (0, *config.adaptive_cutoffs, config.vocab_size)
    return tuple(zip(edges, edges[1:], strict=False))


def cluster_widths(config: ModelConfig) -> tuple[int, ...]:
    """The width of each cluster's vectors, E / divisor^i rounded down."""
    clusters = len(config.adaptive_cutoffs) + 1
    return tuple(config.embedding_width // config.adaptive_divisor**number for number in range(clusters))
