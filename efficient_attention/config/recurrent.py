"""Fields of a recurrent sub-layer, a part of the config group `model`."""

import dataclasses

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.feed_forward import FeedForwardConfig
from efficient_attention.config.fields import CHANGEABLE, marked, read_by
from efficient_attention.errors import require
from efficient_attention.recurrence.cells import CELLS

CHOICES = ('none', *CELLS)


@dataclasses.dataclass(frozen=True)
class RecurrentConfig(FeedForwardConfig):
    """What mixes positions in a layer where that is not self-attention.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'none' = layers mix positions by attention | 'tanh' | 'gru' | 'lstm' | 'sru1' | 'sru2' = by a recurrent cell
    cell: str = 'none'
    bidirectional: bool = False  # of an encoder: a second cell reads the row from its end
    # of both directions: each has a stack of its own over its half of the width and never reads the other's states, so
    # that a language model may have both (ELMo)
    directions_apart: bool = read_by('language_modelling', 'fine_tuning', default=False)
    # U of each direction; 0 = the width, or half of it in each of two. Where all are not the width, a matrix maps them
    state_width: int = 0
    state_dropout_rate: float = 0.0  # on the state, one mask for all positions of a row (Gal & Ghahramani 2016)
    # positions whose products and states are kept for gradients at a time, the others computed again; 0 = of all
    recurrent_chunk: int = marked(CHANGEABLE, default=0)

    def __post_init__(self) -> None:
        FeedForwardConfig.__post_init__(self)
        check_one_of('model.cell', self.cell, CHOICES)
        check_within('model.state_dropout_rate', self.state_dropout_rate, 0, 1, high_is_open=True)
        require(self.recurrent_chunk >= 0, 'model.recurrent_chunk', self.recurrent_chunk, '0 or more')
        require(self.state_width >= 0, 'model.state_width', self.state_width, '0 or more')
        if self.cell == 'none':
            for name in ('bidirectional', 'state_width', 'state_dropout_rate', 'recurrent_chunk'):
                value, default = getattr(self, name), getattr(RecurrentConfig, name)
                require(value == default, f'model.{name}', value, f'{default!r} without model.cell')
            return
        fits = not self.bidirectional or self.state_width or self.width % 2 == 0
        require(bool(fits), 'model.width', self.width, 'even for model.bidirectional, or set model.state_width')
        has_matrix = not self.cell.startswith('sru') or not self.state_dropout_rate
        allowed = f'0 with model.cell {self.cell!r}, whose state no matrix reads'
        require(has_matrix, 'model.state_dropout_rate', self.state_dropout_rate, allowed)

    @property
    def units(self) -> int:
        """The width of a recurrent state, U, of each direction."""
        return self.state_width or self.width // (1 + self.bidirectional)
