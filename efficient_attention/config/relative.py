"""What the positions of query and key add to the logits of attention."""

import dataclasses
import math

from efficient_attention.config.attention import AttentionConfig
from efficient_attention.config.checks import check_one_of
from efficient_attention.errors import InputError, require

RELATIVE = ('none', 'alibi', 't5', 'tupe', 'tupe_r', 'transformer_xl')
BUCKETED = ('t5', 'tupe_r')  # those with a table by the distance of query and key
UNTIED = ('tupe', 'tupe_r')  # those with a product of positions of their own beside that of contents


@dataclasses.dataclass(frozen=True)
class RelativeConfig(AttentionConfig):
    """Attention whose logits depend on the positions of query and key too.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # What positions add to the logits: 'none' | 'alibi' | 't5' | 'tupe' | 'tupe_r' | 'transformer_xl'.
    relative: str = 'none'
    relative_buckets: int = 32  # rows of the table of 't5' and 'tupe_r'; both directions share them in an encoder
    relative_max_distance: int = 128  # positions from which on all distances share a row
    relative_shared_biases: bool = True  # of 'transformer_xl': one u and v for all layers, or one for each
    clamp_length: int = 0  # of 'transformer_xl': positions from which on all distances count as this one; 0 = none
    same_length: bool = False  # with memory: each token reads M keys, itself among them, not M and its whole segment
    relative_cls_reset: bool = (
        True  # 'tupe', 'tupe_r': [CLS], an encoder's position 0, has learned terms in place of positions
    )

    def __post_init__(self) -> None:
        AttentionConfig.__post_init__(self)
        kind = self.relative
        check_one_of('model.relative', kind, RELATIVE)
        if kind != 'none' and not all(mechanism.has_logits for mechanism in self.mechanisms):
            raise InputError(f'model.relative is {kind!r}; attention {self.attention!r} takes no bias on its logits')
        if kind != 'none' and self.global_tokens:
            raise InputError(f"model.relative is {kind!r}; it must be 'none' with model.global_tokens")
        readers: dict[str, tuple[str, ...]] = {
            'relative_buckets': BUCKETED,
            'relative_max_distance': BUCKETED,
            'relative_cls_reset': UNTIED,
            'relative_shared_biases': ('transformer_xl',),
            'clamp_length': ('transformer_xl',),
        }
        for name, kinds in readers.items():
            value, default = getattr(self, name), getattr(RelativeConfig, name)
            is_read = f'{default!r} with model.relative {kind!r}, which does not read it'
            require(kind in kinds or value == default, f'model.{name}', value, is_read)
        require(self.clamp_length >= 0, 'model.clamp_length', self.clamp_length, '0 or more')
        even = kind != 'transformer_xl' or self.width % 2 == 0
        require(even, 'model.width', self.width, 'even for the sinusoids of transformer_xl')
        count, most = self.relative_buckets, self.relative_max_distance
        require(count >= 4 and count % 2 == 0, 'model.relative_buckets', count, 'even and at least 4')
        require(most > count // 2, 'model.relative_max_distance', most, 'above half of model.relative_buckets')

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by beside attention's 1 / sqrt(K).

        Untied positions add a second product to the logits and halve both variances (Ke et al. 2020, equation 7).
        """
        return math.sqrt(0.5) if self.relative in UNTIED else 1.0
