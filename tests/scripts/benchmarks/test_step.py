"""Tests the benchmark of a training step: its ratios, and a measurement of our program at a tiny size."""

import numpy as np
import pytest

from scripts.benchmarks.step import compare, masked_batches, measure_shape, print_comparison

SHAPE = {'layers': 2, 'width': 16, 'heads': 2, 'vocab_size': 32, 'dropout_rate': 0.1, 'length': 16, 'rows': 2}
SHAPE |= {'masked': 3, 'warmup_steps': 1, 'steps': 2}


@pytest.mark.lenient_promotion
def test_the_training_step_runs_and_is_timed():
    found = measure_shape(SHAPE | {'model': {'scan_unroll': 1}})
    assert len(found['seconds']) == 2
    assert min(found['seconds']) > 0
    assert found['peak_bytes'] >= found['baseline_bytes'] > 0
    embeddings = (32 + 512 + 2 + 2) * 16
    layer = 12 * 16 * 16 + 13 * 16
    head = 16 * 16 + 3 * 16 + 32
    assert found['parameters'] == embeddings + 2 * layer + head


def test_batches_name_different_positions_and_their_tokens():
    for batch in masked_batches(SHAPE, 2):
        assert all(len(set(row)) == 3 for row in batch['masked_positions'])
        np.testing.assert_array_equal(
            np.take_along_axis(batch['tokens'], batch['masked_positions'], axis=1), batch['masked_tokens']
        )


def child(rate, peak=100):
    return {
        'name': 'one',
        'parameters': 3,
        'tokens_per_second': rate,
        'peak_bytes': peak,
        'baseline_bytes': 1,
        'seconds': [1.0],
    }


def test_ratios_compare_processes_of_the_same_round():
    runs = {'ours': [child(10), child(30), child(20)], 'peer': [child(10), child(15), child(40)]}
    result = compare(runs)
    assert result['ours']['tokens_per_second'] == 20
    assert result['ours']['range'] == [10, 30]
    assert result['ratio'] == 1.0
    assert result['ratio_range'] == [0.5, 2.0]


def test_a_row_for_each_side_and_what_unrolling_gains(capsys):
    runs = {
        'ours': [child(10) | {'first_seconds': 7.5}],
        'scan': [child(5) | {'first_seconds': 3.25}],
        'peer': [child(8)],
    }
    print_comparison(128, compare(runs))
    ours, scan, peer, ratio, unrolled = capsys.readouterr().out.splitlines()
    assert '7.5' in ours and '3.25' in scan and peer.split()[1] == 'peer' and 'ratio 1.25' in ratio
    assert unrolled.split()[1] == '2.00'
