"""Fields of compressed segment memory, a part of the config group `model`."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.fields import read_by
from efficient_attention.config.source_reading import SourceReadingConfig
from efficient_attention.errors import require

COMPRESSIONS = ('none', 'convolution', 'mean', 'max')
TASK = 'language_modelling'


@dataclasses.dataclass(frozen=True)
class CompressionConfig(SourceReadingConfig):
    """What becomes of the tokens that leave a decoder's segment memory (Rae et al. 2019, arXiv 1911.05507).

    Every field but its default needs `compression`. That there is a memory, and that segments divide by the rate, is
    checked in config/memory_checks.py.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'none' = they are forgotten | they go on in fewer slots: 'convolution' = learned, its kernel as wide as its stride
    # | 'mean' | 'max' = pooled
    compression: str = read_by(TASK, default='none')
    # slots of each layer's compressed memory, in front of its memory; one is a position, as a token is
    compressed_length: int = read_by(TASK, default=0)
    compression_rate: int = read_by(TASK, default=4)  # tokens that become one slot
    # of 'convolution': the factor of its loss, how far attention to its slots is from attention to the tokens
    reconstruction_weight: float = read_by(TASK, default=0.0)

    def __post_init__(self) -> None:
        SourceReadingConfig.__post_init__(self)
        check_one_of('model.compression', self.compression, COMPRESSIONS)
        check_within('model.compressed_length', self.compressed_length, 0)
        check_within('model.compression_rate', self.compression_rate, 1)
        check_within('model.reconstruction_weight', self.reconstruction_weight, 0)
        for field in dataclasses.fields(CompressionConfig):
            value, is_own = getattr(self, field.name), field.name in CompressionConfig.__annotations__
            is_read = not is_own or self.compression != 'none' or value == field.default
            require(is_read, f'model.{field.name}', value, f'{field.default!r} without model.compression')
        is_learned, weight = self.compression == 'convolution', self.reconstruction_weight
        allowed = "above 0 with model.compression 'convolution', whose kernel nothing else trains"
        require(weight > 0 or not is_learned, 'model.reconstruction_weight', weight, allowed)
        allowed = f'0 with model.compression {self.compression!r}, which has no parameters'
        require(weight == 0 or is_learned, 'model.reconstruction_weight', weight, allowed)
