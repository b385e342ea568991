"""Tests of the statistics of heads against numbers computed by hand."""

from typing import Any

import numpy as np
import pytest

from efficient_attention.inspection.head_statistics import (
    HeadDistances,
    HeadStatistics,
    divergences,
    is_punctuation,
    map_of_heads,
)

CLASSES = {'cls': np.array([True, False, False, False]), 'sep': np.array([False, False, False, True])}


def layer_of(weights: Any, number: int = 0, norms: Any = None) -> dict[str, Any]:
    """Returns a layer as the pipeline `attention` returns it."""
    return {
        'layer': number,
        'weights': np.float32(weights),
        'value_norms': None if norms is None else np.float32(norms),
    }


def test_statistics_are_means_over_the_queries():
    uniform, itself = np.full((4, 4), 0.25), np.eye(4)
    statistics = HeadStatistics()
    statistics.add(layer_of([uniform, itself]), CLASSES)
    first, second = statistics.result()
    assert (first['layer'], first['head'], second['head']) == (0, 0, 1)
    assert first['entropy'] == pytest.approx(np.log(4)) and second['entropy'] == 0
    assert first['mean_distance'] == pytest.approx((6 + 4 + 4 + 6) / 16) and second['mean_distance'] == 0
    # The first query has no previous token, the last no next one: 3 of 4 queries give them a quarter.
    expected = {'cls': 0.25, 'sep': 0.25, 'self': 0.25, 'previous': 3 / 16, 'next': 3 / 16}
    assert first['shares'] == pytest.approx(expected) and first['value_shares'] == {}
    assert second['shares'] == pytest.approx({'cls': 0.25, 'sep': 0.25, 'self': 1, 'previous': 0, 'next': 0})


def test_shares_are_weighed_by_the_length_of_values():
    statistics = HeadStatistics()
    statistics.add(layer_of([np.full((4, 4), 0.25)], norms=[[0, 1, 2, 1]]), CLASSES)
    [found] = statistics.result()
    assert found['value_shares']['cls'] == 0 and found['value_shares']['sep'] == pytest.approx(0.25)
    assert found['value_shares']['self'] == pytest.approx((0 + 0.25 + 0.5 + 0.25) / 4)
    assert found['shares']['cls'] == pytest.approx(0.25)


def test_windows_add_up_and_queries_without_keys_do_not_count():
    statistics = HeadStatistics()
    statistics.add(layer_of([[[0, 0], [1, 0]]]), {})
    statistics.add(layer_of([[[1, 0], [0, 1]]]), {})
    [found] = statistics.result()
    assert found['shares'] == pytest.approx({'self': 2 / 3, 'previous': 1 / 3, 'next': 0})
    assert found['mean_distance'] == pytest.approx(1 / 3)


def test_keys_of_a_memory_come_first():
    statistics = HeadStatistics()
    statistics.add(layer_of([[[0, 0, 1, 0], [1, 0, 0, 0]]]), {'first': CLASSES['cls']})
    [found] = statistics.result()
    assert found['shares'] == pytest.approx({'first': 0.5, 'self': 0.5, 'previous': 0, 'next': 0})
    assert found['mean_distance'] == pytest.approx(1.5)


def test_many_queries_are_read_in_blocks():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(300), (1, 300))
    statistics = HeadStatistics()
    statistics.add(layer_of(weights), {})
    [found] = statistics.result()
    assert found['shares']['previous'] == pytest.approx(np.diagonal(weights[0], -1).sum() / 300, rel=1e-5)
    places = np.arange(300)
    assert found['mean_distance'] == pytest.approx((weights[0] * abs(places[:, None] - places)).sum() / 300, rel=1e-5)


@pytest.mark.parametrize('channels', [1, 3])
def test_the_distance_between_pixels_is_euclidean(channels: int):
    count = 12 * channels  # a start token, and the bytes of a 3 x 4 image without the last
    weights = np.zeros((1, count, count))
    weights[0, :, 0], weights[0, 1:, -1] = 1, 0.5  # all read the start, and all but it the last byte
    statistics = HeadStatistics(image_shape=(3, 4, channels))
    statistics.add(layer_of(weights), {})
    [found] = statistics.result()
    row, column = (2, 2) if channels == 1 else (2, 3)  # the last byte of one channel is that of the pixel before
    pixels = [(y, x) for y in range(3) for x in range(4) for _ in range(channels)][:-1]
    assert found['mean_distance'] == pytest.approx(np.mean([np.hypot(row - y, column - x) for y, x in pixels]))


def test_shares_of_the_pixels_to_the_left_and_above():
    count = 12 * 3
    weights = np.zeros((2, count, count))
    weights[0, 3:, :-3] += np.eye(count - 3)  # the same channel one pixel before, or the start token
    weights[1, 12:, :-12] += np.eye(count - 12)  # the same channel one row of 4 pixels before, or the start token
    statistics = HeadStatistics(image_shape=(3, 4, 3))
    statistics.add(layer_of(weights), {})
    left, above = (one['shares'] for one in statistics.result())
    # 35 bytes are read: 9 in the first columns of 3 rows have none to the left, and 12 in the first row none above.
    assert left == pytest.approx({'self': 0, 'previous': 0, 'next': 0, 'left': (35 - 9) / 33, 'above': 0})
    assert above == pytest.approx({'self': 0, 'previous': 0, 'next': 0, 'left': 0, 'above': (35 - 12) / 24})


def test_the_divergence_of_two_heads():
    one, other = [[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]
    found = divergences(np.array([one, other, one]))
    np.testing.assert_allclose(found, np.log(2) * np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]), atol=1e-12)
    distances = HeadDistances()
    for number in range(2):
        for layer, weights in enumerate((one, other)):
            distances.add(layer_of([weights], layer))
        distances.end_window()
        assert distances.queries == 2 * (number + 1)
    assert distances.heads == [(0, 0), (1, 0)]
    np.testing.assert_allclose(distances.result(), np.sqrt(np.log(2) / 2) * (1 - np.eye(2)), atol=1e-7)


def test_the_map_keeps_distances_in_a_plane():
    places = np.random.default_rng(0).normal(size=(5, 2))
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    found = map_of_heads(distances)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=-1), distances, atol=1e-9)
    assert map_of_heads(np.zeros((1, 1))).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    'token, is_mark', [('.', True), ('##,', True), ('Ġ(', True), ('▁...', True), ('[SEP]', False), ('a.', False)]
)
def test_punctuation(token: str, is_mark: bool):
    assert is_punctuation(token) is is_mark
    assert not is_punctuation('▁') and not is_punctuation('')
