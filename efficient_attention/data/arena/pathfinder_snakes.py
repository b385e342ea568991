"""Places the bars of Pathfinder's snakes: a snake grows bar by bar, and each new bar avoids all earlier bars.

Most snakes reach the edge or another snake before they have all bars. So many attempts grow in parallel, each on a
separate board. A cell is one number, its index on a board that is wider than the image. A move is a difference of two
such numbers.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from efficient_attention.data.arena import pathfinder_sprites as sprites
from efficient_attention.errors import InputError

DRAWS = 3  # how many samples of a next bar may fail before the attempt to grow a snake fails
DISTRACTOR_STARTS = 5  # number of attempts to place a distractor; after these attempts, the distractor is left out
# if a distractor can start in a smaller share of the cells than this, an attempt to place it fails
LEAST_FREE = 0.01
# number of parallel attempts in the first try; each further try doubles the number, up to MOST_ATTEMPTS
FIRST_ATTEMPTS = 32
MOST_ATTEMPTS = 512
# maximum number of attempts per pair of snakes; the hardest published case (64 x 64 pixels, 14 bars) needs about 3,000
MOST_STARTS = 2**18

# TAKEN marks a cell within a margin of a bar. CLOSED marks a cell in which no bar may end.
# On the board, the marks of the second snake are shifted by 2 bits.
TAKEN, CLOSED = 1, 2
EVERY_SNAKE = 0b1111


@dataclasses.dataclass(frozen=True)
class PathfinderGeometry:
    """The settings of all Pathfinder images of one size; all lengths are in cells, and a cell is a pixel."""

    size: int
    padding: int  # width of the border that has no bars
    seed_distance: int  # distance between the tails of the two snakes' first bars
    bar_length: int
    thickness: float
    # possible margins around a bar, each half of the gap between two bars; each image uses one margin
    margins: tuple[int, ...]
    disc_radius: float
    continuity: float  # A bar turns by less than (90 / continuity) degrees from the direction of the previous bar.
    distractor_bars: int  # number of bars of all distractors of an image together
    contrasts: tuple[int, int, int]  # contrasts of snakes, distractors and discs, in per cent
    greys: int = 256  # number of grey levels, equally spaced from 0 to 255

    @property
    def border_width(self) -> int:
        """Returns the minimum distance between the first snake's start and the image's edge: 2 x `seed_distance`, or
        less in small images."""
        return min(2 * self.seed_distance, self.size // 2 - 2)


@dataclasses.dataclass(frozen=True)
class SnakeShapeTables:
    """Precomputed tables of bar shapes and moves, which are the same for all images with one setting and margin.

    A direction is a whole degree, 0 to 359. A shape is the number of a move from a bar's tail to its head. A bar has a
    pivot: the centre of a circle on which its head lies, one margin before its tail.
    """

    setting: PathfinderGeometry
    margin: int
    stride: int  # number of cells in a row of the board
    first: int  # index on the board of the image's first cell
    empty: np.ndarray  # uint8 [cells]: marks of a board that has no bars yet
    # int64 [360]: for each direction in degrees, the move from the first snake's tail to the second snake's tail
    second_seeds: np.ndarray
    seed_shapes: np.ndarray  # int64 [360]: index in `moves` of a first bar's shape, by its direction in degrees
    # int64 [360]: for each direction of a first bar, the move from its head to its pivot (centre of possible heads)
    seed_pivots: np.ndarray
    # int64 [360]: moves from a bar's pivot (centre of the circle of possible heads) to the next bar's pivot
    next_pivots: np.ndarray
    heads: np.ndarray  # int64 [candidates]: moves from a bar's pivot to each of its possible heads
    head_shapes: np.ndarray  # int64 [candidates]: for each possible head, the index in `moves` of the bar's shape
    head_degrees: np.ndarray  # int64 [candidates]: for each possible head, the bar's direction in degrees
    # int32 [360, candidates]: sampling weight of each possible head, for each direction of the previous bar
    weights: np.ndarray
    moves: np.ndarray  # int64 [shapes]: moves from a bar's tail to its head
    # int64 [shapes, cells]: cells within a margin of a bar, relative to its head; cells may repeat
    footprints: np.ndarray
    # int64 [shapes, cells]: cells within a margin of a bar's footprint, relative to its head; cells may repeat
    surroundings: np.ndarray
    # uint8 [shapes, cells]: marks TAKEN and CLOSED for cells in a bar's footprint, CLOSED for cells around it
    surrounding_marks: np.ndarray

    def cell_coordinates(self, cells: np.ndarray) -> np.ndarray:
        """Returns the image rows and columns of cells that are given as board indices: int64 [..., 2]."""
        return np.stack(np.divmod(cells, self.stride), axis=-1) - self.first // (self.stride + 1)


@functools.cache
def snake_shape_tables(setting: PathfinderGeometry, margin: int) -> SnakeShapeTables:
    """Returns the precomputed tables for images with these settings, in which gaps between bars are 2 x `margin` cells
    wide."""
    length = setting.bar_length
    around = length + 2 * margin + 3  # A bar's head and its surroundings are at most this many cells outside the image.
    stride = setting.size + 2 * around
    flat = np.array([stride, 1])
    seeds, later, heads = (
        sprites.moves_per_degree(length),
        -sprites.moves_per_degree(-length),
        sprites.circle_cells(length + margin),
    )
    degrees = sprites.directions_in_degrees(heads)
    vectors = np.unique(np.concatenate([seeds, later]), axis=0)
    number = {(down, right): shape for shape, (down, right) in enumerate(vectors.tolist())}
    numbers = [np.array([number[down, right] for down, right in moves.tolist()]) for moves in (seeds, later[degrees])]
    near = [sprites.cells_near_bar(vector, margin) for vector in number]
    wide = [sprites.dilate_cells(cells, margin) for cells in near]
    within = [(wide_cells[:, None] == cells).all(-1).any(1) for wide_cells, cells in zip(wide, near, strict=True)]
    return SnakeShapeTables(
        setting=setting,
        margin=margin,
        stride=stride,
        first=around * (stride + 1),
        empty=_empty_occupancy_board(setting, around, margin),
        second_seeds=sprites.moves_per_degree(setting.seed_distance) @ flat,
        seed_shapes=numbers[0],
        seed_pivots=sprites.moves_per_degree(-length - margin) @ flat,
        next_pivots=sprites.moves_per_degree(length + 2 * margin) @ flat,
        heads=heads @ flat,
        head_shapes=numbers[1],
        head_degrees=degrees,
        weights=sprites.turn_weights(degrees, setting.continuity).astype(np.int32),
        moves=vectors @ flat,
        footprints=_padded_table(cells @ flat for cells in near),
        surroundings=_padded_table(cells @ flat for cells in wide),
        surrounding_marks=_padded_table(np.where(is_taken, TAKEN | CLOSED, CLOSED) for is_taken in within).astype(
            np.uint8
        ),
    )


def _padded_table(rows: Iterable[np.ndarray]) -> np.ndarray:
    """Stacks arrays of unequal length as the rows of one array; each shorter array is padded with its own first
    value."""
    rows = list(rows)
    longest = max(map(len, rows))
    return np.stack([np.concatenate([row, np.repeat(row[:1], longest - len(row))]) for row in rows])


def _empty_occupancy_board(setting: PathfinderGeometry, around: int, margin: int) -> np.ndarray:
    """Returns a board without bars, in which the cells that snakes must not use are marked: the border for bars, and
    also a strip beside the border for heads.

    The margins around bars may enter the border. A tail may be closer to the border than a head; otherwise snakes could
    not turn near the edge.
    """
    cells = np.full((setting.size + 2 * around,) * 2, EVERY_SNAKE, np.uint8)
    inside = slice(around + setting.padding - margin, margin - around - setting.padding)
    cells[inside, inside] = CLOSED | CLOSED << 2
    inside = slice(around + setting.padding + margin, -margin - around - setting.padding)
    cells[inside, inside] = 0
    return cells.reshape(-1)


def random_integer_below(rng: np.random.Generator, count: int) -> int:
    """Returns a random whole number from 0 to count - 1, computed from one uniform random number."""
    return int(rng.random() * count)


def sample_two_snakes(
    rng: np.random.Generator, shapes: SnakeShapeTables, bars: int, *, fixed: bool = False
) -> np.ndarray:
    """Samples two snakes of an image; the snakes grow in turn, and both start again if one of them cannot grow further.

    Args:
        fixed: the first bars' tails lie next to each other in the middle of the image, with random directions.

    Returns:
        int64 [2, bars, 2]: for each snake and bar, the cell of the bar's tail and the cell of its head.

    Raises:
        InputError: all MOST_STARTS attempts failed.
    """
    size, border, starts, count = shapes.setting.size, shapes.setting.border_width, 0, FIRST_ATTEMPTS
    while starts < MOST_STARTS:
        uniform = rng.random((5, count))
        row, column = border + (uniform[:2] * (size - 2 * border)).astype(np.int64)
        degrees = (uniform[2:] * sprites.DEGREES).astype(np.int64)
        if fixed:
            row, column = np.full((2, count), size // 2) - [[0], [(shapes.setting.seed_distance + 1) // 2]]
            degrees[2] = 0  # to the right
        first = shapes.first + row * shapes.stride + column
        tails = np.stack([first, first + shapes.second_seeds[degrees[2]]])
        chains = _grow_snakes(rng, shapes, np.tile(shapes.empty, (count, 1)), SnakeStarts(tails, degrees[:2]), bars)
        if len(chains):
            return chains[0]
        starts, count = starts + count, min(2 * count, MOST_ATTEMPTS)
    raise InputError(f'arena bars is {bars}; two snakes of so many bars do not fit into {size} x {size} pixels')


def occupancy_board(shapes: SnakeShapeTables, chains: np.ndarray) -> np.ndarray:
    """Returns a flat board, uint8 [cells], on which all bars of some snakes are marked.

    Args:
        chains: int64 [snakes, bars, 2]: the cell of each bar's tail, and the cell of its head.
    """
    board = shapes.empty.copy()
    for bar in chains.reshape(-1, 1, 2):
        _mark_occupied_cells(shapes, board, bar, 0)
    return board


def sample_distractor_snake(
    rng: np.random.Generator, shapes: SnakeShapeTables, board: np.ndarray, bars: int
) -> np.ndarray | None:
    """Returns a new snake in free cells, and marks the snake on the board; returns None if no snake fits.

    The snake is int64 [bars, 2]: the cell of each bar's tail, and the cell of its head.
    """
    for _ in range(DISTRACTOR_STARTS):
        degree = random_integer_below(rng, sprites.DEGREES)
        free = _free_start_cells(shapes, board, shapes.seed_shapes[degree])
        if len(free) < LEAST_FREE * shapes.setting.size**2:
            continue
        seeds = SnakeStarts(np.array([[free[random_integer_below(rng, len(free))]]]), np.array([[degree]]))
        for (chain,) in _grow_snakes(rng, shapes, board.copy()[None], seeds, bars):
            for bar in chain:
                _mark_occupied_cells(shapes, board, bar[None], 0)
            return chain
    return None


class SnakeStarts(NamedTuple):
    """Tails and directions of the first bars of snakes that grow in parallel; each array is int64 [snakes,
    attempts]."""

    tails: np.ndarray
    degrees: np.ndarray


def _grow_snakes(
    rng: np.random.Generator, shapes: SnakeShapeTables, boards: np.ndarray, seeds: SnakeStarts, bars: int
) -> np.ndarray:
    """Grows many snakes in parallel, and returns the snakes of the attempts that placed all bars.

    The result is int64 [complete attempts, snakes, bars, 2]: the cell of each bar's tail, and the cell of its head.
    The one or two snakes of an attempt grow in turn, one bar at a time. A snake avoids all bars except its own newest
    bar, from which its next bar continues.

    Args:
        boards: uint8 [attempts, cells]; overwritten.
    """
    snakes, attempts = seeds.tails.shape
    marks, alive = boards.reshape(-1), np.arange(attempts)
    degrees, origins = seeds.degrees.copy(), alive * boards.shape[1]
    heads = seeds.tails + shapes.moves[shapes.seed_shapes[degrees]]
    pivots = heads + shapes.seed_pivots[degrees] + origins
    # Cell numbers run over the boards of all attempts. The return statement subtracts the first number of each board.
    chains = np.zeros((snakes, bars, attempts, 2), np.int64)
    chains[:, 0] = np.stack([seeds.tails, heads], axis=-1) + origins[:, None]
    for this in range(snakes if snakes > 1 else 0):
        _mark_occupied_cells(shapes, marks, chains[this, 0], 1 - this)
    for bar, this in itertools.product(range(1, bars), range(snakes)):
        before = degrees[this, alive]
        around = pivots[this, alive] + shapes.next_pivots[before]
        choices = _sample_next_heads(rng, shapes, marks, around, before, TAKEN << 2 * this)
        has_room = choices >= 0
        alive, around, choices = alive[has_room], around[has_room], choices[has_room]
        if not len(alive):
            break
        heads = around + shapes.heads[choices]
        drawn = np.stack([heads - shapes.moves[shapes.head_shapes[choices]], heads], axis=-1)
        _mark_occupied_cells(shapes, marks, chains[this, bar - 1, alive], this)
        if snakes > 1:
            _mark_occupied_cells(shapes, marks, drawn, 1 - this)
        chains[this, bar, alive] = drawn
        pivots[this, alive], degrees[this, alive] = around, shapes.head_degrees[choices]
    return (chains[:, :, alive] - origins[alive, None]).transpose(2, 0, 1, 3)


def _sample_next_heads(
    rng: np.random.Generator,
    shapes: SnakeShapeTables,
    marks: np.ndarray,
    pivots: np.ndarray,
    before: np.ndarray,
    taken: int,
) -> np.ndarray:
    """Samples the next bar's head for each attempt; returns the index of the chosen candidate, or -1 if no candidate is
    free: int64 [attempts].

    Args:
        marks: uint8 [cells of all boards].
        pivots: int64 [attempts], as cells of all boards.
        before: directions of the last bars, int64 [attempts].
        taken: mark of cells that the snake's footprint must avoid; the next higher mark closes a cell for heads.
    """
    is_open = marks[pivots[:, None] + shapes.heads] & taken * CLOSED == 0
    weights = np.cumsum(shapes.weights[before] * is_open, axis=1, dtype=np.int32)
    choices = np.full(len(pivots), -1)
    waiting = np.flatnonzero(weights[:, -1])
    for _ in range(DRAWS):
        of_waiting = weights[waiting]
        drawn = (rng.random(len(waiting)) * of_waiting[:, -1]).astype(np.int32)
        choice = (of_waiting <= drawn[:, None]).sum(axis=1)
        heads = pivots[waiting] + shapes.heads[choice]
        cells = heads[:, None] + shapes.footprints[shapes.head_shapes[choice]]
        is_free = ~(marks[cells] & taken).any(axis=1)
        choices[waiting[is_free]] = choice[is_free]
        waiting = waiting[~is_free]
        if not len(waiting):
            break
    return choices


def _mark_occupied_cells(shapes: SnakeShapeTables, marks: np.ndarray, bars: np.ndarray, snake: int) -> None:
    """Marks bars, int64 [bars, 2], as obstacles for one snake; each of the parallel boards gets at most one bar."""
    shape = np.searchsorted(shapes.moves, bars[:, 1] - bars[:, 0])
    marks[bars[:, 1, None] + shapes.surroundings[shape]] |= shapes.surrounding_marks[shape] << 2 * snake


def _free_start_cells(shapes: SnakeShapeTables, board: np.ndarray, shape: int) -> np.ndarray:
    """Returns the cells where the first bar of a snake would touch no other bar: int64 [free cells].

    A footprint includes all cells within a margin of the tail, so no result is in the border.
    """
    size, move = shapes.setting.size, int(shapes.moves[shape])
    first, last = (shapes.first + edge * (shapes.stride + 1) for edge in (1, size - 2))
    marks = np.zeros(last + 1 - first, np.uint8)
    for cell in set(shapes.footprints[shape].tolist()):
        marks |= board[first + move + cell : last + 1 + move + cell]
    return np.flatnonzero(marks & TAKEN == 0) + first
