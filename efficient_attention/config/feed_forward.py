"""Fields of the feed-forward sub-layer, a part of the config group `model`."""

import dataclasses
from typing import Any

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import EXPORTED, marked
from efficient_attention.config.score import ScoreConfig
from efficient_attention.errors import require

ACTIVATIONS = ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid', 'relu', 'silu')


@dataclasses.dataclass(frozen=True)
class FeedForwardConfig(ScoreConfig):
    """The feed-forward sub-layer of a layer.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    feed_forward: bool = True  # False = layers have no such sub-layer
    feed_forward_width: int = 0  # F; 0 = 4 x width
    # positions computed at a time in the feed-forward layer; 0 = all at once
    feed_forward_chunk: int = marked(EXPORTED, default=0)
    feed_forward_bias: bool = True  # biases of the feed-forward layer; T5 has none
    feed_forward_gate: bool = False  # activation(x W_gate) * x W_up in place of activation(x W_up) (T5 1.1)
    feed_forward_dropout_rate: float = 0.0  # on the activations between its two products (T5, BART)
    # 'gelu_tanh' (BERT, ALBERT) | 'gelu_erf' (ELECTRA, BART) | 'gelu_sigmoid' | 'relu' | 'silu', called swish (Marian)
    activation: str = 'gelu_tanh'

    def __post_init__(self) -> None:
        ScoreConfig.__post_init__(self)
        object.__setattr__(self, 'feed_forward_width', self.feed_forward_width or 4 * self.width)
        if not self.feed_forward:
            self._check_unread()
        require(self.feed_forward_width >= 1, 'model.feed_forward_width', self.feed_forward_width, 'at least 1')
        require(self.feed_forward_chunk >= 0, 'model.feed_forward_chunk', self.feed_forward_chunk, '0 or more')
        check_within('model.feed_forward_dropout_rate', self.feed_forward_dropout_rate, 0, 1, high_is_open=True)
        has_chunks = self.feed_forward_chunk > 0 and self.feed_forward_dropout_rate > 0
        allowed = '0 with model.feed_forward_dropout_rate'
        require(not has_chunks, 'model.feed_forward_chunk', self.feed_forward_chunk, allowed)
        check_one_of('model.activation', self.activation, ACTIVATIONS)

    def _check_unread(self) -> None:
        unread: dict[str, Any] = {
            'feed_forward_width': 4 * self.width,
            'feed_forward_chunk': 0,
            'feed_forward_bias': True,
        }
        unread |= {'feed_forward_gate': False, 'feed_forward_dropout_rate': 0.0}
        for name, default in unread.items():
            allowed = f'{default!r} with model.feed_forward False, which has no such sub-layer'
            require(getattr(self, name) == default, f'model.{name}', getattr(self, name), allowed)
