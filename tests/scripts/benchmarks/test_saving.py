"""Tests the measured cost of saves on a tiny model."""

from pathlib import Path

import pytest

from scripts.benchmarks.saving import measure_saves

SHAPE = {
    'layers': 1,
    'width': 8,
    'heads': 1,
    'vocab_size': 40,
    'dropout_rate': 0.0,
    'rows': 2,
    'length': 8,
    'masked': 2,
}


@pytest.mark.slow
@pytest.mark.lenient_promotion
def test_saves_are_measured_and_leave_one_checkpoint(tmp_path: Path):
    found = measure_saves(tmp_path, SHAPE, trials=2, block=2, every_steps=100)
    assert found['state_megabytes'] > 0.001 and found['step_seconds'] > 0
    assert found['seconds_until_sealed'] > found['save_seconds_of_training']
    share = found['save_seconds_of_training'] / (100 * found['step_seconds'])
    assert found['share_of_step_time'] == pytest.approx(share)
    assert [path.name for path in (tmp_path / 'run' / 'checkpoints').iterdir()] == ['3']
