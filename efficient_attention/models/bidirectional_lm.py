"""A bidirectional language model (ELMo): predicts each token once from the earlier tokens and once from the later
tokens.
"""

from typing import Unpack

from flax import nnx
from jax import Array

from efficient_attention.attention.request import AnySegments
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.bidirectional_stacks import direction_config
from efficient_attention.models.decoder import OutputHead, make_head
from efficient_attention.models.embeddings import Embeddings
from efficient_attention.models.encoder import Encoder, EncoderOptions


class TwoWayLanguageModel(nnx.Module):
    """A bidirectional language model: an encoder with two independent reading directions, and one output layer for both
    directions (Peters et al. 2018, section 3.1).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.encoder = Encoder(config, rngs=rngs)
        self.head: OutputHead = make_head(direction_config(config), rngs)

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings, which both reading directions share."""
        return self.encoder.embeddings

    def hidden(self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[EncoderOptions]) -> Array:
        """Returns the hidden states [B, L, D]; each half of a vector belongs to one reading direction.

        The first half at position t depends on tokens 0 ... t, the second half on tokens t ... L - 1.
        """
        return self.encoder(tokens_BL, segments_BL, **options)

    def logits(self, hidden_BLE: Array) -> Array:
        """Returns float32 logits [B, L, V] of the next token in one reading direction, from the hidden states of this
        direction.
        """
        return self.head(hidden_BLE, self.embeddings.token)
