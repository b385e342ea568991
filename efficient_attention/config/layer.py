"""Fields of one transformer layer, a part of the config group `model`."""

import dataclasses

import jax.numpy as jnp

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.compression import CompressionConfig
from efficient_attention.config.fields import EXPORTED, marked
from efficient_attention.errors import require

NORMS = ('post', 'pre', 'none')
NORM_KINDS = ('layer', 'rms')
KERNEL_INITS = ('fixed', 'fan_in')
DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class LayerConfig(CompressionConfig):
    """Shape and numerics of a layer; defaults are BERT's (Devlin et al. 2018, arXiv 1810.04805, and its released code).

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # normalise after the residual sum ('post', BERT), before each sub-layer ('pre'), or nowhere in the layers ('none')
    norm: str = 'post'
    residual: bool = True  # add a sub-layer's input to its output; stacked cells of the first papers do not
    # 'layer' normalisation | 'rms' = division by the root of the mean square alone (T5)
    norm_kind: str = 'layer'
    norm_epsilon: float = 1e-12  # added to the variance
    dropout_rate: float = 0.1  # on each sub-layer's output and on the embeddings
    final_dropout: bool = False  # dropout after a pre-norm stack's last norm too (T5)
    # standard deviation of the truncated normal that weights start from; with kernel_init 'fan_in' of tables alone
    init_std: float = 0.02
    # of matrices: 'fixed' = init_std | 'fan_in' = 1 / sqrt(inputs), of queries without scaled_logits 1 / sqrt(inputs K)
    kernel_init: str = 'fixed'
    # of activations and matrix products; parameters and statistics are always float32
    dtype: str = marked(EXPORTED, default='float32')

    def __post_init__(self) -> None:
        CompressionConfig.__post_init__(self)
        require(0.0 <= self.dropout_rate < 1.0, 'model.dropout_rate', self.dropout_rate, 'in [0, 1)')
        check_within('model.init_std', self.init_std, 0, low_is_open=True)
        check_within('model.norm_epsilon', self.norm_epsilon, 0)
        check_one_of('model.norm', self.norm, NORMS)
        require(self.norm == 'pre' or not self.final_dropout, 'model.final_dropout', True, "False without norm 'pre'")
        check_one_of('model.norm_kind', self.norm_kind, NORM_KINDS)
        check_one_of('model.kernel_init', self.kernel_init, KERNEL_INITS)
        check_one_of('model.dtype', self.dtype, DTYPES)

    @property
    def compute_dtype(self) -> jnp.dtype:
        """The dtype of activations and matrix products."""
        return jnp.dtype(self.dtype)
