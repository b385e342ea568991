"""What one transformer layer is made of: the fields that every module reads."""

import dataclasses
import math

import jax.numpy as jnp

from efficient_attention.attention.attend import BACKENDS
from efficient_attention.attention.mechanism import Mechanism, model_needs
from efficient_attention.attention.text_form import parse_mechanism
from efficient_attention.errors import InputError
from efficient_attention.field_checks import check_one_of, check_within

ACTIVATIONS = ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid', 'relu')
NORMS = ('post', 'pre')
DTYPES = ('float32', 'bfloat16')
RELATIVE = ('none', 'alibi', 't5', 'tupe', 'tupe_r', 'transformer_xl')
BUCKETED = ('t5', 'tupe_r')  # those with a table by the distance of query and key
UNTIED = ('tupe', 'tupe_r')  # those with a product of positions of their own beside that of contents


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
    attention_backend: str = 'auto'  # 'auto' | 'reference' | 'dense' | 'blocked' | 'jax_nn' | 'cudnn'
    attention_bias: bool = True  # biases in the query, key, value and output projections; Reformer has none
    shared_qk: bool = False  # one projection for queries and keys, keys of unit length; LSH needs it
    global_tokens: int = 0  # most tokens of a row that data may mark as global; above 0 adds their projections
    rotary: bool = False  # rotate queries and keys by position (Su et al. 2021, arXiv 2104.09864)
    # What positions add to the logits: 'none' | 'alibi' | 't5' | 'tupe' | 'tupe_r' | 'transformer_xl'.
    relative: str = 'none'
    relative_buckets: int = 32  # rows of the table of 't5' and 'tupe_r'; both directions share them in an encoder
    relative_max_distance: int = 128  # positions from which on all distances share a row
    relative_shared_biases: bool = True  # of 'transformer_xl': one u and v for all layers, or one for each
    clamp_length: int = 0  # of 'transformer_xl': positions from which on all distances count as this one; 0 = none
    same_length: bool = False  # with memory: each query reads as many keys as memory is long, not the whole segment too
    relative_cls_reset: bool = True  # 'tupe', 'tupe_r': position 0 of an encoder's text, [CLS], has no place
    activation: str = 'gelu_tanh'  # 'gelu_tanh' (BERT, ALBERT) | 'gelu_erf' (ELECTRA) | 'gelu_sigmoid' | 'relu'
    norm: str = 'post'  # normalise after the residual sum ('post', BERT) or before each sub-layer ('pre')
    norm_epsilon: float = 1e-12  # added to the variance
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
        if self.global_tokens and not all(mechanism.has_logits for mechanism in self.mechanisms):
            raise InputError(
                f'model.global_tokens is {self.global_tokens}; model.attention {self.attention!r} has none'
            )
        check_relative(self)
        for mechanism in self.mechanisms:
            mechanism.check_heads(self.heads)
            has_keys = self.shared_qk or not mechanism.normalises_keys
            has_dropout = mechanism.has_dropout or self.attention_dropout_rate == 0.0
            if not (has_keys and has_dropout):
                name = type(mechanism).__name__
                raise InputError(f'model.attention {self.attention!r}: {name} needs {model_needs(mechanism)}')

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms that layers take in turn."""
        return tuple(parse_mechanism(text) for text in self.attention.split(';'))

    @property
    def reads_length(self) -> bool:
        """Whether padding at the end of a row may change what its tokens read."""
        return any(mechanism.reads_length for mechanism in self.mechanisms)

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by beside attention's 1 / sqrt(K).

        Untied positions add a second product to the logits and halve both variances (Ke et al. 2020, equation 7).
        """
        return math.sqrt(0.5) if self.relative in UNTIED else 1.0

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of activations and matrix products."""
        return jnp.dtype(self.dtype)


def check_relative(config: LayerConfig) -> None:
    """Raises InputError where the fields of relative positions are out of range, or have nobody who reads them."""
    kind = config.relative
    check_one_of('model.relative', kind, RELATIVE)
    if kind != 'none' and not all(mechanism.has_logits for mechanism in config.mechanisms):
        raise InputError(f'model.relative is {kind!r}; attention {config.attention!r} takes no bias on its logits')
    if kind != 'none' and config.global_tokens:
        raise InputError(f"model.relative is {kind!r}; it must be 'none' with model.global_tokens")
    readers: dict[str, tuple[str, ...]] = {
        'relative_buckets': BUCKETED,
        'relative_max_distance': BUCKETED,
        'relative_cls_reset': UNTIED,
        'relative_shared_biases': ('transformer_xl',),
        'clamp_length': ('transformer_xl',),
    }
    for name, kinds in readers.items():
        value, default = getattr(config, name), getattr(LayerConfig, name)
        is_read = f'{default!r} with model.relative {kind!r}, which does not read it'
        require(kind in kinds or value == default, f'model.{name}', value, is_read)
    require(config.clamp_length >= 0, 'model.clamp_length', config.clamp_length, '0 or more')
    even = kind != 'transformer_xl' or config.width % 2 == 0
    require(even, 'model.width', config.width, 'even for the sinusoids of transformer_xl')
    count, most = config.relative_buckets, config.relative_max_distance
    require(count >= 4 and count % 2 == 0, 'model.relative_buckets', count, 'even and at least 4')
    require(most > count // 2, 'model.relative_max_distance', most, 'above half of model.relative_buckets')


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raises an InputError that names the field, its value and what is allowed, unless `holds`."""
    if not holds:
        raise InputError(f'{field} is {value!r}; it must be {allowed}')
