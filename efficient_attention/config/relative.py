"""Fields of relative positions in attention, a part of the config group `model`."""

import dataclasses
import math
from typing import Any

from efficient_attention.config.attention import AttentionConfig
from efficient_attention.config.checks import check_one_of
from efficient_attention.errors import InputError, require

RELATIVE = ('none', 'alibi', 't5', 'tupe', 'tupe_r', 'transformer_xl')
BUCKETED = ('t5', 'tupe_r')  # those with a table by the distance of query and key
UNTIED = ('tupe', 'tupe_r')  # those with a product of positions of their own beside that of contents
KINDS = 'kinds'  # key of a field's metadata: the values of `relative` that read it; all where it is missing


def read_with(*kinds: str, default: Any) -> Any:
    """A dataclass field that these kinds of relative attention alone read; with others it must have its default."""
    return dataclasses.field(default=default, metadata={KINDS: kinds})


@dataclasses.dataclass(frozen=True)
class RelativeConfig(AttentionConfig):
    """Attention whose logits depend on the positions of query and key too.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # What positions add to the logits: 'none' | 'alibi' | 't5' | 'tupe' | 'tupe_r' | 'transformer_xl'.
    relative: str = 'none'
    # rows of the table of 't5' and 'tupe_r'; both directions share them in an encoder
    relative_buckets: int = read_with(*BUCKETED, default=32)
    relative_max_distance: int = read_with(*BUCKETED, default=128)  # positions from which on all distances share a row
    # of 'transformer_xl': one u and v for all layers, or one for each
    relative_shared_biases: bool = read_with('transformer_xl', default=True)
    # of 'transformer_xl': positions from which on all distances count as this one; 0 = none
    clamp_length: int = read_with('transformer_xl', default=0)
    same_length: bool = False  # with memory: each token reads M keys, itself among them, not M and its whole segment
    # 'tupe', 'tupe_r': [CLS], an encoder's position 0, has learned terms in place of positions
    relative_cls_reset: bool = read_with(*UNTIED, default=True)

    def __post_init__(self) -> None:
        AttentionConfig.__post_init__(self)
        kind = self.relative
        check_one_of('model.relative', kind, RELATIVE)
        if kind != 'none' and not all(mechanism.form.has_logits for mechanism in self.mechanisms):
            raise InputError(f'model.relative is {kind!r}; attention {self.attention!r} takes no bias on its logits')
        if kind != 'none' and self.global_tokens:
            raise InputError(f"model.relative is {kind!r}; it must be 'none' with model.global_tokens")
        for field in dataclasses.fields(RelativeConfig):
            value, is_read = getattr(self, field.name), kind in field.metadata.get(KINDS, RELATIVE)
            allowed = f'{field.default!r} with model.relative {kind!r}, which does not read it'
            require(is_read or value == field.default, f'model.{field.name}', value, allowed)
        fits = self.scaled_logits or kind != 'transformer_xl'
        require(fits, 'model.scaled_logits', False, "True with model.relative 'transformer_xl'")
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
        return self.logit_scale * math.sqrt(0.5) if self.relative in UNTIED else self.logit_scale
