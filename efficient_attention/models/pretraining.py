"""The model that is pretrained: an encoder with a masked-LM head and, with sentence pairs, a pooler and a pair head."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import is_split, spread
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.heads import MaskedLMHead, PairHead, Pooler


class PretrainingModel(nnx.Module):
    """BERT or ALBERT with its pretraining heads."""

    def __init__(self, config: ModelConfig, *, has_pairs: bool, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.masked_lm = MaskedLMHead(config, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs) if has_pairs else None
        self.pair = PairHead(config, rngs=rngs) if has_pairs else None

    def encode(self, batch: dict[str, Array], *, rng: Array | None = None, step: Array | int = 0) -> Array:
        """The encoder's vectors [B, L, D] for a batch of examples."""
        return self.encoder(
            batch['tokens'],
            batch['segments'],
            token_types_BL=batch['token_types'],
            positions_BL=batch['positions'],
            rng=rng,
            step=step,
        )

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
