"""The pretraining model: an encoder with a masked-LM head and, for sentence pairs, a pooler and a pair-classification
head.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import is_axis_sharded, shard_activations, shard_count
from efficient_attention.attention.request import segments_of_batch
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder, EncoderOptions
from efficient_attention.models.layer_activations import DistillationActivations
from efficient_attention.modules.embedding_table import EmbeddingTable, table_logits
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS
from efficient_attention.modules.layer_constructors import linear, make_norm
from efficient_attention.modules.pooling import Pooler

# The batch arrays [B, P], which have one entry per masked position.
PREDICTIONS = ('masked_positions', 'masked_tokens', 'masked_weights', 'unigram_losses')


class MaskedLMHead(nnx.Module):
    """The masked-LM head: a dense layer D -> E, activation and norm, then logits by the tied token table and a bias."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.activation = config.activation
        self.transform = linear(config, config.width, config.embedding_width, rngs)
        self.norm = make_norm(config, config.embedding_width, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32))

    @jax.named_scope('masked_lm_head')
    def __call__(self, x_BPD: Array, table: EmbeddingTable) -> Array:
        """Returns float32 logits [B, P, V] of the P masked tokens, from their hidden states [B, P, D] and the token
        embedding table [V, E].
        """
        x_BPE = self.norm(ACTIVATION_FUNCTIONS[self.activation](self.transform(x_BPD)))
        table_VE = table.table_vectors(x_BPE.dtype)
        logits_BPV = shard_activations(table_logits(x_BPE, table_VE), 'BLV')
        return logits_BPV + self.bias[...][None, None]


class PairHead(nnx.Module):
    """The head for sentence pairs: two float32 logits per row for next-sentence (NSP) or sentence-order prediction
    (SOP).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = linear(config, config.width, 2, rngs, in_float32=True)

    @jax.named_scope('pair_head')
    def __call__(self, pooled_BD: Array) -> Array:
        """Returns logits [B, 2] for the pair of sentences; label 1 means a random (NSP) or swapped (SOP) second
        sentence.
        """
        return self.dense(pooled_BD)


class PretrainingModel(nnx.Module):
    """BERT or ALBERT with its pretraining heads."""

    def __init__(self, config: ModelConfig, *, has_pairs: bool, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.masked_lm = MaskedLMHead(config, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs) if has_pairs else None
        self.pair = PairHead(config, rngs=rngs) if has_pairs else None

    def outputs(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """Returns float32 logits of a batch: 'masked_lm' [B, P, V] for its P masked tokens and, if there is a pair
        head, 'pair' [B, 2].
        """
        x_BLD = self.encoder(batch['tokens'], segments_of_batch(batch), **encoder_options(batch, rng, step))
        return self.head_outputs(x_BLD, batch)

    def with_hidden_states(
        self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0
    ) -> tuple[dict[str, Array], DistillationActivations]:
        """Returns the logits, and the activations by which distillation compares student and teacher."""
        x_BLD, inside = self.encoder.with_hidden_states(
            batch['tokens'], segments_of_batch(batch), **encoder_options(batch, rng, step)
        )
        return self.head_outputs(x_BLD, batch), inside

    def head_outputs(self, x_BLD: Array, batch: dict[str, Array]) -> dict[str, Array]:
        """Returns the logits of all pretraining heads from the encoder's hidden states."""
        logits_BPV = self.masked_logits(x_BLD, pad_predictions_to_devices(batch)['masked_positions'])
        return {'masked_lm': logits_BPV} | ({} if self.pair is None else {'pair': self.pair_logits(x_BLD)})

    def masked_logits(self, x_BLD: Array, masked_positions_BP: Array) -> Array:
        """Returns float32 logits [B, P, V] at the P masked positions only, which are about a seventh of all positions.

        If a mesh shards the positions of a row, each device selects the masked positions in its shard; their sum gives
        all P vectors. Then each device computes the head for its share of P, if P divides evenly.
        """
        x_BPD = shard_activations(jnp.take_along_axis(x_BLD, masked_positions_BP[..., None], axis=1), 'BPD')
        if is_axis_sharded('L'):
            x_BPD = shard_activations(x_BPD, 'BLD')  # masked positions are sharded like tokens
        return self.masked_lm(x_BPD, self.encoder.embeddings.token)

    def pair_logits(self, x_BLD: Array) -> Array:
        """Returns float32 logits [B, 2] for the label of the sentence pair in each row."""
        if self.pooler is None or self.pair is None:
            raise ValueError('this model was made without a sentence-pair head')
        return self.pair(self.pooler(x_BLD[:, 0]))


def encoder_options(batch: dict[str, Array], rng: Array | None, step: Array | int) -> EncoderOptions:
    """Returns the encoder's keyword arguments from a batch: token types, positions, PRNG key and step."""
    return {
        'token_types_BL': batch['token_types'],
        'positions_BL': batch['positions'],
        'rng': rng,
        'step': step,
    }


def pad_predictions_to_devices(batch: dict[str, Array]) -> dict[str, Array]:
    """Returns the batch with added masked positions of weight 0. All devices that share a row then get equally many
    masked positions.
    """
    missing = -batch['masked_positions'].shape[1] % shard_count('L')
    if not missing:
        return batch
    return batch | {name: jnp.pad(batch[name], ((0, 0), (0, missing))) for name in PREDICTIONS if name in batch}
