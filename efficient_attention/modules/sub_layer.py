"""The sub-layers of a layer in their order, and the residual sum that joins them."""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.config.layer import LayerConfig

# Where an attention finds its keys and values.
ITSELF = 'itself'  # the input of the sub-layer
MEMORY = 'memory'  # what the layer read before this segment, in front of its input; where the call brings one
OTHER = 'other'  # another sequence, such as an encoder's output

# What decoding keeps of an attention.
GROWING = 'growing'  # the keys of all tokens that were read
FIXED = 'fixed'  # the keys of another sequence, computed once
STATE = 'state'  # of a recurrent sub-layer: its state

# The vectors that run through a layer, [B, L, D] each: one of a plain stack, two of a reversible one.
Streams = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class SubLayer:
    """One step of a layer.

    Args:
        name: of its module in the layer, which parameters have in their paths.
        keys_from: an attention's sources of keys and values, in the order in which they are joined; () = no attention.
        dropout: folded into the layer's key for dropout on the sub-layer's output; no two uses in a layer share one.
        inner_dropout: likewise for dropout on an attention's weights, a recurrent state, or the feed-forward layer's
            activations.
        is_recurrent: whether it reads its input position by position, with a state.
        is_constant: whether nothing is left of it but a bias.
    """

    name: str
    keys_from: tuple[str, ...] = ()
    dropout: int = 0
    inner_dropout: int = 0
    is_recurrent: bool = False
    is_constant: bool = False

    @property
    def norm(self) -> str:
        """The name of its norm in the layer."""
        return f'{self.name}_norm'

    @property
    def cache(self) -> str:
        """What decoding keeps: `GROWING`, `FIXED` or `STATE`; '' for nothing."""
        if self.is_recurrent:
            return STATE
        return FIXED if OTHER in self.keys_from else GROWING if self.keys_from else ''


ATTENTION = SubLayer('attention', keys_from=(MEMORY, ITSELF), dropout=1, inner_dropout=0)
FEED_FORWARD = SubLayer('feed_forward', dropout=2, inner_dropout=5)
RECURRENT = SubLayer('recurrent', is_recurrent=True, dropout=1, inner_dropout=0)
CROSS_ATTENTION = SubLayer('cross_attention', keys_from=(OTHER,), dropout=4, inner_dropout=3)

SELF_ATTENTION_LAYER = (ATTENTION, FEED_FORWARD)
CROSS_ATTENTION_LAYER = (ATTENTION, CROSS_ATTENTION, FEED_FORWARD)  # Vaswani et al. 2017, arXiv 1706.03762, section 3.1


def sub_layers_of(config: LayerConfig, *, reads_other: bool = False) -> tuple[SubLayer, ...]:
    """The sub-layers of a config's layers; with `reads_other` those that read another sequence."""
    mixing = ATTENTION if config.cell == 'none' else RECURRENT
    return (mixing, *([CROSS_ATTENTION] * reads_other), *([FEED_FORWARD] * config.feed_forward))


def begin(x_BLD: Array, *, is_reversible: bool) -> Streams:
    """The streams before the first layer; two are float32 whatever `x`'s dtype, see models/reversible.py."""
    return (x_BLD.astype(jnp.float32),) * 2 if is_reversible else (x_BLD,)


def end(streams: Streams, dtype: DTypeLike) -> Array:
    """What a stack gives after its last layer: its stream, or the mean of both, [B, L, D]."""
    return (streams[0] if len(streams) == 1 else 0.5 * (streams[0] + streams[1])).astype(dtype)
