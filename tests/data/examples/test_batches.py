"""Tests of batches of rows of different lengths: each row once an epoch, restart at any step, and little padding."""

import itertools

import numpy as np
import pytest

from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.errors import InputError

BUCKETS = (8, 16, 32)


def features(count: int = 45, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 40, count)
    return [
        {
            'tokens': np.full(length, number + 1, np.int32),
            'token_types': np.ones(length, np.int32),
            'label': np.int32(number),
            'offset_start': np.zeros(length, np.int32),  # This array stays on the host.
        }
        for number, length in enumerate(lengths)
    ]


def batches_of(rows: list, batch_size: int = 4, seed: int = 0) -> FeatureBatches:
    return FeatureBatches(rows, BUCKETS, 48, batch_size, pad=0, seed=seed)


def test_an_epoch_and_an_evaluation_hold_every_row_once():
    batches = batches_of(features())
    steps = batches.steps_per_epoch
    assert steps == 12
    for some in (
        batches.training_batches(0, steps, 0, 1),
        batches.training_batches(steps, 2 * steps, 0, 1),
        batches.evaluation_batches(0, 1),
    ):
        every = list(some)
        index = np.concatenate([batch['index'] for batch in every])
        assert sorted(index[index >= 0]) == list(range(45)) and (index == -1).sum() == 3
        weights = np.concatenate([batch['weights'] for batch in every])
        np.testing.assert_array_equal(weights, index >= 0)
        for batch in every:
            np.testing.assert_array_equal(batch['label'], np.maximum(batch['index'], 0))


def test_rows_are_padded_to_the_smallest_length_that_holds_them():
    rows = features()
    for batch in batches_of(rows).training_batches(0, 12, 0, 1):
        longest = max(len(rows[i]['tokens']) for i in batch['index'] if i >= 0)
        length = batch['tokens'].shape[1]
        assert length == next((bucket for bucket in BUCKETS if longest <= bucket), 48)
        np.testing.assert_array_equal(batch['segments'], batch['tokens'] > 0)
        assert 'offset_start' not in batch


def test_short_numbers_become_those_of_a_model():
    short = [feature | {'tokens': feature['tokens'].astype(np.uint16)} for feature in features()]
    both = (batches_of(rows).training_batches(0, 3, 0, 1) for rows in (short, features()))
    for batch, expected in zip(*both, strict=True):
        assert batch['tokens'].dtype == np.int32
        np.testing.assert_array_equal(batch['tokens'], expected['tokens'])


@pytest.mark.parametrize('batch_size', [1, 4, 16])
def test_rows_alone_are_padded_to_their_own_length_in_an_evaluation(batch_size: int):
    rows = features()
    found = {}
    for batch in FeatureBatches(rows, BUCKETS, 48, batch_size, pad=0, is_row_alone=True).evaluation_batches(0, 1):
        assert len(batch['tokens']) == batch_size
        found |= dict.fromkeys(batch['index'][batch['index'] >= 0].tolist(), batch['tokens'].shape[1])
    assert found == {i: next((b for b in BUCKETS if len(row['tokens']) <= b), 48) for i, row in enumerate(rows)}


def test_rows_of_similar_length_come_together():
    rows = features(400)
    batches = list(batches_of(rows, 8).training_batches(0, 50, 0, 1))
    as_they_come = [
        batches_of(rows, 8).length_buckets.bucket_of_rows(np.arange(start, start + 8)) * 8 for start in range(0, 400, 8)
    ]
    assert sum(batch['tokens'].size for batch in batches) < 0.7 * sum(as_they_come)


def test_a_step_is_a_function_of_seed_and_step():
    rows = features()
    one = list(batches_of(rows).training_batches(0, 20, 0, 1))
    for step, batch in enumerate(batches_of(rows).training_batches(15, 20, 0, 1), 15):
        np.testing.assert_array_equal(batch['index'], one[step]['index'])
    other = next(batches_of(rows, seed=1).training_batches(0, 1, 0, 1))
    assert not np.array_equal(one[0]['index'], other['index'])


def test_processes_share_out_each_batch():
    rows = features()
    whole = batches_of(rows).training_batches(0, 13, 0, 1)
    parts = [batches_of(rows).training_batches(0, 13, process, 2) for process in range(2)]
    for batch, first, second in itertools.islice(zip(whole, *parts, strict=True), 13):
        for name, array in batch.items():
            np.testing.assert_array_equal(array, np.concatenate([first[name], second[name]]), err_msg=name)


def test_choices_are_padded_within_the_row():
    tokens = np.array([[1, 2, 3, 0], [1, 2, 3, 4]], np.int32)
    row = {'tokens': tokens, 'token_types': tokens * 0, 'lengths': np.array([3, 4], np.int32), 'label': np.int32(1)}
    batch = next(batches_of([row], 2).evaluation_batches(0, 1))
    assert batch['tokens'].shape == (2, 2, 8)
    np.testing.assert_array_equal(batch['segments'][0].sum(-1), [3, 4])
    assert not batch['segments'][1].any() and batch['index'][1] == -1


def test_rows_without_labels_have_no_weight():
    rows = [{name: row[name] for name in ('tokens', 'token_types')} for row in features(3)]
    batch = next(batches_of(rows).evaluation_batches(0, 1))
    assert not batch['weights'].any() and 'label' not in batch and (batch['index'] >= 0).sum() == 3


def test_nothing_to_train_on():
    with pytest.raises(InputError, match='^there is no row to train on$'):
        next(batches_of([]).training_batches(0, 1, 0, 1))


def test_rows_with_and_without_labels_share_a_batch():
    rows = features(3)
    del rows[0]['label']
    batch = next(batches_of(rows).evaluation_batches(0, 1))
    by_row = dict(zip(batch['index'].tolist(), batch['weights'].tolist(), strict=True))
    assert by_row == {0: 0.0, 1: 1.0, 2: 1.0, -1: 0.0}


def texts_of_sentences() -> list[dict[str, np.ndarray]]:
    rows = []
    for number in range(20):
        lengths = np.random.default_rng(number).integers(1, 40, 1 + 3 * number % 23).astype(np.int32)
        tokens = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int32) * (number + 1)
        rows.append({'tokens': tokens, 'lengths': lengths, 'label': np.int32(number)})
    return rows


def test_texts_with_as_many_sentences_share_a_batch_and_both_axes_have_buckets():
    rows = texts_of_sentences()
    batches, padded = FeatureBatches(rows, BUCKETS, 48, 4, pad=0, sentences=24), []
    for batch in batches.evaluation_batches(0, 1):
        shapes = np.array([rows[index]['tokens'].shape for index in batch['index'] if index >= 0])
        expected = [next((one for one in BUCKETS if one >= longest), 48) for longest in shapes.max(axis=0)]
        expected[0] = min(expected[0], 24)
        assert batch['tokens'].shape == (4, *expected)
        np.testing.assert_array_equal(batch['segments'], batch['tokens'] > 0)
        np.testing.assert_array_equal(batch['label'], np.maximum(batch['index'], 0))
        padded.append(np.prod(batch['tokens'].shape))
    assert sorted(index for batch in batches.evaluation_batches(0, 1) for index in batch['index']) == list(range(20))
    assert padded[0] > 2 * padded[-1] and batches.tokens_per_step() <= 4 * 24 * 48
