"""Tests of packed rows: each pair once an epoch with all tokens, set by seed and step only, with little padding."""

import numpy as np
import pytest

from efficient_attention.data.batching.mixture import Mixture
from efficient_attention.data.pairs.packed_batches import PackedBatches, first_fit_packing
from efficient_attention.data.pairs.pair_batches import Batch, PairBatches
from efficient_attention.errors import InputError
from tests.data.pairs.test_pair_batches import PAIRS, SYMBOLS

LENGTHS = (40, 24)
Texts = tuple[tuple[int, ...], tuple[int, ...]]


def batches(batch_size: int = 4, **options) -> PackedBatches:
    return PackedBatches(PAIRS, SYMBOLS, LENGTHS, batch_size, **options)


def epoch_of(one: PackedBatches, epoch: int) -> list[Batch]:
    first = sum(one.steps_in_epoch(number) for number in range(epoch))
    return list(one.training_batches(first, first + one.steps_in_epoch(epoch), 0, 1))


def pairs_in(batch: Batch) -> list[Texts]:
    """Returns the pairs of a packed batch, one per segment; checks decoder inputs, positions and weights."""
    found = []
    for row in range(len(batch['source'])):
        sources, targets = batch['source_segments'][row], batch['segments'][row]
        assert sources.max() == targets.max()
        assert np.array_equal(batch['weights'][row], (targets > 0).astype(np.float32))
        for number in range(1, sources.max() + 1):
            source, target = np.flatnonzero(sources == number), np.flatnonzero(targets == number)
            for places, name in ((source, 'source_positions'), (target, 'positions')):
                assert np.array_equal(batch[name][row, places], np.arange(len(places)))
                assert np.ptp(places) == len(places) - 1
            ids = tuple(batch['targets'][row, target].tolist())
            assert tuple(batch['tokens'][row, target].tolist()) == (SYMBOLS[1].start, *ids[:-1])
            found.append((tuple(batch['source'][row, source].tolist()), ids))
    return found


def texts_of(numbers) -> list[Texts]:
    return sorted((tuple(PAIRS[n].source.tolist()), tuple(PAIRS[n].target.tolist())) for n in numbers)


@pytest.mark.parametrize('epoch', [0, 1, 4])
def test_an_epoch_has_every_pair_once_with_all_of_its_tokens(epoch: int):
    found = epoch_of(batches(), epoch)
    assert sorted(pair for batch in found for pair in pairs_in(batch)) == texts_of(range(len(PAIRS)))
    assert {batch['source'].shape for batch in found} == {(4, 40)} and {b['targets'].shape for b in found} == {(4, 24)}
    assert all(batch[name].dtype == np.int32 for batch in found for name in ('tokens', 'positions', 'segments'))


def test_a_step_follows_from_the_seed_and_its_number_alone():
    """A batch is the same after a resume, in any order of steps, and in two processes."""
    whole = [batch for epoch in range(3) for batch in epoch_of(batches(seed=3), epoch)]
    resumed = batches(seed=3).training_batches(len(whole) - 2, len(whole), 0, 1)
    for expected, found in zip(whole[-2:], resumed, strict=True):
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected)
    parts = [list(batches(seed=3).training_batches(1, 3, process, 2)) for process in (0, 1)]
    for step in (0, 1):
        for name, array in whole[1 + step].items():
            assert np.array_equal(array, np.concatenate([part[step][name] for part in parts]))
    other = next(batches(seed=4).training_batches(0, 1, 0, 1))
    assert not np.array_equal(other['source'], whole[0]['source'])
    epochs = [sorted(map(sorted, batches().epoch_plan(epoch))) for epoch in (0, 1)]
    assert epochs[0] != epochs[1]  # Another epoch packs other pairs together.


def test_rows_hold_little_padding():
    packed, alone = batches(), PairBatches(PAIRS, SYMBOLS, LENGTHS, (8, 16, 24), 4)
    found = epoch_of(packed, 0)
    tokens = sum(int((batch[name] > 0).sum()) for batch in found for name in ('source_segments', 'segments'))
    assert packed.padding_share() == pytest.approx(1 - tokens / (packed.rows_per_epoch * sum(LENGTHS)))
    assert packed.padding_share() < 0.6 * alone.padding_share() and packed.tokens_per_step() == 4 * 64
    assert packed.mean_padded_lengths() == LENGTHS
    padded = [
        batch['source'].size + batch['targets'].size
        for batch in alone.training_batches(0, alone.length_buckets.steps_per_epoch, 0, 1)
    ]
    assert alone.padding_share() == pytest.approx(1 - tokens / sum(padded))


def test_mixed_sets_are_packed():
    mixture = Mixture((40, 10), limit=10)
    found = [pair for batch in epoch_of(batches(mixture=mixture), 1) for pair in pairs_in(batch)]
    assert sorted(found) == texts_of(mixture.epoch_rows(1)) and len(found) == 20


def test_both_sides_need_room(monkeypatch: pytest.MonkeyPatch):
    sizes = [(3, 1), (1, 4), (2, 2), (2, 1), (1, 1)]
    assert first_fit_packing(range(5), sizes, (4, 5)) == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr('efficient_attention.data.pairs.packed_batches.OPEN_ROWS', 1)
    assert first_fit_packing([0, 2, 1, 3], sizes, (4, 5)) == [[0], [2], [1, 3]]


def test_no_pair_is_said():
    with pytest.raises(InputError, match='^there is no row to train on$'):
        PackedBatches([], SYMBOLS, LENGTHS, 4).rows_of_step(0)
