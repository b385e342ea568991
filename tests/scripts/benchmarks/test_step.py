"""Our side of the benchmark, at a tiny size."""

import numpy as np
import pytest

from scripts.benchmarks.measure_step import masked_batches, measure

SHAPE = {'layers': 2, 'width': 16, 'heads': 2, 'vocab_size': 32, 'dropout_rate': 0.1, 'length': 16, 'rows': 2}
SHAPE |= {'masked': 3, 'warmup_steps': 1, 'steps': 2}


@pytest.mark.lenient_promotion
def test_the_training_step_runs_and_is_timed():
    found = measure(SHAPE | {'model': {'scan_unroll': 2}})
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
