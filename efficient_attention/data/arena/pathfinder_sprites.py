"""Computes the shapes in Pathfinder's images: moves in whole degrees, the cells that a bar covers, pictures of bars and
discs.

A point is (row, column) in cells. All decisions about cells use whole numbers or rounded values, so the last bit of a
platform's sine never moves a bar.
"""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

DEGREES = 360
DECIMALS = 9  # Sines and distances are rounded to 9 decimals before they are compared or rounded to cells.
ANTIALIAS = 2  # Shapes are drawn at twice their size, then shrunk.
AROUND = 4  # cells of margin around a shape, so that shrinking cuts nothing off; Lanczos reads three cells to each side
STRAIGHT_ON = 2**20  # sampling weight of a next bar that continues in the same direction

Vector = tuple[int, int]


class Sprite(NamedTuple):
    """A grey picture of a bar or disc, uint8 [rows, columns]; `corner` is the offset of its first cell from the bar's
    head or the disc's centre."""

    grey: np.ndarray
    corner: Vector


def moves_per_degree(distance: int) -> np.ndarray:
    """Returns the offset of a move by `distance` cells in the direction of each whole degree: int64 [360, 2], rows and
    columns.

    A negative distance moves backwards.
    """
    return np.rint(np.round(distance * _directions(DEGREES), DECIMALS)).astype(np.int64)


def circle_cells(radius: int) -> np.ndarray:
    """Returns the distinct cells on a circle around the cell (0, 0), sampled about once per cell of its arc: int64
    [cells, 2]."""
    samples = math.ceil(2 * math.pi * radius)
    return np.unique(np.rint(np.round(radius * _directions(samples), DECIMALS)).astype(np.int64), axis=0)


def directions_in_degrees(offsets: np.ndarray) -> np.ndarray:
    """Returns the direction of each offset, int [offsets, 2], in whole degrees from 0 to 359: int64 [offsets]."""
    angles = np.arctan2(offsets[:, 0], offsets[:, 1]) * (180 / math.pi)
    return np.round(np.round(angles, DECIMALS)).astype(np.int64) % DEGREES


def turn_weights(degrees: np.ndarray, continuity: float) -> np.ndarray:
    """Returns the sampling weight of each candidate for the next bar, for each direction of the previous bar: int64
    [360, candidates].

    `degrees` are the directions of the candidates. A weight is cos^2(min(continuity x turn, 90 degrees)), rounded to a
    whole number of units 1 / STRAIGHT_ON.
    """
    turns = np.abs((np.arange(DEGREES)[:, None] - degrees + DEGREES // 2) % DEGREES - DEGREES // 2)
    angles = np.minimum(continuity * turns, 90.0) * (math.pi / 180)
    return np.round(STRAIGHT_ON * np.cos(angles) ** 2).astype(np.int64)


def cells_near_bar(vector: Vector, radius: int) -> np.ndarray:
    """Returns the cells within `radius` of a bar that runs along `vector` and ends in the cell (0, 0): int64 [cells,
    2]."""
    cells, end = _pixel_grid(vector, radius, 1), np.array(vector)
    # `along` and `across` are distances multiplied by the bar's length.
    along, across, squared = cells @ end, cells @ [-end[1], end[0]], int(end @ end)
    before_start = ((cells + end) ** 2).sum(axis=1) <= radius**2
    beyond_end = (cells**2).sum(axis=1) <= radius**2
    beside = across**2 <= radius**2 * squared
    return cells[np.select([along >= 0, along <= -squared], [beyond_end, before_start], beside)]


def dilate_cells(cells: np.ndarray, radius: int) -> np.ndarray:
    """Returns all cells within `radius` of at least one of the given cells, without repeats: int64 [more cells, 2]."""
    return np.unique((cells[:, None] + cells_near_bar((0, 0), radius)).reshape(-1, 2), axis=0)


def bar_picture(vector: Vector, thickness: float) -> Sprite:
    """Returns the picture of a bar with flat ends, `thickness` cells wide, that runs along `vector` and ends in the
    cell (0, 0)."""
    width = round(thickness * ANTIALIAS)
    pixels = _pixel_grid(vector, AROUND, ANTIALIAS)
    fine_vector = (vector[0] * ANTIALIAS, vector[1] * ANTIALIAS)
    along, across, length = _along_and_across_bar(pixels, fine_vector, _line_center(width))
    return _downsample_sprite((2 * np.abs(across) < width) & (along <= 0.5) & (along >= -length - 0.5), vector, AROUND)


def disc_picture(radius: float, thickness: float) -> Sprite:
    """Returns the picture of a disc with a radius in cells around (0, 0); its centre is aligned with bars of the given
    thickness."""
    around = math.ceil(radius) + AROUND
    offsets = _pixel_grid((0, 0), around, ANTIALIAS) - _line_center(round(thickness * ANTIALIAS))
    return _downsample_sprite((offsets**2).sum(axis=1) <= (radius * ANTIALIAS) ** 2, (0, 0), around)


def _directions(count: int) -> np.ndarray:
    turns = np.arange(count) * (2 * math.pi / count)
    return np.round(np.stack([np.sin(turns), np.cos(turns)], axis=1), DECIMALS)


def _line_center(width: int) -> float:
    """Returns the offset of a line's centre from a pixel's centre, in pixels of the enlarged drawing: 0 for an odd line
    width, 0.5 for an even one."""
    return 0.0 if width % 2 else 0.5


def _bar_bounding_box(vector: Vector, around: int) -> tuple[Vector, Vector]:
    """Returns the first and last cell of the box around a bar that ends in (0, 0), with `around` more cells on every
    side."""
    (down, right) = vector
    return (min(-down, 0) - around, min(-right, 0) - around), (max(-down, 0) + around, max(-right, 0) + around)


def _pixel_grid(vector: Vector, around: int, scale: int) -> np.ndarray:
    """Returns the grid points in the box around a bar, row by row, `scale` points per cell and axis: int64 [points,
    2]."""
    first, last = _bar_bounding_box(vector, around)
    rows, columns = (np.arange(scale * first[axis], scale * (last[axis] + 1)) for axis in (0, 1))
    return np.stack(np.meshgrid(rows, columns, indexing='ij'), axis=-1).reshape(-1, 2)


def _along_and_across_bar(points: np.ndarray, vector: Vector, middle: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns each point's offset from a bar's end, along the bar and across it, and the bar's length.

    Args:
        points: int [points, 2].
        vector: from the bar's start to its end.
        middle: row and column of the end.
    """
    length = math.hypot(*vector)
    down, right = vector[0] / length, vector[1] / length
    rows, columns = points[:, 0] - middle, points[:, 1] - middle
    along, across = rows * down + columns * right, columns * down - rows * right
    return np.round(along, DECIMALS), np.round(across, DECIMALS), round(length, DECIMALS)


def _downsample_sprite(is_lit: np.ndarray, vector: Vector, around: int) -> Sprite:
    """Shrinks the enlarged drawing of a bar, bool [pixels], to a picture in cells; Pillow resizes with integers, so
    that platforms agree."""
    first, last = _bar_bounding_box(vector, around)
    rows, columns = last[0] - first[0] + 1, last[1] - first[1] + 1
    fine = np.where(is_lit, np.uint8(255), np.uint8(0)).reshape(rows * ANTIALIAS, columns * ANTIALIAS)
    return Sprite(np.asarray(Image.fromarray(fine).resize((columns, rows), Image.Resampling.LANCZOS)), first)
