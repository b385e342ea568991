"""Tests that the search for the largest batch compiles few sizes and never returns one that it has not compiled."""

import pytest

from efficient_attention.planning.plan import LinearMemoryModel, largest_batch


def test_a_line_through_two_sizes():
    line = LinearMemoryModel.fit_two_points({0: 5, 8: 116, 16: 132})
    assert line == LinearMemoryModel(100.0, 2.0)
    assert line.max_rows(1000, 16) == 448 and line.max_rows(50, 16) == 0


@pytest.mark.parametrize('rows, largest', [(8, 440), (440, 440), (1600, 440)])
def test_finds_the_largest_where_memory_is_a_line(rows, largest):
    def needed(count: int) -> int:
        return 100 + 2 * count

    found = largest_batch(needed, {0: 100, rows: needed(rows)}, step=8, limit=990)
    assert found.rows == largest and found.points[largest] == needed(largest)


def test_what_is_named_fits_where_memory_is_no_line():
    found = largest_batch(lambda rows: 50 + rows**2, {0: 10, 4: 66}, step=4, limit=700)
    assert found.rows in found.points and found.points[found.rows] <= 700
    assert len(found.points) <= 3


def test_little_room_beside_the_state_is_searched_too():
    found = largest_batch(lambda rows: 900 + 10 * rows, {0: 890, 16: 1060}, step=4, limit=950)
    assert found.rows == 4 and found.points[4] == 940


def test_none_fits():
    found = largest_batch(lambda rows: 900 + rows, {0: 800, 16: 916}, step=16, limit=850)
    assert found.rows == 0 and found.points[16] == 916
