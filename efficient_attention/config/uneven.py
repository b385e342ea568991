"""Fields of layers that differ in size, a part of the config group `model`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.config.fields import EXPORTED, read_by
from efficient_attention.config.output import OutputConfig
from efficient_attention.errors import require


@dataclasses.dataclass(frozen=True)
class UnevenConfig(OutputConfig):
    """Heads and feed-forward units of each layer, where pruning has left other numbers in each.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # heads of each layer (of sharing 'all' of the one), such as (4, 0, 12), each as wide as before; () = `heads`
    layer_heads: tuple[int, ...] = read_by('pretraining', 'fine_tuning', default=(), marks=(EXPORTED,))
    # likewise its feed-forward units; () = `feed_forward_width`
    layer_units: tuple[int, ...] = read_by('pretraining', 'fine_tuning', default=(), marks=(EXPORTED,))

    @property
    def is_uneven(self) -> bool:
        """Whether layers have numbers of heads or units of their own."""
        return bool(self.layer_heads or self.layer_units)

    def check_uneven(self, count: int, others: Mapping[str, tuple[Any, Any]]) -> None:
        """Raises InputError where the numbers do not fit so many layers with parameters, or are not served.

        `others` are fields of the stack: what they are, and what they must be.
        """
        asked = 'layer_heads' if self.layer_heads else 'layer_units'
        for name, most in (('layer_heads', self.heads), ('layer_units', self.feed_forward_width)):
            sizes = getattr(self, name)
            allowed = f'{count} numbers from 0 to {most}, one for each layer with parameters of its own'
            fits = not sizes or (len(sizes) == count and all(0 <= size <= most for size in sizes))
            require(fits, f'model.{name}', sizes, allowed)
        if self.layer_units:
            require(self.feed_forward, 'model.layer_units', self.layer_units, 'empty without model.feed_forward')
        own = {'cell': 'none', 'relative': 'none', 'score': 'dot', 'global_tokens': 0, 'directions_apart': False}
        served = {name: (getattr(self, name), needed) for name, needed in own.items()} | dict(others)
        for name, (found, needed) in served.items():
            require(found == needed, f'model.{name}', found, f'{needed!r} with model.{asked}')
        require(len(self.mechanisms) == 1, 'model.attention', self.attention, f'one mechanism with model.{asked}')
        if self.layer_heads:
            allowed = 'a mechanism that is the same for every head, whatever their number, with model.layer_heads'
            require(not differs_by_head(self.mechanisms[0], self.heads), 'model.attention', self.attention, allowed)
        learned = self.mechanisms[0].learned_operands(self.heads, self.head_width)
        allowed = f'a mechanism that learns no arrays of its own with model.{asked}'
        require(not learned, 'model.attention', self.attention, allowed)


def differs_by_head(mechanism: Mechanism, heads: int) -> bool:
    """Whether heads have patterns of their own, or draw at random for all of them together."""
    pattern = getattr(mechanism, 'pattern', None)
    forms = {pattern.for_head(head, heads) for head in range(heads)} if isinstance(pattern, Pattern) else set()
    return len(forms) > 1 or mechanism.draws.for_all_heads
