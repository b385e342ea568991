"""Tests of Pathfinder's snakes: only the margins of neighbouring bars overlap, and a search without space ends."""

import itertools

import numpy as np
import pytest

from efficient_attention.data.arena import pathfinder_snakes
from efficient_attention.data.arena.pathfinder import SETTINGS
from efficient_attention.data.arena.pathfinder_snakes import (
    TAKEN,
    occupancy_board,
    random_integer_below,
    sample_distractor_snake,
    sample_two_snakes,
    snake_shape_tables,
)
from efficient_attention.errors import InputError


def grown(size, bars, seed=0):
    rng, shapes = np.random.default_rng(seed), snake_shape_tables(SETTINGS[size], SETTINGS[size].margins[-1])
    chains = sample_two_snakes(rng, shapes, bars)
    board = occupancy_board(shapes, chains)
    others = [chain for _ in range(4) if (chain := sample_distractor_snake(rng, shapes, board, 3)) is not None]
    return shapes, board, chains, others


def cells_near(bar, margin):
    """Returns the cells within a margin of a bar, by a check of each cell; `bar` is [2, 2], rows and columns."""
    tail, head = bar.astype(float)
    cells = np.stack(np.mgrid[tuple(slice(low - 9, low + 10) for low in bar.min(0))], axis=-1).reshape(-1, 2)
    along = np.clip((cells - tail) @ (head - tail) / ((head - tail) @ (head - tail)), 0, 1)
    distances = np.linalg.norm(cells - tail - along[:, None] * (head - tail), axis=1)
    return {tuple(cell) for cell in cells[distances <= margin + 1e-6].tolist()}


@pytest.mark.parametrize('size, bars', [(32, 14), (64, 9), (128, 9), (256, 14)])
def test_margins_of_bars_that_are_no_neighbours_share_no_cell(size, bars):
    for seed in range(5):
        shapes, board, chains, others = grown(size, bars, seed)
        near = [
            [cells_near(bar, shapes.margin) for bar in shapes.cell_coordinates(chain)] for chain in (*chains, *others)
        ]
        places = [(snake, bar) for snake, bars_of in enumerate(near) for bar in range(len(bars_of))]
        for (snake, bar), (other, another) in itertools.combinations(places, 2):
            if snake != other or abs(bar - another) > 1:
                assert not near[snake][bar] & near[other][another]
        taken = set().union(*(cells for bars_of in near for cells in bars_of))
        assert {
            tuple(cell) for cell in shapes.cell_coordinates(np.array([*marked(board) - marked(shapes.empty)])).tolist()
        } == taken


def marked(board):
    """Returns the cells of a board that are taken."""
    return set(np.flatnonzero(board & TAKEN).tolist())


@pytest.mark.parametrize('size, bars', [(32, 14), (64, 9), (128, 9), (256, 14)])
def test_bars_stay_out_of_the_border_and_heads_a_margin_away_from_it(size, bars):
    padding = SETTINGS[size].padding
    for seed in range(5):
        shapes, _, chains, others = grown(size, bars, seed)
        for number, chain in enumerate([*chains, *others]):
            points = shapes.cell_coordinates(chain)
            assert (padding <= points).all() and (points < size - padding).all()
            edge = padding + shapes.margin
            heads = points[1:, 1] if number > 1 else points[:, 1]  # A distractor's first head is not drawn.
            assert (edge <= heads).all() and (heads < size - edge).all()


def test_the_second_snake_starts_at_a_distance_from_the_first():
    for size, seed in itertools.product((32, 128), range(5)):
        shapes, _, chains, _ = grown(size, 4, seed)
        first, second = shapes.cell_coordinates(chains[:, 0, 0])
        distance = SETTINGS[size].seed_distance
        assert abs(np.linalg.norm(first - second) - distance) < 1
        assert (2 * distance <= first).all() and (first < size - 2 * distance).all()


def test_turns_are_as_likely_as_their_weights():
    """Turns have the drawn weights. At 256 pixels nothing blocks the second bar, so no turn is excluded."""
    setting = SETTINGS[256]
    shapes = snake_shape_tables(setting, 3)
    turns = []
    for seed in range(300):
        chains = shapes.cell_coordinates(sample_two_snakes(np.random.default_rng(seed), shapes, 3))
        # A bar's two ends give the direction from its pivot to its head, with an error of a few degrees.
        vectors = chains[:, 1:, 1] - chains[:, 1:, 0]
        angles = np.degrees(np.arctan2(vectors[..., 0], vectors[..., 1]))
        turns.append((np.diff(angles, axis=1) + 180) % 360 - 180)
    turns = np.concatenate(turns).reshape(-1)
    degrees = np.arange(-50, 51)
    weights = np.cos(np.radians(1.8 * degrees)) ** 2
    spread = np.sqrt((degrees**2 * weights).sum() / weights.sum())
    assert abs(turns.mean()) < 3 * spread / np.sqrt(len(turns))
    assert 0.9 * spread < turns.std() < 1.2 * spread  # Rounding bar ends to whole cells adds to the spread.


def test_a_full_board_has_no_room_for_a_distractor():
    rng, shapes = np.random.default_rng(0), snake_shape_tables(SETTINGS[32], 1)
    board = np.full_like(shapes.empty, TAKEN)
    assert sample_distractor_snake(rng, shapes, board, 2) is None
    free = shapes.empty.copy()
    found = sample_distractor_snake(rng, shapes, free, 2)
    assert found is not None and (free & TAKEN).sum() > (shapes.empty & TAKEN).sum()


def test_snakes_that_find_no_room_end_the_search(monkeypatch):
    monkeypatch.setattr(pathfinder_snakes, 'MOST_STARTS', 500)
    with pytest.raises(
        InputError, match='^arena bars is 60; two snakes of so many bars do not fit into 32 x 32 pixels$'
    ):
        sample_two_snakes(np.random.default_rng(0), snake_shape_tables(SETTINGS[32], 1), 60)


def test_whole_numbers_below_a_count():
    rng = np.random.default_rng(0)
    counts = np.bincount([random_integer_below(rng, 3) for _ in range(3000)])
    assert len(counts) == 3 and (np.abs(counts - 1000) < 3 * np.sqrt(3000 * 2 / 9)).all()
