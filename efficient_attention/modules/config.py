"""What one transformer layer is made of: the fields that every module reads."""

import dataclasses

import jax.numpy as jnp

from efficient_attention.attention.attend import BACKENDS
from efficient_attention.attention.mechanisms import Mechanism, Softmax
from efficient_attention.attention.text_form import parse_mechanism
from efficient_attention.errors import InputError
from efficient_attention.field_checks import check_one_of, check_within

ACTIVATIONS = ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid', 'relu')
NORMS = ('post', 'pre')
DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class LayerConfig:
    """Shape and numerics of a layer; defaults are BERT's (Devlin et al. 2018, arXiv 1810.04805, and its released code).

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    width: int = 128  # D
    heads: int = 2  # H
    head_width: int = 0  # K; 0 = width / heads
    feed_forward_width: int = 0  # F; 0 = 4 x width
    attention: str = 'full'  # a mechanism's text form, or several with ';', which the layers take in turn
    attention_backend: str = 'auto'
    shared_qk: bool = False  # one projection for queries and keys, keys of unit length; LSH needs it
    global_tokens: int = 0  # most tokens of a row that data may mark as global; above 0 adds their projections
    rotary: bool = False  # rotate queries and keys by position (Su et al. 2021, arXiv 2104.09864)
    activation: str = 'gelu_tanh'  # 'gelu_tanh' (BERT, ALBERT) | 'gelu_erf' (ELECTRA) | 'gelu_sigmoid' | 'relu'
    norm: str = 'post'  # normalise after the residual sum ('post', BERT) or before each sub-layer ('pre')
    norm_epsilon: float = 1e-12
    dropout_rate: float = 0.1  # on each sub-layer's output and on the embeddings
    attention_dropout_rate: float = 0.1  # on attention weights
    feed_forward_chunk: int = 0  # positions computed at a time in the feed-forward layer; 0 = all at once
    init_std: float = 0.02  # standard deviation of the truncated normal that weights start from
    dtype: str = 'float32'  # of activations and matrix products; parameters and statistics are always float32

    def __post_init__(self) -> None:
        require(self.heads >= 1, 'model.heads', self.heads, 'at least 1')
        whole = self.width % self.heads == 0
        require(
            whole or self.head_width > 0,
            'model.heads',
            self.heads,
            f'a divisor of model.width {self.width}, or set model.head_width',
        )
        object.__setattr__(self, 'head_width', self.head_width or self.width // self.heads)
        object.__setattr__(self, 'feed_forward_width', self.feed_forward_width or 4 * self.width)
        for name in ('width', 'head_width', 'feed_forward_width'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        for name in ('dropout_rate', 'attention_dropout_rate'):
            require(0.0 <= getattr(self, name) < 1.0, f'model.{name}', getattr(self, name), 'in [0, 1)')
        require(self.feed_forward_chunk >= 0, 'model.feed_forward_chunk', self.feed_forward_chunk, '0 or more')
        require(
            not self.rotary or self.head_width % 2 == 0,
            'model.head_width',
            self.head_width,
            'even for rotary positions',
        )
        check_within('model.init_std', self.init_std, 0, low_is_open=True)
        check_within('model.norm_epsilon', self.norm_epsilon, 0)
        check_one_of('model.activation', self.activation, ACTIVATIONS)
        check_one_of('model.norm', self.norm, NORMS)
        check_one_of('model.dtype', self.dtype, DTYPES)
        check_one_of('model.attention_backend', self.attention_backend, ('auto', *BACKENDS))
        require(self.global_tokens >= 0, 'model.global_tokens', self.global_tokens, '0 or more')
        if self.global_tokens and not all(isinstance(own, Softmax) for own in self.mechanisms):
            raise InputError(
                f'model.global_tokens is {self.global_tokens}; model.attention {self.attention!r} has none'
            )
        for mechanism in self.mechanisms:
            mechanism.check_heads(self.heads)
            require(
                mechanism.has_dropout or self.attention_dropout_rate == 0.0,
                'model.attention_dropout_rate',
                self.attention_dropout_rate,
                f'0 for {type(mechanism).__name__} attention, which has no weights to drop',
            )
            require(
                self.shared_qk or not mechanism.normalises_keys,
                'model.shared_qk',
                self.shared_qk,
                f'True for {type(mechanism).__name__} attention',
            )

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms that layers take in turn."""
        return tuple(parse_mechanism(text) for text in self.attention.split(';'))

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of activations and matrix products."""
        return jnp.dtype(self.dtype)


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raises an InputError that names the field, its value and what is allowed, unless `holds`."""
    if not holds:
        raise InputError(f'{field} is {value!r}; it must be {allowed}')
