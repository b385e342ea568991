"""Tests that TensorBoard gets the metrics of a run under the names of their splits."""

from efficient_attention.workdir.trackers.tensorboard_tracker import TensorBoardTracker
from efficient_attention.workdir.trackers.tracker import TrackedRun
from tests.workdir.test_tensorboard_events import read, scalars


def test_events_begin_after_the_restored_step(tmp_path):
    tracker = TensorBoardTracker(TrackedRun(tmp_path, {}, 4))
    tracker.start()
    tracker.log(5, {'train/loss': 0.5})
    tracker.finish('finished')
    (path,) = (tmp_path / 'tensorboard').iterdir()
    assert scalars(path) == [(5, 'train/loss', 0.5)]
    assert read(path)[1].step == 5  # TensorBoard hides this step and later ones of older files
