"""Tests that training batches do not depend on the number of processes or workers, or on a run's first step."""

import collections
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.corpus.batches import (
    evaluation_batches,
    evaluation_row_count,
    tokens_per_second,
    training_batches,
)
from efficient_attention.errors import InputError, RunError
from tests.data.corpus.memory_corpus import MemoryCorpus, memory_corpus, memory_prepared, unmask

PAIRS = ('none', 'nsp', 'sop')


def make_config(**fields):
    return DataConfig(**{'length': 64, 'max_masked': 10} | fields)


def train(*, start=0, stop=6, config=None, prepared=None, batch_size=8, seed=0, **processes):
    batches = training_batches(
        prepared or memory_prepared(),
        config or make_config(),
        HostBatchShard(batch_size, **processes),
        seed=seed,
        steps=range(start, stop),
    )
    return list(batches)


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def all_equal(one, other):
    return len(one) == len(other) and all(equal(*batches) for batches in zip(one, other, strict=True))


def joined(blocks):
    """Returns a global batch joined from the blocks of all processes."""
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@pytest.mark.parametrize('pairs', PAIRS)
def test_shapes_and_types(pairs):
    batch = train(config=make_config(pairs=pairs), stop=1)[0]
    expected = dict.fromkeys(('tokens', 'segments', 'token_types', 'positions'), ((8, 64), np.int32))
    expected |= dict.fromkeys(('masked_positions', 'masked_tokens'), ((8, 10), np.int32))
    expected['masked_weights'] = ((8, 10), np.float32)
    if pairs != 'none':
        expected |= dict.fromkeys(('lengths', 'pair_labels'), ((8,), np.int32)) | {'pair_weights': ((8,), np.float32)}
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == expected


@pytest.mark.parametrize('pairs', PAIRS)
@pytest.mark.parametrize('count', [2, 4])
def test_blocks_of_all_processes_are_the_global_batch(pairs, count):
    config = make_config(pairs=pairs)
    blocks = [train(config=config, process_index=index, process_count=count) for index in range(count)]
    assert all_equal([joined(each) for each in zip(*blocks, strict=True)], train(config=config))


@pytest.mark.parametrize('pairs', PAIRS)
def test_a_later_start_gives_the_tail(pairs):
    config = make_config(pairs=pairs, mask_unit='ngram')
    whole = train(config=config, stop=40)  # 40 steps are several epochs.
    for start in (1, 17, 39, 40):
        assert all_equal(train(config=config, start=start, stop=40), whole[start:])


def test_the_batch_size_does_not_change_the_order_of_rows():
    assert all_equal([joined(train(batch_size=4, stop=12))], [joined(train(batch_size=8, stop=6))])


def test_seeds_differ():
    assert not equal(train(seed=0)[0], train(seed=1)[0])


def test_workers_build_the_same_batches():
    expected = train(stop=5)
    assert all_equal(train(stop=5, config=make_config(workers=2)), expected)


def test_an_error_in_a_worker_comes_through():
    prepared = memory_prepared()
    prepared.train.tokens = prepared.train.tokens - 10_000
    with pytest.raises(InputError, match=r'^train documents \[.*: token id -\d+ is not in the vocabulary'):
        train(prepared=prepared, config=make_config(workers=1))


def test_a_worker_that_was_killed_ends_the_input_with_one_line():
    config = make_config(workers=1, prefetch=1)
    batches = training_batches(memory_prepared(), config, HostBatchShard(8), seed=0, steps=range(10**6))
    next(batches)
    (worker,) = [child for child in multiprocessing.active_children() if 'grain' in child.name]
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(
        RunError, match=r'^a process that builds batches \(data\.workers\) ended with code -9; the same'
    ):
        for _ in batches:
            pass


def _read_until_killed(connection):
    batches = training_batches(memory_prepared(), make_config(workers=1), HostBatchShard(8), seed=0, steps=range(10**6))
    next(batches), next(batches)
    connection.send([child.pid for child in multiprocessing.active_children()])
    time.sleep(60)


def _is_running(pid):
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='reads /proc')
def test_workers_end_with_a_killed_parent():
    context = multiprocessing.get_context('spawn')
    receiver, sender = context.Pipe(duplex=False)
    parent = context.Process(target=_read_until_killed, args=(sender,))
    parent.start()
    sender.close()
    assert receiver.poll(60)
    workers = receiver.recv()
    assert len(workers) == 1 and all(map(_is_running, workers))
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    deadline = time.monotonic() + 10
    while any(map(_is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_is_running, workers))


