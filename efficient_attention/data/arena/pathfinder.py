"""Generates Pathfinder images of the Long Range Arena; the label says whether two discs lie on the two ends of one
dashed curve.

The generator follows a description of the original one (Linsley et al. 2018, 1805.08315), with the settings of the
Long Range Arena (Tay et al. 2021, 2011.04006). An image has two snakes of equal length, each a chain of bars, among
short distractor snakes. One disc lies on the first bar of a snake. The other disc lies on the last bar of the same
snake (label 1) or of the other snake (label 0). Both snakes are in every image, so counting reveals no label.

Differences from the original:
- A cell is either free or taken, while the original adds grey masks. So a bar's margin may reach into the border.
- A bar also avoids the newest bar of the other snake, which the original only does one bar later.
- Moves end on the nearest cell, while the original rounds up. So gaps are equally wide in all directions.
The original has no seed, so its images cannot be reproduced.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from efficient_attention.data.arena import pathfinder_sprites as sprites
from efficient_attention.data.arena.dataset_interface import (
    ArenaRow,
    DatasetOptions,
    GeneratedDataset,
    is_hashed_to_split,
    row_random_generator,
)
from efficient_attention.data.arena.pathfinder_snakes import (
    PathfinderGeometry,
    occupancy_board,
    random_integer_below,
    sample_distractor_snake,
    sample_two_snakes,
    snake_shape_tables,
)
from efficient_attention.errors import InputError, is_whole_number, require, require_at_least

DIFFICULTIES = ('easy', 'intermediate', 'hard')
BARS = (6, 9, 14)  # published numbers of bars per snake, by difficulty
SETTINGS = {
    # Sizes 16 and 20 are not in the original. They have too few pixels for distractors and for the published numbers.
    16: PathfinderGeometry(
        size=16,
        padding=1,
        seed_distance=5,
        bar_length=2,
        thickness=0.5,
        margins=(1,),
        disc_radius=1.5,
        continuity=1.0,
        distractor_bars=0,
        contrasts=(75, 75, 100),
        greys=4,
    ),
    20: PathfinderGeometry(
        size=20,
        padding=1,
        seed_distance=6,
        bar_length=2,
        thickness=0.5,
        margins=(1,),
        disc_radius=1.5,
        # This continuity is lower than at other sizes, so that the positions of the discs reveal less about the label.
        continuity=0.7,
        distractor_bars=0,
        contrasts=(75, 75, 100),
        greys=4,
    ),
    32: PathfinderGeometry(
        size=32,
        padding=1,
        seed_distance=7,
        bar_length=2,
        thickness=0.5,
        margins=(1,),
        disc_radius=1.5,
        continuity=1.0,
        distractor_bars=20,
        contrasts=(150, 200, 100),  # Distractors are brighter than snakes, as in the original.
    ),
    64: PathfinderGeometry(
        size=64,
        padding=1,
        seed_distance=12,
        bar_length=5,
        thickness=1.0,
        margins=(1,),
        disc_radius=2.5,
        continuity=1.8,
        distractor_bars=22,
        contrasts=(80, 80, 100),
    ),
    128: PathfinderGeometry(
        size=128,
        padding=1,
        seed_distance=20,
        bar_length=5,
        thickness=1.5,
        margins=(2, 3),
        disc_radius=3.0,
        continuity=1.8,
        distractor_bars=35,
        contrasts=(90, 90, 100),
    ),
    256: PathfinderGeometry(
        size=256,
        padding=22,
        seed_distance=27,
        bar_length=5,
        thickness=2.0,
        margins=(3,),
        disc_radius=5.0,
        continuity=1.8,
        distractor_bars=30,
        contrasts=(100, 100, 100),
    ),
}
SIZES = tuple(SETTINGS)
# image size -> bars per snake by difficulty, for sizes too small for the published numbers
FEWER_BARS = {16: (2, 3, 4), 20: (3, 4, 5)}


def bars_per_difficulty(size: int) -> dict[str, int]:
    """Returns difficulty ('easy', 'intermediate', 'hard') -> number of bars per snake, for images of a given size."""
    return dict(zip(DIFFICULTIES, FEWER_BARS.get(size, BARS), strict=True))


class PathfinderImage(NamedTuple):
    """A Pathfinder image, its label, and the positions of its bars and discs; each position is (row, column)."""

    pixels: np.ndarray  # grey values, uint8 [size, size]
    label: int  # 1 if both discs lie on the same snake, else 0
    snakes: tuple[np.ndarray, np.ndarray]  # int64 [bars, 2, 2] for each snake: tail and head of each bar, in order
    # int64 [bars, 2, 2] for each distractor that fitted into the image: tail and head of each bar
    distractors: tuple[np.ndarray, ...]
    discs: np.ndarray  # int64 [2, 2]: the tail of a snake's first bar, and the head of a snake's last bar
    margin: int  # margin around a bar, in pixels; the gap between two bars is about twice as wide


def pathfinder_image(
    rng: np.random.Generator, size: int, bars: int, *, distractors: int | None = None, fixed: bool = False
) -> PathfinderImage:
    """Returns an image made from the next numbers of a random generator; all platforms produce the same bytes.

    Args:
        rng: a generator for this image; only its uniform numbers are used.
        size: rows and columns, one of SIZES.
        bars: bars per snake, at least 2; `bars_per_difficulty` has the numbers per difficulty.
        distractors: number of short snakes, each of bars // 3 bars (no snakes where that is 0). A snake that does not
            fit into the image is left out. None = as in the Long Range Arena, see below.
        fixed: whether both snakes start in the middle of the image, next to each other, with the first disc on the
            left one. This is easier; the original uses random starts. Not for 16 x 16 pixels, which have too few
            such images.

    With `distractors` None, an image has n // (bars // 3) distractors. n is the number of distractor bars for its size:
    20, 22, 35 or 30 for 32 to 256 pixels, as in the Long Range Arena. Images of 16 and 20 pixels have no distractors.

    Raises:
        InputError: an argument is out of range, or two snakes of so many bars do not fit into the image.
    """
    require(is_whole_number(size) and size in SIZES, 'arena size', size, f'one of {", ".join(map(str, SIZES))}')
    require_at_least(2, 'arena bars', bars)
    if fixed and size == min(SIZES):
        raise InputError(f'arena starts are fixed; {size} x {size} pixels have too few such images')
    setting, short = SETTINGS[size], bars // 3
    if distractors is None:
        distractors = setting.distractor_bars // short if short else 0
    require_at_least(0, 'arena distractors', distractors)
    label = random_integer_below(rng, 2)
    shapes = snake_shape_tables(setting, setting.margins[random_integer_below(rng, len(setting.margins))])
    chains = sample_two_snakes(rng, shapes, bars, fixed=fixed)
    board = occupancy_board(shapes, chains)
    tried = [sample_distractor_snake(rng, shapes, board, short) for _ in range(distractors if short else 0)]
    start = 0 if fixed else random_integer_below(rng, 2)
    end = start if label else 1 - start
    discs = shapes.cell_coordinates(np.stack([chains[start, 0, 0], chains[end, -1, 1]]))
    snakes = shapes.cell_coordinates(chains[0]), shapes.cell_coordinates(chains[1])
    others = tuple(shapes.cell_coordinates(chain) for chain in tried if chain is not None)
    pixels = _render_image(setting, snakes, others, discs)
    return PathfinderImage(pixels, label, snakes, others, discs, shapes.margin)


def _render_image(
    setting: PathfinderGeometry, snakes: Sequence[np.ndarray], others: Sequence[np.ndarray], discs: np.ndarray
) -> np.ndarray:
    """Returns the pixels of an image: draws all snakes and discs, takes their maximum per pixel, and rescales the grey
    values to 0 ... 255."""
    around = sprites.AROUND + max(setting.bar_length, math.ceil(setting.disc_radius)) + 1
    canvas = np.zeros((setting.size + 2 * around, setting.size + 2 * around), np.int32)
    of_snakes, of_others, of_discs = setting.contrasts
    for chains, contrast in ((snakes, of_snakes), (others, of_others)):
        for tail, head in (bar for chain in chains for bar in chain.tolist()):
            _paint_sprite(canvas, around, head, _bar_sprite(setting, (head[0] - tail[0], head[1] - tail[1]), contrast))
    for disc in discs.tolist():
        _paint_sprite(canvas, around, disc, _disc_sprite(setting, of_discs))
    grey = canvas[around:-around, around:-around]
    darkest, brightest = int(grey.min()), int(grey.max())
    spread, steps = brightest - darkest, setting.greys - 1
    levels = (2 * steps * (grey - darkest) + spread) // (2 * spread)  # rounds to the nearest grey level
    return (levels * 255 // steps).astype(np.uint8)


def _paint_sprite(canvas: np.ndarray, around: int, point: Sequence[int], picture: sprites.Sprite) -> None:
    row, column = point[0] + picture.corner[0] + around, point[1] + picture.corner[1] + around
    rows, columns = picture.grey.shape
    under = canvas[row : row + rows, column : column + columns]
    np.maximum(under, picture.grey, out=under)


@functools.cache
def _bar_sprite(setting: PathfinderGeometry, vector: sprites.Vector, contrast: int) -> sprites.Sprite:
    return _apply_contrast(sprites.bar_picture(vector, setting.thickness), contrast)


@functools.cache
def _disc_sprite(setting: PathfinderGeometry, contrast: int) -> sprites.Sprite:
    return _apply_contrast(sprites.disc_picture(setting.disc_radius, setting.thickness), contrast)


def _apply_contrast(picture: sprites.Sprite, contrast: int) -> sprites.Sprite:
    """Returns a picture whose grey values are multiplied by the contrast in per cent; the unit of the result is 1/100
    of a grey level."""
    return picture._replace(grey=picture.grey.astype(np.int32) * contrast)


@dataclasses.dataclass(frozen=True)
class Pathfinder(GeneratedDataset):
    """Generated Pathfinder images as rows of grey values; the label is 1 if both discs lie on the ends of one snake.

    Small images and fixed starts allow so few images that two splits would share some. There, a hash gives each image
    to one split.
    """

    kind = 'pathfinder'
    vocabulary = 'grey'
    size: int
    bars: int
    distractors: int | None
    fixed: bool

    def row(self, split: str, index: int) -> ArenaRow:
        """Returns the row with number `index` of a split."""
        rng = row_random_generator(self.seed, split, index)
        while True:
            image = pathfinder_image(rng, self.size, self.bars, distractors=self.distractors, fixed=self.fixed)
            pixels = image.pixels.reshape(-1).astype('u2')
            if not (self.fixed or self.size in FEWER_BARS) or is_hashed_to_split(pixels, split):
                return ArenaRow((pixels,), int(image.label))


def pathfinder_dataset(options: DatasetOptions) -> Pathfinder:
    """Returns the Pathfinder dataset with these options; raises InputError if an option is missing or out of range."""
    count, seed = options.integer_option('rows', 1), options.integer_option('seed', 0, 0)
    size = options.integer_option('size', 1)
    if size not in SIZES:
        raise options.option_error(f'size must be one of {", ".join(map(str, SIZES))}')
    named, bars = options.left.get('bars', 'hard'), bars_per_difficulty(size)
    count_of_bars = bars[options.left.pop('bars', named)] if named in bars else options.integer_option('bars', 2)
    distractors = options.integer_option('distractors', 0) if 'distractors' in options.left else None
    starts = options.left.pop('starts', 'drawn')
    if starts not in ('drawn', 'fixed'):
        raise options.option_error('starts must be drawn or fixed')
    if starts == 'fixed' and size == min(SIZES):
        raise options.option_error(f'starts must be drawn with size {size}, which has few images with fixed ones')
    return Pathfinder(options.text, count, seed, size, count_of_bars, distractors, starts == 'fixed')
