"""Tests that cells declare the operands from which a module makes its arrays."""

import pytest

from efficient_attention.recurrence.cells import CELLS


@pytest.mark.parametrize('cell', [cell for both in CELLS.values() for cell in both], ids=lambda cell: cell.name)
def test_a_cell_names_its_operands_and_can_be_a_static_argument(cell):
    assert {'input', 'bias'} <= set(cell.operands) and len({'recurrent', 'diagonal'} & set(cell.operands)) == (
        cell.recurrent > 0
    )
    assert all(set(one.shape) <= set('DUgb') and one.fan_in in ('', 'D', 'U') for one in cell.operands.values())
    assert not cell.scales or len(cell.scales) == cell.blocks[0]
    assert hash(cell) == hash(cell) and cell == cell