LEAVE_IN_THE_MIDDLE = """
from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.batches import training_batches
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from tests.data.corpus.memory_corpus import memory_prepared
steps = dict(seed=0, steps=range(1000))
shard = HostBatchShard(8)
left = [training_batches(memory_prepared(), DataConfig(workers=workers), shard, **steps) for workers in (0, 1)]
print([next(batches)['tokens'].shape for batches in left])
"""


def test_a_program_may_end_in_the_middle():
    root = pathlib.Path(__file__).parents[3]
    ended = subprocess.run([sys.executable, '-c', LEAVE_IN_THE_MIDDLE], cwd=root, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, '[(8, 128), (8, 128)]\n', '')


def evaluate(prepared, config, *, batch_size, process_count=1, seed=0):
    """Returns the global evaluation batches, joined from the blocks of all processes."""
    blocks = [
        list(evaluation_batches(prepared, config, HostBatchShard(batch_size, index, process_count), seed=seed))
        for index in range(process_count)
    ]
    return [joined(each) for each in zip(*blocks, strict=True)]


@pytest.mark.parametrize('pairs', PAIRS)
@pytest.mark.parametrize(('batch_size', 'process_count'), [(1, 1), (4, 1), (7, 1), (8, 4), (64, 2)])
def test_evaluation_counts_every_row_once(pairs, batch_size, process_count):
    prepared, config = memory_prepared(), make_config(pairs=pairs)
    rows = joined(evaluate(prepared, config, batch_size=batch_size, process_count=process_count))
    is_real = rows['segments'].any(axis=1)
    assert is_real.sum() == evaluation_row_count(prepared, config, 0) and len(rows['tokens']) % batch_size == 0
    assert not rows['masked_weights'][~is_real].any() and rows['masked_weights'][is_real].any(axis=1).all()
    assert pairs == 'none' or not rows['pair_weights'][~is_real].any()
    once = joined(evaluate(prepared, config, batch_size=1))
    assert all(np.array_equal(rows[name][is_real], once[name]) for name in rows)


def test_evaluation_reads_every_held_out_token():
    prepared = memory_prepared()
    rows = joined(evaluate(prepared, make_config(), batch_size=4))
    seen = [unmask({name: rows[name][i] for name in rows}) for i in range(len(rows['tokens']))]
    counts = collections.Counter(np.concatenate(seen).tolist())
    assert all(counts[token] == 1 for token in prepared.held_out.tokens.tolist())


def test_evaluation_masks_are_fixed():
    prepared, config = memory_prepared(), make_config(pairs='sop')
    assert all_equal(*(evaluate(prepared, config, batch_size=4) for _ in range(2)))
    assert not all_equal(*(evaluate(prepared, config, batch_size=4, seed=seed) for seed in range(2)))


@pytest.mark.parametrize(('batch_size', 'process_count'), [(8, 3), (2, 4), (0, 1)])
def test_a_batch_that_does_not_divide_is_refused(batch_size, process_count):
    with pytest.raises(InputError, match=f'batch_size {batch_size} does not divide over {process_count} processes'):
        train(batch_size=batch_size, process_count=process_count)


def test_a_batch_far_larger_than_an_epoch_is_refused():
    with pytest.raises(InputError, match=r'train.batch_size is 1000000, but an epoch has \d+ rows'):
        train(batch_size=1_000_000)


def test_a_split_too_small_is_refused_before_the_first_batch():
    prepared = memory_prepared(held_out=MemoryCorpus([9, 9], [0, 2], 'held_out'))
    with pytest.raises(InputError, match='the held_out split has 1'):
        evaluation_batches(prepared, make_config(pairs='nsp'), HostBatchShard(4), seed=0)


def test_an_error_in_a_row_comes_through():
    prepared = memory_prepared()
    prepared.train.tokens = prepared.train.tokens + 10**6
    with pytest.raises(InputError, match=r'^train documents \[.*token id \d+ is not in the vocabulary'):
        train(prepared=prepared)


def test_throughput_is_measured():
    prepared = memory_prepared(memory_corpus(documents=400))
    batches = training_batches(prepared, make_config(), HostBatchShard(8), seed=0, steps=range(200))
    rate = tokens_per_second(batches, 150)
    print(f'{rate:,.0f} tokens/s')
    assert rate > 10_000
    with pytest.raises(ValueError, match='49 batches; 61 are needed'):
        tokens_per_second(batches, 60)
