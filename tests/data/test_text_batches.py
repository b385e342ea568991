"""A language model's batches; every id in these texts tells where it stands."""

import numpy as np
import pytest

from efficient_attention.data.config import DataConfig
from efficient_attention.data.text_batches import segment, text_batches, text_evaluation_batches
from efficient_attention.errors import InputError

LENGTH = 8
KINDS = ('streams', 'windows')


def train(tokens=200, *, batches='streams', batch_size=4, seed=0, start=0, stop=6, **processes):
    config = DataConfig(length=LENGTH, batches=batches)
    steps = {'start_step': start, 'stop_step': stop}
    return list(text_batches(np.arange(tokens), config, batch_size=batch_size, seed=seed, **steps, **processes))


def evaluate(tokens, *, batch_size=4, **options):
    return list(text_evaluation_batches(np.arange(tokens), LENGTH, batch_size=batch_size, **options))


def joined(blocks):
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def assert_same(one, other):
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.mark.parametrize('kind', KINDS)
def test_shapes_types_and_targets(kind):
    (batch,) = train(batches=kind, stop=1)
    types = {name: (array.shape, array.dtype) for name, array in batch.items()}
    expected = dict.fromkeys(('tokens', 'targets', 'segments'), ((4, LENGTH), np.int32))
    assert types == expected | {'weights': ((4, LENGTH), np.float32)}
    np.testing.assert_array_equal(batch['targets'], batch['tokens'] + 1)
    assert (batch['weights'] == 1).all() and (batch['segments'] == 1).all()


@pytest.mark.parametrize('tokens, batch_size', [(200, 4), (33, 4), (97, 3), (9, 1)])
def test_each_stream_reads_its_own_contiguous_text(tokens, batch_size):
    part = (tokens - 1) // batch_size
    steps = part // LENGTH
    batches = train(tokens, batch_size=batch_size, stop=2 * steps)
    for row in range(batch_size):
        read = np.concatenate([batch['tokens'][row] for batch in batches])
        once = row * part + np.arange(steps * LENGTH)
        np.testing.assert_array_equal(read, np.concatenate([once, once]))  # then again from its start
    assert max(batch['targets'].max() for batch in batches) < tokens


def test_streams_leave_less_than_a_row_each_unread():
    batches = train(200, stop=6)
    read = {int(token) for batch in batches for token in batch['targets'].ravel()}
    assert len(read) == 4 * 6 * LENGTH > 200 - 1 - 4 * LENGTH


def test_windows_start_anywhere_and_end_with_the_text():
    starts = [int(row[0]) for batch in train(LENGTH + 3, batches='windows', stop=30) for row in batch['tokens']]
    assert set(starts) == {0, 1, 2}
    firsts = np.array([row[0] for batch in train(1000, batches='windows', stop=250) for row in batch['tokens']])
    assert firsts.min() < 20 and firsts.max() > 970 and abs(firsts.mean() - 495.5) < 40


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('start', [1, 5, 17])
def test_a_later_start_gives_the_tail(kind, start):
    assert_same(train(batches=kind, start=start, stop=18), train(batches=kind, stop=18)[start:])


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('count', [2, 4])
def test_blocks_of_all_processes_are_the_global_batch(kind, count):
    blocks = [train(batches=kind, process_index=index, process_count=count) for index in range(count)]
    assert_same([joined(each) for each in zip(*blocks, strict=True)], train(batches=kind))


def test_seeds_differ_for_windows_alone():
    assert_same(train(seed=0), train(seed=1))
    one, other = (train(batches='windows', seed=seed)[0]['tokens'] for seed in (0, 1))
    assert (one != other).any()


@pytest.mark.parametrize('tokens', [2, 3, 8, 9, 10, 16, 17, 64, 65, 127])
@pytest.mark.parametrize('batch_size, count', [(1, 1), (4, 1), (4, 2), (6, 3)])
def test_evaluation_predicts_every_token_but_the_first_once(tokens, batch_size, count):
    blocks = [
        evaluate(tokens, batch_size=batch_size, process_index=index, process_count=count) for index in range(count)
    ]
    assert len({len(block) for block in blocks}) == 1
    batches = [joined(each) for each in zip(*blocks, strict=True)]
    assert_same(batches, evaluate(tokens, batch_size=batch_size))
    rows = joined(batches)
    is_counted = rows['weights'] > 0
    np.testing.assert_array_equal(np.sort(rows['targets'][is_counted]), np.arange(1, tokens))
    np.testing.assert_array_equal(rows['tokens'][is_counted], rows['targets'][is_counted] - 1)
    assert rows['weights'].sum() == tokens - 1
    np.testing.assert_array_equal(rows['segments'], is_counted)


@pytest.mark.parametrize('tokens', [2, 8, 9, 10, 17, 64])
@pytest.mark.parametrize('stride', [1, 3, 7])
def test_a_sliding_window_predicts_every_token_once_with_enough_before_it(tokens, stride):
    rows = joined(evaluate(tokens, batch_size=3, stride=stride))
    row, place = np.nonzero(rows['weights'])
    targets = rows['targets'][row, place]
    np.testing.assert_array_equal(np.sort(targets), np.arange(1, tokens))
    np.testing.assert_array_equal(rows['tokens'][row, place], targets - 1)
    known = place + 1  # tokens of the row up to the one before the target
    assert (known >= np.minimum(targets, LENGTH - stride + 1)).all()
    assert (rows['segments'][row, place] == 1).all()


def test_a_segment_beyond_the_text_is_padding():
    for start in (19, 20, 100):
        assert not any(array.any() for array in segment(np.arange(20), start, LENGTH).values())


@pytest.mark.parametrize('kind', KINDS)
def test_a_text_shorter_than_one_segment_is_refused(kind):
    line = 'the text to train on has 8 tokens; one segment of data.length 8 needs 9'
    with pytest.raises(InputError, match=f'^{line}$'):
        train(8, batches=kind, batch_size=1)
    assert train(9, batches=kind, batch_size=1, stop=1)


def test_a_text_too_short_for_its_streams_is_refused():
    line = r'the text to train on has 32 tokens; 4 streams \(train.batch_size\) of data.length 8 need 33'
    with pytest.raises(InputError, match=f'^{line}$'):
        train(32)
    assert train(33, stop=1)


@pytest.mark.parametrize('tokens', [0, 1])
def test_a_held_out_text_with_nothing_to_predict_is_refused(tokens):
    with pytest.raises(InputError, match=f'^the held-out text has {tokens} tokens; nothing can be predicted in it$'):
        evaluate(tokens)


@pytest.mark.parametrize('read', [train, evaluate])
def test_a_batch_that_does_not_divide_is_refused(read):
    with pytest.raises(InputError, match='batch_size 4 does not divide over 3 processes'):
        read(200, process_count=3)
