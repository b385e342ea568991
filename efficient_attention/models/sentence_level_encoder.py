"""The second level of a hierarchical encoder: layers over the vectors of sentences, pooled to one vector per text.

Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", section 2.2. The first level is an
`Encoder` with one row per sentence, and a `Pooling` of its words.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import apply_final_norm
from efficient_attention.models.layer_stack import Stack
from efficient_attention.modules.layer_constructors import make_norm
from efficient_attention.modules.layer_context import Context, fold_into_key
from efficient_attention.modules.pooling import Pooling
from efficient_attention.modules.positions import sinusoid


class SentenceLevelEncoder(nnx.Module):
    """The sentence level of a hierarchical encoder: maps the S sentence vectors of each text to one vector, [B, S, D]
    -> [B, D].
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> None:
        self.config = sentence_config(config, head.sentence_layers)
        self.stack = Stack(self.config, rngs=rngs)
        self.norm = make_norm(config, config.width, rngs) if config.norm == 'pre' else None
        self.pooling = Pooling(config, head.pooling, rngs=rngs)

    def __call__(self, x_BSD: Array, segments_BS: Array, *, rng: Array | None = None) -> Array:
        """Returns one vector per text [B, D], from its sentence vectors; segment 0 marks missing sentences.

        `rng` (a PRNG key, or one per row) enables dropout.
        """
        return self.pooling(self.encode(x_BSD, segments_BS, rng=rng), segments_BS)

    def encode(self, x_BSD: Array, segments_BS: Array, *, rng: Array | None = None) -> Array:
        """Returns the sentence vectors [B, S, D] after the layers of the sentence level, before pooling.

        Sinusoids encode the order of sentences, unless the config has no positions.
        """
        places_BS = jnp.broadcast_to(jnp.arange(x_BSD.shape[1]), x_BSD.shape[:2])
        if self.config.positions != 'none':
            x_BSD = x_BSD + sinusoid(places_BS, self.config.width).astype(x_BSD.dtype)
        x_BSD = self.stack(shard_activations(x_BSD, 'BLD'), Context(segments_BS, places_BS, fold_into_key(rng, 1)))
        return apply_final_norm(self.config, self.norm, x_BSD, rng)


def sentence_config(config: ModelConfig, layers: int) -> ModelConfig:
    """Returns the config of the sentence-level layers: like the encoder's layers, but with full attention.

    The layers share parameters if the encoder's layers do. In a bidirectional recurrent encoder, each direction reads
    the outputs of both directions of the layer before.
    """
    return dataclasses.replace(
        config,
        layers=layers,
        layer_heads=(),
        layer_units=(),
        attention='full',
        global_tokens=0,
        directions_apart=False,
        stack='plain',
        sharing='none' if config.is_stacked else 'all',
        layer_groups=1,
        inner_layers=1,
    )


def flatten_sentences(
    batch: dict[str, Array], rng: Array | None, names: tuple[str, ...]
) -> tuple[dict[str, Array], Array | None]:
    """Returns a batch of sentences [B, S, L] as rows [B S, L], with a PRNG key for each row, derived from the keys
    [B].
    """
    flat = {name: jax.lax.collapse(batch[name], 0, 2) for name in names if name in batch}
    if rng is None:
        return flat, None
    numbers = jnp.arange(batch['tokens'].shape[1])
    keys = jax.vmap(lambda key: jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers))(rng)
    return flat, keys.reshape(-1)
