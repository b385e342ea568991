"""Tests of the shallow baselines: which features they read, and that they learn the signal in them."""

import numpy as np
import pytest

from efficient_attention.data.arena.dataset_interface import ArenaRow
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.pathfinder import pathfinder_image
from efficient_attention.data.arena.shallow_baselines import (
    baseline_accuracies,
    baseline_names,
    digits_under_root,
    disc_places,
    majority_class_baseline,
    pixel_baseline,
    trigram_baseline,
    trigram_features,
)


def rows_of(texts: list[str], labels: list[int]) -> list[ArenaRow]:
    return [
        ArenaRow((np.frombuffer(text.encode(), np.uint8).astype(np.uint16),), label)
        for text, label in zip(texts, labels, strict=True)
    ]


def test_the_root_of_listops_tells_a_third():
    """The root operator predicts 36 % of the labels at Long Range Arena's lengths, and at shorter lengths too."""
    found = open_arena_dataset('listops:rows=300:length=20-80', 'x')
    train, test = list(found.rows('train')), list(found.rows('dev'))
    scores = baseline_accuracies(found, train, test)
    assert list(scores) == ['majority', 'root', 'root_digits']
    assert 0.1 < scores['majority'] < scores['root'] < scores['root_digits'] < 0.7 and scores['root'] > 0.25


def test_digits_directly_under_the_root():
    # The words of the row are [MAX 1 [MIN 2 3 ] 4 ].
    assert digits_under_root(np.array([11, 1, 10, 2, 3, 14, 4, 14], np.uint16)) == [1, 4]


def test_a_linear_model_of_bytes():
    texts = [f'{"good" if number % 2 else "poor"} film {number}' for number in range(60)]
    rows = rows_of(texts, [number % 2 for number in range(60)])
    assert (trigram_baseline(rows[:40])(rows[40:]) == [row.label for row in rows[40:]]).all()
    assert (majority_class_baseline(rows[:39])(rows[40:]) == 0).all()


def test_of_two_texts_it_reads_how_alike_they_are():
    pairs = [
        ArenaRow((rows_of(['abcdef'], [0])[0].texts[0], rows_of([other], [0])[0].texts[0]), 0)
        for other in ('abcdef', 'uvwxyz')
    ]
    assert trigram_features(pairs).toarray()[:, 0] == pytest.approx([1.0, 0.0], abs=1e-6)


def test_a_linear_model_of_pixels():
    rng = np.random.default_rng(0)
    rows = [ArenaRow((rng.integers(0, 128, 64) + 100 * (number % 2),), number % 2) for number in range(80)]
    assert (pixel_baseline(rows[:60])(rows[60:]) == [row.label for row in rows[60:]]).all()


@pytest.mark.parametrize('size, bars', [(16, 4), (20, 3), (32, 14), (64, 6)])
def test_the_places_of_the_discs_are_found_in_the_pixels(size: int, bars: int):
    images = [pathfinder_image(np.random.default_rng(number), size, bars) for number in range(20)]
    found = disc_places([ArenaRow((image.pixels.reshape(-1),), image.label) for image in images])
    wanted = np.array([image.discs for image in images])
    both_ways = [np.abs(found.reshape(-1, 2, 2) - order).max(axis=(1, 2)) for order in (wanted, wanted[:, ::-1])]
    assert np.minimum(*both_ways).max() <= 2


def test_where_the_discs_are_tells_much():
    found = open_arena_dataset('pathfinder:rows=200:size=20:bars=easy:starts=fixed', 'x')
    scores = baseline_accuracies(found, list(found.rows('train')), list(found.rows('dev')))
    assert list(scores) == baseline_names('pathfinder') == ['majority', 'pixels', 'discs']
    assert scores['majority'] < 0.55 < 0.65 < min(scores['pixels'], scores['discs'])
    assert max(scores['pixels'], scores['discs']) < 0.85


def test_a_bag_of_words_tells_more_of_recall_than_its_most_frequent_class():
    """The most frequent value of a row predicts better than the most frequent class of all rows, without any recall."""
    found = open_arena_dataset('recall:rows=600:length=64:pairs=4:keys=8:values=4', 'x')
    scores = baseline_accuracies(found, list(found.rows('train')), list(found.rows('dev')))
    assert list(scores) == baseline_names('recall') == ['majority', 'values']
    assert scores['majority'] < 0.32 < 0.4 < scores['values'] < 0.6
