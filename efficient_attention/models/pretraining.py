"""The model that is pretrained: an encoder with a masked-LM head and, with sentence pairs, a pooler and a pair head."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import is_split, parts_of, spread
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.heads import MaskedLMHead, PairHead, Pooler
from efficient_attention.models.taps import Inside

PREDICTIONS = ('masked_positions', 'masked_tokens', 'masked_weights', 'unigram_losses')  # the arrays [B, P] of a batch


class PretrainingModel(nnx.Module):
    """BERT or ALBERT with its pretraining heads."""

    def __init__(self, config: ModelConfig, *, has_pairs: bool, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.masked_lm = MaskedLMHead(config, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs) if has_pairs else None
        self.pair = PairHead(config, rngs=rngs) if has_pairs else None

    def encode(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> Array:
        """The encoder's vectors [B, L, D] for a batch of examples."""
        return self.encoder(batch['tokens'], batch['segments'], **read(batch, rng, step))

    def outputs(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> dict[str, Array]:
        """float32 logits of a batch: 'masked_lm' [B, P, V], and 'pair' [B, 2] where there is such a head."""
        return self.of_vectors(self.encode(batch, rng=rng, step=step), batch)

    def with_inside(
        self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0
    ) -> tuple[dict[str, Array], Inside]:
        """The `outputs`, and what a student and its teacher are compared by."""
        x_BLD, inside = self.encoder.with_inside(batch['tokens'], batch['segments'], **read(batch, rng, step))
        return self.of_vectors(x_BLD, batch), inside

    def of_vectors(self, x_BLD: Array, batch: dict[str, Array]) -> dict[str, Array]:
        """The logits from the encoder's vectors."""
        logits_BPV = self.masked_logits(x_BLD, in_equal_shares(batch)['masked_positions'])
        return {'masked_lm': logits_BPV} | ({} if self.pair is None else {'pair': self.pair_logits(x_BLD)})

    def masked_logits(self, x_BLD: Array, masked_positions_BP: Array) -> Array:
        """float32 logits [B, P, V] at the masked positions alone, about a seventh of all positions.

        Where a mesh splits rows, each of the devices that share one picks what it holds, and their sum is all of P.
        Then each keeps its share of P, if they divide it, so that the head is computed once.
        """
        x_BPD = spread(jnp.take_along_axis(x_BLD, masked_positions_BP[..., None], axis=1), 'BPD')
        if is_split('L'):
            x_BPD = spread(x_BPD, 'BLD')  # predictions are spread as tokens are
        return self.masked_lm(x_BPD, self.encoder.embeddings.token)

    def pair_logits(self, x_BLD: Array) -> Array:
        """float32 logits [B, 2] of the sentence-pair label."""
        if self.pooler is None or self.pair is None:
            raise ValueError('this model was made without a sentence-pair head')
        return self.pair(self.pooler(x_BLD[:, 0]))


def read(batch: dict[str, Array], rng: Array | None, step: Array | int) -> dict[str, Any]:
    """What the encoder reads beside tokens and segments."""
    read = {'token_types_BL': batch['token_types'], 'positions_BL': batch['positions']}
    return {**read, 'rng': rng, 'step': step}


def in_equal_shares(batch: dict[str, Array]) -> dict[str, Array]:
    """The batch with predictions of weight 0 added to each row, until the devices that share it divide their number."""
    missing = -batch['masked_positions'].shape[1] % parts_of('L')
    if not missing:
        return batch
    return batch | {name: jnp.pad(batch[name], ((0, 0), (0, missing))) for name in PREDICTIONS if name in batch}
