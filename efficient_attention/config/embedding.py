"""Fields of the tables of tokens and positions, a part of the config group `model`."""

import dataclasses
import math

from efficient_attention.config.checks import check_one_of
from efficient_attention.config.fields import read_by
from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.relative import UNTIED
from efficient_attention.errors import require

POSITIONS = ('learned', 'sinusoidal', 'axial', 'none')


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig(LayerConfig):
    """The tables of tokens, positions and token types below the first layer.

    Raises:
        InputError: a field is out of range; names the field, its value and what is allowed.
    """

    vocab_size: int = 4096  # V
    max_length: int = 512  # rows of the learned position table, and of that of 'tupe'
    position_offset: int = 0  # rows of the learned table before that of position 0, which nobody reads (RoBERTa: 2)
    # rows of the token type table; 0 = none
    token_types: int = read_by('pretraining', 'fine_tuning', default=2, unread=0)
    embedding_norm: bool = True  # normalise the sum of the embeddings; GPT-2 does not
    positions: str = 'learned'  # 'learned' | 'sinusoidal' | 'axial' | 'none' (with rotary or relative)
    axial_shape: tuple[int, ...] = ()  # positions along each axis of 'axial'; their product is the length
    axial_widths: tuple[int, ...] = ()  # features of each axis, E in all
    axial_sum: bool = False  # add the axes' vectors, each of width E, instead of joining them (Sparse Transformer)
    embedding_width: int = 0  # E of factorised embeddings (ALBERT); 0 = width, without a projection
    # one token table for both stacks of an encoder-decoder
    shared_table: bool = read_by('text_to_text', default=True)
    embedding_scale: bool = False  # token vectors times sqrt(width) (Transformer-XL)

    def __post_init__(self) -> None:
        LayerConfig.__post_init__(self)
        object.__setattr__(self, 'embedding_width', self.embedding_width or self.width)
        for name in ('vocab_size', 'max_length', 'embedding_width'):
            require(getattr(self, name) >= 1, f'model.{name}', getattr(self, name), 'at least 1')
        require(self.token_types >= 0, 'model.token_types', self.token_types, '0 or more')
        check_one_of('model.positions', self.positions, POSITIONS)
        is_even = self.positions != 'sinusoidal' or self.embedding_width % 2 == 0
        require(is_even, 'model.embedding_width', self.embedding_width, 'even for sinusoidal positions')
        self.check_positions()

    @property
    def position_limit(self) -> int | None:
        """How many positions the model has a place for; None where any number of them."""
        return min(self.position_tables.values(), default=None)

    @property
    def position_tables(self) -> dict[str, int]:
        """How many positions each table of positions has, by its field or fields."""
        tables: dict[str, int] = {}
        if self.positions == 'axial':
            tables['model.axial_shape'] = math.prod(self.axial_shape)
        elif self.positions == 'learned' or self.relative in UNTIED:
            tables['model.max_length'] = self.max_length - self.position_offset
        for one in self.mechanisms:
            if one.needs.longest:
                field = f'model.attention {one.name}'
                tables[field] = min(tables.get(field, one.needs.longest), one.needs.longest)
        if (cross := self.cross_mechanism).needs.longest and cross.needs.positions:  # else it bounds keys alone
            tables[f'model.cross_attention {cross.name}'] = cross.needs.longest
        return tables | ({'model.location_length': self.location_length} if self.score == 'location' else {})

    def check_positions(self) -> None:
        """Raises InputError where the fields of positions do not fit together."""
        offset = self.position_offset
        fits = 0 <= offset < self.max_length
        require(fits, 'model.position_offset', offset, f'0 or more and below model.max_length {self.max_length}')
        is_read = offset == 0 or self.positions == 'learned'
        require(is_read, 'model.position_offset', offset, "0 without model.positions 'learned'")
        require(
            self.relative not in UNTIED or self.positions == 'none',
            'model.positions',
            self.positions,
            f"'none' with model.relative {self.relative!r}",
        )
        shape, widths, width = self.axial_shape, self.axial_widths, self.embedding_width
        if self.positions != 'axial':
            for name, default in (('axial_shape', ()), ('axial_widths', ()), ('axial_sum', False)):
                value = getattr(self, name)
                require(value == default, f'model.{name}', value, f"{default!r} without model.positions 'axial'")
            return
        is_shape = bool(shape) and all(size >= 1 for size in shape)
        require(is_shape, 'model.axial_shape', shape, 'one or more sizes of at least 1')
        if self.axial_sum:
            require(widths == (), 'model.axial_widths', widths, '() with model.axial_sum: each axis has the full width')
            return
        fits = len(widths) == len(shape) and all(size >= 1 for size in widths) and sum(widths) == width
        allowed = f'{len(shape)} widths of at least 1 whose sum is {width}, the width of the embeddings'
        require(fits, 'model.axial_widths', widths, allowed)
