"""Tests of Pathfinder's shapes: whole cells near the exact geometry, and drawings of the right size and position."""

import itertools

import numpy as np
import pytest

from efficient_attention.data.arena.pathfinder_sprites import (
    DEGREES,
    STRAIGHT_ON,
    bar_picture,
    cells_near_bar,
    circle_cells,
    dilate_cells,
    directions_in_degrees,
    disc_picture,
    moves_per_degree,
    turn_weights,
)

VECTORS = [(0, 2), (2, 0), (-1, 1), (5, 0), (-3, 4), (4, -3), (-4, -4)]


def test_moves_end_on_the_nearest_cell():
    angles = np.radians(np.arange(DEGREES))
    for distance in (2, 7, -5):
        exact = distance * np.stack([np.sin(angles), np.cos(angles)], axis=1)
        assert np.abs(moves_per_degree(distance) - exact).max() <= 0.5 + 1e-9
    assert moves_per_degree(3)[[0, 90, 180, 270]].tolist() == [[0, 3], [3, 0], [0, -3], [-3, 0]]
    assert (moves_per_degree(5)[30] == [2, 4]).all()  # 2.5 rounds to the even 2 on every platform.


def test_a_circle_has_each_cell_once_and_about_one_a_cell_of_arc():
    for radius in (3, 6, 7, 8):
        cells = circle_cells(radius)
        assert len(cells) == len(np.unique(cells, axis=0)) and 0.85 < len(cells) / (2 * np.pi * radius) < 1.05
        assert np.abs(np.linalg.norm(cells, axis=1) - radius).max() < 0.75


def test_directions_are_whole_degrees():
    offsets = np.array([[0, 3], [3, 3], [3, 0], [0, -3], [-3, 0], [-1, 7]])
    assert directions_in_degrees(offsets).tolist() == [0, 45, 90, 180, 270, 352]
    assert (np.abs((directions_in_degrees(moves_per_degree(100)) - np.arange(DEGREES) + 180) % 360 - 180) <= 1).all()


@pytest.mark.parametrize('continuity', [1.0, 1.8])
def test_weights_fall_with_the_turn_up_to_a_right_angle_over_the_continuity(continuity):
    degrees = np.arange(0, DEGREES, 7)
    weights = turn_weights(degrees, continuity)
    assert weights.shape == (DEGREES, len(degrees)) and weights.dtype == np.int64
    for before, (place, after) in itertools.product((0, 90, 350), enumerate(degrees)):
        turn = min(abs(before - after), 360 - abs(before - after))
        exact = np.cos(np.radians(min(continuity * turn, 90))) ** 2
        assert abs(weights[before, place] / STRAIGHT_ON - exact) < 1e-6
    assert weights[0, 0] == STRAIGHT_ON and weights[0, 26] == 0  # 182 degrees


@pytest.mark.parametrize('radius', [0, 1, 3])
@pytest.mark.parametrize('vector', VECTORS)
def test_a_footprint_is_what_lies_within_its_radius(vector, radius):
    end = np.array(vector, float)
    found = {tuple(cell) for cell in cells_near_bar(vector, radius).tolist()}
    for cell in itertools.product(range(-9, 10), repeat=2):
        share = np.clip(-(np.array(cell) @ end) / (end @ end), 0, 1)
        assert (cell in found) == (np.linalg.norm(cell + share * end) <= radius + 1e-6)


def test_dilation_adds_what_lies_within_the_radius():
    cells = np.array([[0, 0], [0, 4]])
    assert set(map(tuple, dilate_cells(cells, 1).tolist())) == {
        (row, column + shift) for row, column in [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)] for shift in (0, 4)
    }
    wide = dilate_cells(cells_near_bar((3, 4), 1), 2)
    assert len(wide) == len(np.unique(wide, axis=0)) > len(cells_near_bar((3, 4), 2))


@pytest.mark.parametrize('thickness', [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize('vector', VECTORS)
def test_a_bars_picture_has_its_length_thickness_and_place(vector, thickness):
    grey, corner = bar_picture(vector, thickness)
    assert grey.dtype == np.uint8 and not grey[[0, -1]].any() and not grey[:, [0, -1]].any()
    length = np.hypot(*vector) + 0.5  # Each end adds half a fine pixel.
    assert 0.7 < grey.sum() / 255 / (length * thickness) < 1.4
    weights = grey / grey.sum()
    rows, columns = np.mgrid[: grey.shape[0], : grey.shape[1]]
    middle = np.array([(rows * weights).sum(), (columns * weights).sum()]) + corner
    assert np.abs(middle + np.array(vector) / 2).max() <= 0.5


@pytest.mark.parametrize('radius, thickness', [(1.5, 0.5), (2.5, 1.0), (3.0, 1.5), (5.0, 2.0)])
def test_a_discs_picture_has_its_area_and_place(radius, thickness):
    grey, (row, column) = disc_picture(radius, thickness)
    assert grey[-row, -column] >= 250 and not grey[[0, -1]].any()
    assert 0.8 < grey.sum() / 255 / (np.pi * radius**2) < 1.25
