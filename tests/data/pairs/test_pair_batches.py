"""Tests of batches of pairs: each pair once, equal padding of sources and targets, and shifted decoder inputs."""

import numpy as np
import pytest

from efficient_attention.data.pairs.pair_batches import PairBatches
from efficient_attention.data.pairs.pair_encoder import EncodedPair
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds

SYMBOLS = SequenceSpecialIds(pad=10, end=1, start=2), SequenceSpecialIds(pad=0, end=1, start=2)


def pairs_of(count: int) -> list[EncodedPair]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, (31, 17), (count, 2))
    return [
        EncodedPair(*(np.append(rng.integers(3, 9, n - 1), 1).astype(np.int32) for n in two), 'here') for two in lengths
    ]


PAIRS = pairs_of(50)


def batches(batch_size: int = 8, **options) -> PairBatches:
    return PairBatches(PAIRS, SYMBOLS, (30, 16), (8, 16, 24), batch_size, **options)


def test_each_pair_comes_once_an_epoch_with_all_of_its_tokens():
    seen = []
    for batch in batches().evaluation_batches(0, 1):
        for row, number in enumerate(batch['index']):
            if number < 0:
                assert not batch['weights'][row].any() and not batch['source_segments'][row].any()
                continue
            pair, (source, targets) = PAIRS[number], (batch['source'][row], batch['targets'][row])
            seen.append(number)
            assert source[batch['source_segments'][row] == 1].tolist() == pair.source.tolist()
            assert targets[: batch['segments'][row].sum()].tolist() == pair.target.tolist()
            assert batch['tokens'][row].tolist() == [2, *targets[:-1].tolist()]
            assert (batch['weights'][row] == batch['segments'][row]).all()
    assert sorted(seen) == list(range(50))


def test_lengths_are_those_of_the_buckets_as_far_as_each_side_goes():
    shapes = {(b['source'].shape[1], b['targets'].shape[1]) for b in batches().training_batches(0, 14, 0, 1)}
    assert shapes <= {(8, 8), (16, 16), (24, 16), (30, 16)}
    assert batches().tokens_per_step() <= 8 * 46


@pytest.mark.parametrize('processes', [1, 2])
def test_a_step_gives_the_same_pairs_whatever_came_before(processes: int):
    for process in range(processes):
        whole = [b['index'] for b in batches(seed=3).training_batches(0, 9, process, processes)]
        later = [b['index'] for b in batches(seed=3).training_batches(4, 9, process, processes)]
        assert np.array_equal(whole[4:], later)
    assert not np.array_equal(whole, [b['index'] for b in batches(seed=4).training_batches(0, 9, process, processes)])


@pytest.mark.parametrize('alone', [(True, False), (False, True), (True, True)])
def test_a_side_alone_is_padded_to_its_own_bucket(alone: tuple[bool, bool]):
    seen = []
    for batch in batches(alone=alone).evaluation_batches(0, 1):
        numbers = [number for number in batch['index'] if number >= 0]
        for side, is_alone, most in zip(('source', 'target'), alone, (30, 16), strict=True):
            lengths = [len(getattr(PAIRS[number], side)) for number in numbers]
            own = {min(next((b for b in (8, 16, 24) if n <= b), 30), most) for n in lengths}
            row = batch['source' if side == 'source' else 'targets'].shape[1]
            assert own == {row} if is_alone else max(lengths) <= row
        seen += numbers
    assert sorted(seen) == list(range(50))
