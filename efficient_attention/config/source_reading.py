"""How an encoder-decoder of recurrent layers reads its source, a part of the config group `model`."""

import dataclasses

from efficient_attention.config.checks import check_one_of
from efficient_attention.config.fields import read_by
from efficient_attention.config.recurrent import RecurrentConfig
from efficient_attention.errors import require

READINGS = ('layers', 'state', 'before', 'after')
INITIAL_STATES = ('zeros', 'copy', 'map', 'map_backward')
READOUTS = ('none', 'maxout')
TASK = 'text_to_text'


@dataclasses.dataclass(frozen=True)
class SourceReadingConfig(RecurrentConfig):
    """What a decoder knows of its source. Every field but its default needs `cell`.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    # 'layers' = a cross-attention in every layer | 'state' = nothing but the first states | 'before' = one attention
    # asked by the last layer's state before a step, whose cells read what it gives (Bahdanau et al. 2014) | 'after' =
    # one asked by what the last layer gives after it, joined with that for the output layer (Luong et al. 2015)
    source_reading: str = read_by(TASK, default='layers')
    # of 'after': the first layer also reads what was joined at the position before
    input_feeding: bool = read_by(TASK, default=False)
    # of the decoder: 'zeros' | the encoder's last states, layer by layer: 'copy' = as they are | 'map' = tanh of a
    # learned map of all directions' | 'map_backward' = of the backward direction's alone (Bahdanau et al. 2014)
    initial_state: str = read_by(TASK, default='zeros')
    # 'maxout' = what goes to the output layer is the larger of each pair of a map's results, from the last layer's
    # vector, the embedding of the word before and what attention gave (Bahdanau et al. 2014)
    readout: str = read_by(TASK, default='none')

    def __post_init__(self) -> None:
        RecurrentConfig.__post_init__(self)
        check_one_of('model.source_reading', self.source_reading, READINGS)
        check_one_of('model.initial_state', self.initial_state, INITIAL_STATES)
        check_one_of('model.readout', self.readout, READOUTS)
        for field in dataclasses.fields(SourceReadingConfig):
            value, is_own = getattr(self, field.name), field.name in SourceReadingConfig.__annotations__
            is_read = not is_own or self.cell != 'none' or value == field.default
            require(is_read, f'model.{field.name}', value, f'{field.default!r} without model.cell')
        reads = f'with model.source_reading {self.source_reading!r}'
        fits = not self.input_feeding or self.source_reading == 'after'
        require(fits, 'model.input_feeding', True, f'False {reads}')
        fits = self.readout == 'none' or self.source_reading in ('state', 'before')
        require(fits, 'model.readout', self.readout, f"'none' {reads}")
        fits = self.initial_state != 'zeros' or self.source_reading != 'state'
        require(fits, 'model.initial_state', 'zeros', f'copy, map or map_backward {reads}')

    @property
    def is_stepwise(self) -> bool:
        """Whether what a decoder's first layer reads at a position depends on what was made of the one before."""
        return self.source_reading == 'before' or self.input_feeding
