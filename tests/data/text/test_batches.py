"""Tests of a language model's batches; in these texts, the id of each token is its position."""

import numpy as np
import pytest

from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.text.batches import evaluation_batches, memory_evaluation_batches, training_batches
from efficient_attention.data.text.rows import TextRows
from efficient_attention.errors import InputError

LENGTH = 8
KINDS = ('streams', 'windows')


def train(tokens=200, *, batches='streams', batch_size=4, seed=0, start=0, stop=6, **processes):
    block = HostBatchShard(batch_size, **processes)
    return list(training_batches(rows_of(tokens), batches, block, seed=seed, steps=range(start, stop)))


def evaluate(tokens, *, batch_size=4, stride=None, **processes):
    return list(evaluation_batches(rows_of(tokens), HostBatchShard(batch_size, **processes), stride=stride))


def rows_of(tokens, **fields):
    return TextRows(np.arange(tokens), LENGTH, **{'document_starts': np.zeros(1, np.int64)} | fields)


def images(count):
    return rows_of(count * LENGTH, document_starts=np.arange(count) * LENGTH, start=10**6)


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
    expected |= {'weights': ((4, LENGTH), np.float32)}
    assert types == expected | ({'lengths': ((4,), np.int32)} if kind == 'windows' else {})
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
        np.testing.assert_array_equal(read, np.concatenate([once, once]))  # After its end, a stream starts again.
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
    known = place + 1  # number of tokens in the row before the target
    assert (known >= np.minimum(targets, LENGTH - stride + 1)).all()
    assert (rows['segments'][row, place] == 1).all()


