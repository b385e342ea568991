"""Tests that cells are found by their names."""

import pytest

from efficient_attention.recurrence.cells import CELLS, find_cell


def test_an_unknown_cell_is_named():
    with pytest.raises(ValueError, match="^unknown cell 'elman'; known: tanh, gru, lstm, sru1, sru2$"):
        find_cell('elman', 4, 4)


def test_of_a_simple_recurrent_unit_the_input_goes_past_it_or_a_product_where_widths_differ():
    assert [find_cell(name, 4, 4).gate_count for name in CELLS] == [1, 3, 4, 3, 3]
    assert [find_cell(name, 4, 6).gate_count for name in CELLS] == [1, 3, 4, 4, 4]
