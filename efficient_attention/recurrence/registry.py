"""Every cell by its name; a new one is a line here."""

from efficient_attention.recurrence import gru, lstm, sru, tanh
from efficient_attention.recurrence.cell import Cell

# name: the cell for inputs as wide as its state, and that for others
CELLS: dict[str, tuple[Cell, Cell]] = {
    'tanh': (tanh.CELL, tanh.CELL),
    'gru': (gru.CELL, gru.CELL),
    'lstm': (lstm.CELL, lstm.CELL),
    'sru1': (sru.cell(1, has_past=False), sru.cell(1, has_past=True)),
    'sru2': (sru.cell(2, has_past=False), sru.cell(2, has_past=True)),
}


def cell_of(name: str, input_width: int, units: int) -> Cell:
    """The cell of this name for inputs and states of these widths; raises ValueError for an unknown name."""
    if name not in CELLS:
        raise ValueError(f'unknown cell {name!r}; known: {", ".join(CELLS)}')
    return CELLS[name][input_width != units]
