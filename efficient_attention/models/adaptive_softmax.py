"""Adaptive embeddings and adaptive softmax: split a large vocabulary into clusters by word frequency.

Ids are in order of falling frequency. `adaptive_cutoffs` splits them into a first cluster and tail clusters. Rarer
clusters may have narrower vectors. The first cluster's softmax has one extra entry per tail:

    log p(word) = log p(tail | first) + log p(word | tail)

`objectives/adaptive_softmax_loss.py` computes the loss without the logits of unused tails.

Sources: Grave et al. 2017, arXiv 1609.04309 (softmax); Baevski and Auli 2019, arXiv 1809.10853 (embeddings, widths);
Dai et al. 2019, arXiv 1901.02860 (tails in natural order, a separate first projection in the output layer).
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.embedding_table import EmbeddingTable, table_logits
from efficient_attention.modules.layer_constructors import embedding, linear, truncated_normal_init


class VocabularyCluster(NamedTuple):
    """The parameters for the logits of one vocabulary cluster with n words: x @ projection @ table^T + bias.

    e is the width of the cluster's vectors, at most E.
    """

    table_ne: Array
    projection_Ee: Array | None
    bias_n: Array | None

    def logits(self, x_BLE: Array) -> Array:
        """Returns float32 logits [B, L, n] of the n words in this vocabulary cluster."""
        x_BLe = x_BLE if self.projection_Ee is None else x_BLE @ self.projection_Ee.astype(x_BLE.dtype)
        table_ne = jnp.asarray(self.table_ne, x_BLe.dtype)
        logits_BLn = table_logits(x_BLe, table_ne)
        return logits_BLn if self.bias_n is None else logits_BLn + self.bias_n[None, None]


Bounds = tuple[tuple[int, int], ...]  # (first id, exclusive end) of each vocabulary cluster


class TokenTable(Protocol):
    """The interface of a token embedding table, which embeddings and output layers share."""

    def __call__(self, tokens_BL: Array) -> Array:
        """Returns the embedding vectors [B, L, E] of token ids [B, L]."""
        ...

    def clusters(self, bounds: Bounds) -> list[tuple[Array, Array | None]]:
        """Returns the embedding table [n, e] of each vocabulary cluster and its projection [E, e].

        The projection is None if all clusters have the same width.
        """
        ...


class SingleTokenTable(EmbeddingTable):
    """One embedding table [V, E] for all words, without separate tables per cluster."""

    def clusters(self, bounds: Bounds) -> list[tuple[Array, Array | None]]:
        """Returns the rows of the embedding table that belong to each vocabulary cluster; see `TokenTable`."""
        table_VE = self.table_vectors(self.param_dtype)
        return [(table_VE[start:stop], None) for start, stop in bounds]


class AdaptiveEmbedding(nnx.Module):
    """A word embedding of width E with a table [n_i, E / divisor^i] and a projection to E for each vocabulary cluster
    i.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.bounds = cluster_bounds(config)
        widths = cluster_widths(config)
        sizes = [stop - start for start, stop in self.bounds]
        self.tables = nnx.List(
            [embedding(config, *shape, rngs, axes='VE') for shape in zip(sizes, widths, strict=True)]
        )
        self.projections = nnx.List(
            [linear(config, width, config.embedding_width, rngs, use_bias=False) for width in widths]
        )

    def __call__(self, tokens_BL: Array) -> Array:
        """Returns the embedding vectors [B, L, E] of token ids [B, L].

        Each cluster looks up a vector at every position. The vector is used only where the token is in this cluster.
        """
        x_BLE: Array | float = 0.0
        for (start, stop), table, projection in zip(self.bounds, self.tables, self.projections, strict=True):
            is_inside_BL = (tokens_BL >= start) & (tokens_BL < stop)
            x_BLe = shard_activations(table(jnp.clip(tokens_BL - start, 0, stop - start - 1)), 'BLE')
            x_BLE = x_BLE + shard_activations(projection(jnp.where(is_inside_BL[..., None], x_BLe, 0)), 'BLE')
        return jnp.asarray(x_BLE)

    def clusters(self, bounds: Bounds) -> list[tuple[Array, Array | None]]:  # noqa: ARG002  set by its tables
        """Returns the embedding table and the transposed projection of each vocabulary cluster; see `TokenTable`."""
        pairs = zip(self.tables, self.projections, strict=True)
        return [(table.table_vectors(table.param_dtype), projection.float32_kernel().T) for table, projection in pairs]