@pytest.mark.parametrize('tokens', [2, 8, 33, 34, 64, 65, 97, 200])
@pytest.mark.parametrize('streams, count', [(1, 1), (4, 1), (4, 2), (6, 3)])
def test_memory_evaluation_reads_every_stream_in_order_and_predicts_each_token_once(tokens, streams, count):
    blocks = [
        list(memory_evaluation_batches(rows_of(tokens), HostBatchShard(streams, index, count)))
        for index in range(count)
    ]
    assert len({len(block) for block in blocks}) == 1
    batches = [joined(each) for each in zip(*blocks, strict=True)]
    assert_same(batches, list(memory_evaluation_batches(rows_of(tokens), HostBatchShard(streams))))
    read = []
    for stream in range(streams):
        rows = {name: np.concatenate([np.atleast_1d(batch[name][stream]) for batch in batches]) for name in batches[0]}
        is_counted = rows['weights'] > 0
        assert (np.diff(rows['targets'][is_counted]) == 1).all()
        assert not is_counted[is_counted.sum() :].any(), 'padding should come last'
        np.testing.assert_array_equal(rows['tokens'][is_counted], rows['targets'][is_counted] - 1)
        np.testing.assert_array_equal(rows['segments'], is_counted)
        read.append(rows['targets'][is_counted])
    np.testing.assert_array_equal(np.concatenate(read), np.arange(1, tokens))
    longest = -(-(tokens - 1) // streams)
    assert max(map(len, read)) == longest and len(batches) == -(-longest // LENGTH)


STARTS = np.array([0, 3, 20, 21, 50, 90])


def document_of(tokens):
    return np.searchsorted(STARTS, tokens, side='right')


def cut_rows(tokens=100):
    return rows_of(tokens, document_starts=STARTS, cut_at_documents=True)


def test_windows_number_the_documents_of_a_row_from_1():
    block = HostBatchShard(4)
    trained = training_batches(cut_rows(), 'windows', block, seed=0, steps=range(20))
    batches = [*trained, *evaluation_batches(cut_rows(), block)]
    for batch in batches:
        documents = document_of(batch['tokens'])
        expected = np.where(batch['weights'] > 0, documents - documents[:, :1] + 1, 0)
        np.testing.assert_array_equal(batch['segments'], expected)
    assert max(batch['segments'].max() for batch in batches) > 1


@pytest.mark.parametrize('cut', [True, False])
def test_stream_segments_are_equal_exactly_within_a_document_of_one_reading(cut):
    rows = cut_rows() if cut else rows_of(100)
    steps = range(13)  # A stream is read once in 4 steps.
    batches = list(training_batches(rows, 'streams', HostBatchShard(3), seed=0, steps=steps))
    for stream in range(3):
        segments = np.concatenate([batch['segments'][stream] for batch in batches])
        documents = document_of(np.concatenate([batch['tokens'][stream] for batch in batches]))
        reading = np.repeat(np.arange(13) // 4, LENGTH)
        known = {}
        for segment, key in zip(segments, zip(documents * cut, reading, strict=True), strict=True):
            assert known.setdefault(key, segment) == segment > 0
        assert len(set(known.values())) == len(known)


def test_memory_evaluation_keeps_a_documents_number_from_segment_to_segment():
    for batch in memory_evaluation_batches(cut_rows(), HostBatchShard(3)):
        np.testing.assert_array_equal(
            batch['segments'], np.where(batch['weights'] > 0, document_of(batch['tokens']), 0)
        )


@pytest.mark.parametrize('kind', KINDS)
def test_rows_of_images_are_whole_and_every_byte_is_a_target(kind):
    seen = set()
    for batch in training_batches(images(7), kind, HostBatchShard(3), seed=0, steps=range(9)):
        assert (batch['targets'][:, 0] % LENGTH == 0).all() and (batch['weights'] == 1).all()
        np.testing.assert_array_equal(batch['targets'] - batch['targets'][:, :1], [np.arange(LENGTH)] * 3)
        assert (batch['tokens'][:, 0] == 10**6).all()
        np.testing.assert_array_equal(batch['tokens'][:, 1:], batch['targets'][:, :-1])
        seen |= {int(first) // LENGTH for first in batch['targets'][:, 0]}
    assert seen == (set(range(7)) if kind == 'windows' else set(range(6)))


@pytest.mark.parametrize('read', [evaluation_batches, memory_evaluation_batches])
def test_all_bytes_of_held_out_images_are_predicted_once(read):
    rows = joined(list(read(images(7), HostBatchShard(4))))
    is_counted = rows['weights'] > 0
    np.testing.assert_array_equal(np.sort(rows['targets'][is_counted]), np.arange(7 * LENGTH))
    assert (is_counted.all(axis=1) | ~is_counted.any(axis=1)).all()
    assert (rows['tokens'][is_counted.any(axis=1), 0] == 10**6).all()


def test_too_few_images_are_refused():
    block, first = HostBatchShard(4), {'seed': 0, 'steps': range(1)}
    line = r'^there are 3 images to train on, too few for 4 streams; lower train.batch_size$'
    with pytest.raises(InputError, match=line):
        training_batches(images(3), 'streams', block, **first)
    with pytest.raises(InputError, match='^there is no image to train on$'):
        training_batches(images(0), 'windows', block, **first)
    with pytest.raises(InputError, match='^no image is held out, so nothing can be predicted; raise data.held_out$'):
        evaluation_batches(images(0), block)


@pytest.mark.parametrize('kind', KINDS)
def test_a_text_shorter_than_one_segment_is_refused(kind):
    line = 'the text to train on has 8 tokens; one segment of data.length 8 needs 9: lower data.length or add text'
    with pytest.raises(InputError, match=f'^{line}$'):
        train(8, batches=kind, batch_size=1)
    assert train(9, batches=kind, batch_size=1, stop=1)


def test_a_text_too_short_for_its_streams_is_refused():
    line = r'the text to train on has 32 tokens; 4 streams \(train.batch_size\) of data.length 8 need 33'
    with pytest.raises(InputError, match=f'^{line}: lower one of the two$'):
        train(32)
    assert train(33, stop=1)


@pytest.mark.parametrize('tokens', [0, 1])
def test_a_held_out_text_with_nothing_to_predict_is_refused(tokens):
    with pytest.raises(
        InputError, match=f'^the held-out text has {tokens} tokens, so nothing can be predicted in it; raise'
    ):
        evaluate(tokens)


@pytest.mark.parametrize('read', [train, evaluate])
def test_a_batch_that_does_not_divide_is_refused(read):
    with pytest.raises(InputError, match='batch_size 4 does not divide over 3 processes'):
        read(200, process_count=3)
