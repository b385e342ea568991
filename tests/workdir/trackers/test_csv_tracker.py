"""Tests that the tables of a run have each step once, also with new columns, cut rows and resumed runs."""

from pathlib import Path

from efficient_attention.workdir.trackers.csv_tracker import CsvTracker
from efficient_attention.workdir.trackers.tracker import TrackedRun


def started(workdir: Path, start_step: int = 0) -> CsvTracker:
    tracker = CsvTracker(TrackedRun(workdir, {}, start_step))
    tracker.start()
    return tracker


def test_each_split_has_a_table_and_a_new_metric_a_column(tmp_path):
    tracker = started(tmp_path)
    tracker.log(10, {'train/loss': 0.5})
    tracker.log(20, {'train/loss': 0.25, 'train/rate, in 1/s': 8.0})
    tracker.log(20, {'held_out/loss': 1e-9})
    tracker.log(30, {'train/rate, in 1/s': 9.0})
    assert (tmp_path / 'csv' / 'train.csv').read_text() == 'step,loss,"rate, in 1/s"\n10,0.5,\n20,0.25,8.0\n30,,9.0\n'
    assert (tmp_path / 'csv' / 'held_out.csv').read_text() == 'step,loss\n20,1e-09\n'


def test_a_resumed_run_has_each_step_once(tmp_path):
    first = started(tmp_path)
    for step in (10, 20, 30):
        first.log(step, {'train/loss': 1 / step})
    path = tmp_path / 'csv' / 'train.csv'
    path.write_text(f'{path.read_text()}x,1\n40,0.0')  # a damaged row, and one that a kill has cut
    resumed = started(tmp_path, start_step=20)
    resumed.log(30, {'train/loss': 0.5})
    assert path.read_text() == 'step,loss\n10,0.1\n20,0.05\n30,0.5\n'
    started(tmp_path).log(5, {'train/loss': 2.0})
    assert path.read_text() == 'step,loss\n5,2.0\n'
