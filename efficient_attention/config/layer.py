"""Fields of one transformer layer, a part of the config group `model`."""

import dataclasses

import jax.numpy as jnp

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import EXPORTED, marked
from efficient_attention.config.relative import RelativeConfig
from efficient_attention.errors import require

ACTIVATIONS = ('gelu_tanh', 'gelu_erf', 'gelu_sigmoid', 'relu')
NORMS = ('post', 'pre')
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
    activation: str = 'gelu_tanh'  # 'gelu_tanh' (BERT, ALBERT) | 'gelu_erf' (ELECTRA) | 'gelu_sigmoid' | 'relu'
    norm: str = 'post'  # normalise after the residual sum ('post', BERT) or before each sub-layer ('pre')
    norm_epsilon: float = 1e-12  # added to the variance
    dropout_rate: float = 0.1  # on each sub-layer's output and on the embeddings
    init_std: float = 0.02  # standard deviation of the truncated normal that weights start from
    # of activations and matrix products; parameters and statistics are always float32
    dtype: str = marked(EXPORTED, default='float32')

    def __post_init__(self) -> None:
        RelativeConfig.__post_init__(self)
        object.__setattr__(self, 'feed_forward_width', self.feed_forward_width or 4 * self.width)
        require(self.feed_forward_width >= 1, 'model.feed_forward_width', self.feed_forward_width, 'at least 1')
        require(0.0 <= self.dropout_rate < 1.0, 'model.dropout_rate', self.dropout_rate, 'in [0, 1)')
        require(self.feed_forward_chunk >= 0, 'model.feed_forward_chunk', self.feed_forward_chunk, '0 or more')
        check_within('model.init_std', self.init_std, 0, low_is_open=True)
        check_within('model.norm_epsilon', self.norm_epsilon, 0)
        check_one_of('model.activation', self.activation, ACTIVATIONS)
        check_one_of('model.norm', self.norm, NORMS)
        check_one_of('model.dtype', self.dtype, DTYPES)

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of activations and matrix products."""
        return jnp.dtype(self.dtype)
