"""Fields of one transformer layer, a part of the config group `model`."""

import dataclasses

import jax.numpy as jnp

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import EXPORTED, marked
from efficient_attention.config.relative import RelativeConfig
from efficient_attention.errors import require

ACTIVATIONS = ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid', 'relu')
NORMS = ('post', 'pre')
NORM_KINDS = ('layer', 'rms')
KERNEL_INITS = ('fixed', 'fan_in')
DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class LayerConfig(RelativeConfig):
    """Shape and numerics of a layer; defaults are BERT's (Devlin et al. 2018, arXiv 1810.04805, and its released code).

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    feed_forward_width: int = 0  # F; 0 = 4 x width
    # positions computed at a time in the feed-forward layer; 0 = all at once
    feed_forward_chunk: int = marked(EXPORTED, default=0)
    feed_forward_bias: bool = True  # biases of the feed-forward layer; T5 has none
    feed_forward_gate: bool = False  # activation(x W_gate) * x W_up in place of activation(x W_up) (T5 1.1)
    feed_forward_dropout_rate: float = 0.0  # on the activations between its two products (T5, BART)
    activation: str = 'gelu_tanh'  # 'gelu_tanh' (BERT, ALBERT) | 'gelu_erf' (ELECTRA) | 'gelu_sigmoid' | 'relu'
    norm: str = 'post'  # normalise after the residual sum ('post', BERT) or before each sub-layer ('pre')
    # 'layer' normalisation | 'rms' = division by the root of the mean square alone (T5)
    norm_kind: str = 'layer'
    norm_epsilon: float = 1e-12  # added to the variance
    dropout_rate: float = 0.1  # on each sub-layer's output and on the embeddings
    init_std: float = 0.02  # standard deviation of the truncated normal that weights start from
    # of matrices: 'fixed' = init_std | 'fan_in' = 1 / sqrt(inputs), of queries without scaled_logits 1 / sqrt(inputs K)
    kernel_init: str = 'fixed'
    # of activations and matrix products; parameters and statistics are always float32
    dtype: str = marked(EXPORTED, default='float32')

    def __post_init__(self) -> None:
        RelativeConfig.__post_init__(self)
        object.__setattr__(self, 'feed_forward_width', self.feed_forward_width or 4 * self.width)
        require(self.feed_forward_width >= 1, 'model.feed_forward_width', self.feed_forward_width, 'at least 1')
        require(0.0 <= self.dropout_rate < 1.0, 'model.dropout_rate', self.dropout_rate, 'in [0, 1)')
        check_within('model.feed_forward_dropout_rate', self.feed_forward_dropout_rate, 0, 1, high_is_open=True)
        has_chunks = self.feed_forward_chunk > 0 and self.feed_forward_dropout_rate > 0
        allowed = '0 with model.feed_forward_dropout_rate'
        require(not has_chunks, 'model.feed_forward_chunk', self.feed_forward_chunk, allowed)
        require(self.feed_forward_chunk >= 0, 'model.feed_forward_chunk', self.feed_forward_chunk, '0 or more')
        check_within('model.init_std', self.init_std, 0, low_is_open=True)
        check_within('model.norm_epsilon', self.norm_epsilon, 0)
        check_one_of('model.activation', self.activation, ACTIVATIONS)
        check_one_of('model.norm', self.norm, NORMS)
        check_one_of('model.norm_kind', self.norm_kind, NORM_KINDS)
        check_one_of('model.kernel_init', self.kernel_init, KERNEL_INITS)
        check_one_of('model.dtype', self.dtype, DTYPES)

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of activations and matrix products."""
        return jnp.dtype(self.dtype)
