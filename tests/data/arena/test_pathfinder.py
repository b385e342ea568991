"""Tests of Pathfinder images: following the drawn bars gives the label, and equal seeds give equal bytes."""

import functools
import hashlib

import numpy as np
import pytest
from scipy.spatial import cKDTree

from efficient_attention.data.arena.pathfinder import SETTINGS, SIZES, bars_per_difficulty, pathfinder_image
from efficient_attention.errors import InputError

EASY, MIDDLE, HARD = bars_per_difficulty(32).values()
LARGE = [(64, HARD), (128, HARD), (256, HARD)]


def generator(index, seed=0):
    key, counter = np.array([seed, 1], np.uint64), np.array([0, index, 0, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


@functools.cache
def image_of(index, size, bars):
    options = {'fixed': True} if size == 20 else {}  # The configs with 20-pixel images also set `fixed`.
    return pathfinder_image(generator(index), size, bars, **options)


def images(size, bars, count):
    return [image_of(index, size, bars) for index in range(count)]


def sha256(arrays):
    return hashlib.sha256(b''.join(array.tobytes() for array in arrays)).hexdigest()


def follow(image):
    """Returns the end of a walk over the bars that starts at the first disc and always takes the smoothest next bar.

    It knows the bars of the image, but not which of them form a snake.
    """
    bars = np.concatenate([*image.snakes, *image.distractors]).astype(float)
    (now,) = np.flatnonzero((bars[:, 0] == image.discs[0]).all(1))
    unseen = np.ones(len(bars), bool)
    while True:
        unseen[now] = False
        tail, head = bars[now]
        step = (head - tail) / np.linalg.norm(head - tail)
        off = np.linalg.norm(bars[:, 0] - (head + 2 * image.margin * step), axis=1)
        turned = ((bars[:, 1] - bars[:, 0]) @ step) < 0
        off[~unseen | turned] = np.inf
        if off.min() > 2.2 * image.margin + 0.5:
            return head
        now = off.argmin()


def segment_points(bars):
    """Returns 9 points along each bar, as an array [bars, 9, 2]."""
    return bars[:, :1] + (bars[:, 1:] - bars[:, :1]) * np.linspace(0, 1, 9)[:, None]


def distances(points, others):
    """Returns the distance from each point to the nearest point of `others`."""
    return cKDTree(others).query(points)[0]


def windows(pixels, reach):
    """Returns the square of pixels around each pixel, as an array [size, size, 2 reach + 1, 2 reach + 1]."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(pixels, reach), (2 * reach + 1,) * 2)


# ---- Tests of the label ----


@pytest.mark.parametrize(
    'size, bars, count', [(16, 4, 50), (20, 3, 50), (32, HARD, 100), (32, EASY, 50), (64, EASY, 20), (128, HARD, 10)]
)
def test_the_label_says_whether_the_discs_are_the_ends_of_one_snake(size, bars, count):
    for image in images(size, bars, count):
        starts = [np.array_equal(snake[0, 0], image.discs[0]) for snake in image.snakes]
        ends = [np.array_equal(snake[-1, 1], image.discs[1]) for snake in image.snakes]
        assert sum(starts) == sum(ends) == 1
        assert image.label == (starts == ends)


@pytest.mark.parametrize(
    'size, bars, count', [(16, 4, 50), (20, 3, 50), (32, HARD, 100), (32, EASY, 50), (64, EASY, 20), (128, HARD, 10)]
)
def test_bars_go_on_where_the_last_one_ends_and_turn_as_little_as_the_continuity_says(size, bars, count):
    rounding = 2.0  # Rounding the two moves from a head to the next tail adds up to 2 cells.
    for image in images(size, bars, count):
        for snake in (*image.snakes, *image.distractors):
            gaps = np.linalg.norm(snake[1:, 0] - snake[:-1, 1], axis=1)
            assert (np.abs(gaps - 2 * image.margin) <= rounding).all()
            bar_vectors = snake[:, 1] - snake[:, 0]
            assert (np.abs(np.linalg.norm(bar_vectors, axis=1) - SETTINGS[size].bar_length) <= 1).all()
            directions = np.degrees(np.arctan2(bar_vectors[:, 0], bar_vectors[:, 1]))
            turns = np.abs((np.diff(directions) + 180) % 360 - 180)
            # Bars end on whole cells, which adds up to 20 degrees.
            assert (turns <= 90 / SETTINGS[size].continuity + 20).all()


@pytest.mark.parametrize(
    'size, bars, count', [(16, 4, 100), (20, 3, 50), (32, EASY, 100), (64, EASY, 30), (128, HARD, 20), (256, HARD, 3)]
)
def test_following_the_bars_by_eye_finds_the_label(size, bars, count):
    """A walk from bar to bar finds the label without knowing the snakes. In small images it errs now and then."""
    found = [np.array_equal(follow(image), image.discs[1]) == image.label for image in images(size, bars, count)]
    assert np.mean(found) >= (0.8 if size <= 32 else 0.9)


@pytest.mark.parametrize(
    'size, bars, count', [(16, 4, 100), (20, 3, 50), (32, HARD, 100), (64, HARD, 3), (128, HARD, 20)]
)
def test_snakes_keep_clear_of_one_another(size, bars, count):
    for image in images(size, bars, count):
        chains = [segment_points(chain.astype(float)).reshape(-1, 2) for chain in (*image.snakes, *image.distractors)]
        for number, chain in enumerate(chains):
            others = np.concatenate(chains[:number] + chains[number + 1 :])
            assert distances(chain, others).min() > 1.5 * image.margin


@pytest.mark.parametrize(
    'size, bars, count', [(16, 4, 400), (32, EASY, 100), (32, HARD, 100), (64, EASY, 30), (128, HARD, 20)]
)
def test_both_labels_and_both_snakes_are_equally_likely(size, bars, count):
    many = images(size, bars, count)
    labels = [image.label for image in many]
    firsts = [np.array_equal(image.snakes[0][0, 0], image.discs[0]) for image in many]
    for values in (labels, firsts, np.equal(labels, firsts)):
        assert abs(np.mean(values) - 0.5) < 3 * 0.5 / np.sqrt(len(values))


# ---- Tests of the drawn pixels ----


@pytest.mark.parametrize('size, bars', [(16, 4), (20, 3), (32, EASY), (32, HARD), *LARGE])
def test_pixels_are_bright_on_bars_and_discs_and_dark_elsewhere(size, bars):
    for image in images(size, bars, 3 if size < 256 else 1):
        assert image.pixels.shape == (size, size) and image.pixels.dtype == np.uint8
        assert image.pixels.min() == 0 and image.pixels.max() == 255
        everything = np.concatenate([*image.snakes, *image.distractors])
        rows, columns = everything.mean(axis=1).round().astype(int).T
        assert (windows(image.pixels, 1).max(axis=(2, 3))[rows, columns] > 60).all()
        cells = np.stack(np.mgrid[:size, :size], axis=-1).reshape(-1, 2)
        is_far = distances(cells, segment_points(everything).reshape(-1, 2)) > 2.5
        is_far &= distances(cells, image.discs) > SETTINGS[size].disc_radius + 2
        assert is_far.any() and image.pixels[is_far.reshape(size, size)].max() <= 12


@pytest.mark.parametrize('size, bars', [(16, 4), (20, 3), (32, HARD), *LARGE])
def test_both_discs_are_seen(size, bars):
    """Around each disc's centre, half of the pixels within its radius are bright; nowhere else are so many bright."""
    reach = int(SETTINGS[size].disc_radius)
    for image in images(size, bars, 3):
        is_disc = np.median(windows(image.pixels, reach), axis=(2, 3)) > 120
        assert is_disc[tuple(image.discs.T)].all()
        apart = np.linalg.norm(np.argwhere(is_disc)[:, None] - image.discs, axis=-1).min(axis=1)
        assert apart.max() <= reach + 2


@pytest.mark.parametrize('size', SIZES[2:])
@pytest.mark.parametrize('bars, longest', [(2, 0), (4, 1), (6, 2), (9, 3)])
def test_numbers_of_bars(size, bars, longest):
    image = pathfinder_image(generator(0), size, bars)
    assert [snake.shape for snake in image.snakes] == [(bars, 2, 2)] * 2
    assert {distractor.shape for distractor in image.distractors} <= {(longest, 2, 2)}
    most = SETTINGS[size].distractor_bars // longest if longest else 0
    assert most * 0.7 <= len(image.distractors) <= most


def test_harder_images_have_more_bars():
    assert (EASY, MIDDLE, HARD) == (6, 9, 14) and all(
        bars_per_difficulty(size) == bars_per_difficulty(32) for size in SIZES[2:]
    )
    assert all(
        list(bars_per_difficulty(size).values()) == sorted(set(bars_per_difficulty(size).values())) for size in SIZES
    )
    easy, hard = images(32, EASY, 1)[0], images(32, HARD, 1)[0]
    assert len(easy.snakes[0]) == 6 and len(hard.snakes[0]) == 14
    assert {len(distractor) for distractor in hard.distractors} == {4}


def test_fewer_distractors():
    with_all, with_two, without = (
        pathfinder_image(generator(0), 128, HARD, distractors=count) for count in (None, 2, 0)
    )
    assert len(with_all.distractors) > len(with_two.distractors) == 2 and without.distractors == ()
    assert np.array_equal(with_all.snakes, without.snakes) and with_all.label == without.label
    assert with_all.pixels.sum() > with_two.pixels.sum() > without.pixels.sum()


def test_fixed_starts_lie_side_by_side_in_the_middle_with_a_disc_on_the_left_one():
    size, many = 20, images(20, 3, 100)
    tails = {tuple(map(tuple, (image.snakes[0][0, 0], image.snakes[1][0, 0]))) for image in many}
    (((row, left), (same, right)),) = tails
    assert row == same == size // 2 and right - left == SETTINGS[size].seed_distance and abs(left + right - size) <= 1
    assert {tuple(image.discs[0]) for image in many} == {(row, left)}
    assert len({image.pixels.tobytes() for image in many}) == len(many)
    assert len({tuple(image.discs[1]) for image in many}) > 50
    assert abs(np.mean([image.label for image in many]) - 0.5) < 3 * 0.5 / np.sqrt(len(many))


def test_both_margins_of_path_x_are_drawn():
    assert {image.margin for image in images(128, HARD, 20)} == {2, 3}


# ---- Tests of the random draws ----


def test_an_image_is_a_function_of_its_draws():
    first = images(32, HARD, 100)
    again = [pathfinder_image(generator(index), 32, HARD) for index in reversed(range(20))]
    assert sha256(image.pixels for image in reversed(again)) == sha256(image.pixels for image in first[:20])
    assert len({image.pixels.tobytes() for image in first}) == len(first)
    assert not np.array_equal(pathfinder_image(generator(0, seed=1), 32, HARD).pixels, first[0].pixels)


def test_the_first_images_are_the_same_everywhere():
    """The images never change: a change would alter every data set. NumPy draws positions, Pillow also the greys."""
    first = images(32, HARD, 100)
    assert (
        sha256(np.array(image.snakes, '<i2') for image in first)
        == '7f15c20d3404e412ce452bf019a8d3f44ba4b70c2ccacee85e4dff0699497063'
    )
    assert sha256(image.pixels for image in first) == '71163ce1248f88ea65193c68ada9f2823962ceb626aa0fe165f65a389022216e'
    small = [image.pixels for image in (*images(16, 4, 100), *images(20, 3, 100))]
    assert sha256(small) == '6f5d0300cdb67b38f7a307c4422278829527e242f498333cba050ea44342d1b2'
    large = [images(size, bars, 3)[0] for size, bars in LARGE]
    assert sha256(image.pixels for image in large) == 'b96baa9489a5b2d96ca813e5d532f416988ac12d0ce517b08c9d01427dc4366e'


# ---- Tests of bad input ----


@pytest.mark.parametrize(
    'arguments, line',
    [
        ({'size': 48}, r'^arena size is 48; it must be one of 16, 20, 32, 64, 128, 256$'),
        ({'size': 32.0}, r'^arena size is 32\.0; it must be one of 16, 20, 32, 64, 128, 256$'),
        ({'bars': 1}, r'^arena bars is 1; it must be at least 2$'),
        ({'bars': 6.5}, r'^arena bars is 6\.5; it must be a whole number$'),
        ({'size': 16, 'fixed': True}, r'^arena starts are fixed; 16 x 16 pixels have too few such images$'),
        ({'distractors': -1}, r'^arena distractors is -1; it must be at least 0$'),
    ],
)
def test_bad_arguments_are_named(arguments, line):
    given = {'size': 32, 'bars': 6, **arguments}
    with pytest.raises(InputError, match=line):
        pathfinder_image(generator(0), given.pop('size'), given.pop('bars'), **given)
