"""Fields of rounded products, a part of the config group `model`."""

import dataclasses
import re

from efficient_attention.config.checks import check_one_of
from efficient_attention.config.fields import EXPORTED, read_by
from efficient_attention.config.uneven import UnevenConfig
from efficient_attention.errors import InputError, require

QUANTIZATIONS = ('none', 'int8', 'int8_weights')


@dataclasses.dataclass(frozen=True)
class QuantizationConfig(UnevenConfig):
    """Which layers of an encoder compute with 8-bit integers, in training (where they are rounded) as in use.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'int8' = the kernels of dense layers by output, tables by row, and what dense layers read by token |
    # 'int8_weights' = kernels and tables alone | 'none'. Norms, biases, the products of attention and the last dense
    # layer stay float
    quantization: str = read_by('pretraining', 'fine_tuning', default='none', marks=(EXPORTED,))
    # regexes in the paths of layers that stay float too, such as 'feed_forward/down' or 'embeddings/position'
    float_layers: tuple[str, ...] = read_by('pretraining', 'fine_tuning', default=(), marks=(EXPORTED,))

    def __post_init__(self) -> None:
        UnevenConfig.__post_init__(self)
        check_one_of('model.quantization', self.quantization, QUANTIZATIONS)
        if self.quantization == 'none':
            require(not self.float_layers, 'model.float_layers', self.float_layers, 'empty without model.quantization')
            return
        require(self.cell == 'none', 'model.cell', self.cell, "'none' with model.quantization")
        for pattern in self.float_layers:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(
                    f'model.float_layers has {pattern!r}, which is no regular expression: {error}'
                ) from None