class AdaptiveHead(nnx.Module):
    """An adaptive softmax output layer: returns log-probabilities of a vocabulary that is split into clusters.

    With a tied output, it uses the embedding's tables and the tails' projections. Otherwise it has a separate table.
    The first cluster always has a projection of this head.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width, narrow = config.embedding_width, cluster_widths(config)[0]
        self.bounds = cluster_bounds(config)
        self.projection = linear(config, config.width, width, rngs) if width != config.width else None
        # An untied output layer has a separate table. Its name in checkpoints is `own`.
        self.own = None if config.tied_output else token_table(config, rngs)
        has_first = config.tied_output and config.adaptive_divisor > 1
        self.first = linear(config, width, narrow, rngs, use_bias=False) if has_first else None
        self.tails = linear(config, narrow, len(config.adaptive_cutoffs), rngs, use_bias=config.output_bias)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32)) if config.output_bias else None

    def __call__(self, x_BLD: Array, table: TokenTable) -> Array:
        """Returns float32 log-probabilities [B, L, V] of all words."""
        (first, *tails), x_BLE = self.clusters_and_inputs(x_BLD, table)
        log_p_BLn = jax.nn.log_softmax(first.logits(x_BLE))
        words = self.bounds[0][1]
        of_tails = [
            log_p_BLn[..., words + number, None] + jax.nn.log_softmax(tail.logits(x_BLE))
            for number, tail in enumerate(tails)
        ]
        return jnp.concatenate([log_p_BLn[..., :words], *of_tails], axis=-1)

    def clusters_and_inputs(self, x_BLD: Array, table: TokenTable) -> tuple[tuple[VocabularyCluster, ...], Array]:
        """Returns the vocabulary clusters and the vectors [B, L, E] from which their logits are computed.

        The first cluster has one entry per tail after its words.
        """
        return self.clusters(table), x_BLD if self.projection is None else self.projection(x_BLD)

    def clusters(self, table: TokenTable) -> tuple[VocabularyCluster, ...]:
        """Returns the vocabulary clusters. After its words, the first cluster has a softmax entry for each of the other
        clusters (tails).
        """
        arrays = (table if self.own is None else self.own).clusters(self.bounds)
        first, *tails = (
            VocabularyCluster(table_ne, projection_Ee, None if self.bias is None else self.bias[...][start:stop])
            for (table_ne, projection_Ee), (start, stop) in zip(arrays, self.bounds, strict=True)
        )
        return (self.append_tail_entries(first), *tails)

    def append_tail_entries(self, first: VocabularyCluster) -> VocabularyCluster:
        """Returns the first vocabulary cluster, extended by one softmax entry after its words for each of the other
        clusters (tails).
        """
        table_ne = jnp.concatenate([first.table_ne, self.tails.float32_kernel().T])
        projection_Ee = first.projection_Ee if self.first is None else self.first.float32_kernel()
        tails_bias = self.tails.bias
        if first.bias_n is None or tails_bias is None:
            return VocabularyCluster(table_ne, projection_Ee, None)
        return VocabularyCluster(table_ne, projection_Ee, jnp.concatenate([first.bias_n, tails_bias[...]]))


def token_table(config: ModelConfig, rngs: nnx.Rngs) -> SingleTokenTable | AdaptiveEmbedding:
    """Returns the token embedding: one table, or a table per vocabulary cluster if rare words have narrower vectors.

    It maps ids [B, L] to vectors [B, L, E].
    """
    if config.adaptive_divisor > 1:
        return AdaptiveEmbedding(config, rngs=rngs)
    dtype, draw = config.compute_dtype, truncated_normal_init(config)
    shape = config.vocab_size, config.embedding_width
    table = SingleTokenTable(*shape, dtype=dtype, param_dtype=jnp.float32, embedding_init=draw, rngs=rngs)
    table.axes = 'VE'
    return table


def cluster_bounds(config: ModelConfig) -> Bounds:
    """Returns the first token id and the exclusive end of each vocabulary cluster."""
    edges = (0, *config.adaptive_cutoffs, config.vocab_size)
    return tuple(zip(edges, edges[1:], strict=False))


def cluster_widths(config: ModelConfig) -> tuple[int, ...]:
    """Returns the vector width of each vocabulary cluster i = 0, 1, ...: the embedding width divided by divisor^i,
    rounded down.
    """
    clusters = len(config.adaptive_cutoffs) + 1
    return tuple(config.embedding_width // config.adaptive_divisor**number for number in range(clusters))
