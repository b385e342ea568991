"""Tests that a tracker in a process of its own gets every step once, and cannot stop, slow or soil the training."""

import json
import select
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import RunError
from efficient_attention.workdir.trackers import separate_process
from efficient_attention.workdir.trackers.separate_process import ANSWER_SECONDS, SeparateProcess
from efficient_attention.workdir.trackers.tracker import TrackedRun

FAKE = Path(__file__).with_name('fake_tracker.py')


class Clock:
    """A clock that stands still until a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def fake(workdir: Path, kind: str = 'well', start_step: int = 0, clock=None) -> tuple[SeparateProcess, list[str]]:
    """Returns a started fake tracker, and the list of the lines that it prints."""
    lines: list[str] = []
    run = TrackedRun(workdir, {'train.steps': 9}, start_step)
    options = {'clock': clock} if clock else {}
    process = SeparateProcess('fake', run, lines.append, command=(sys.executable, str(FAKE), kind), **options)
    process.start()
    return process, lines


def wait_for_answer(process: SeparateProcess) -> None:
    """Waits until the tracker answers or ends."""
    assert select.select([process._replies], [], [], 60)[0]


def calls(workdir: Path) -> list[str]:
    return (workdir / 'calls.txt').read_text().splitlines()


def test_a_resumed_run_continues_its_entry_without_double_steps(tmp_path, capfd):
    for start_step, steps, end in ((0, (1, 2, 3), 'stopped'), (2, (3, 4), 'finished')):
        tracker, lines = fake(tmp_path, start_step=start_step)
        for step in steps:
            tracker.log(step, {'train/loss': step / 2})
        tracker.log(3, {'held_out/loss': 7.0})
        tracker.finish(end)
        assert lines == ['tracker fake: at home']
    entry = json.loads((tmp_path / 'trackers' / 'fake.json').read_text())
    start, *rest = calls(tmp_path)
    first = ["1 {'train/loss': 0.5}", "2 {'train/loss': 1.0}", "3 {'train/loss': 1.5}", "3 {'held_out/loss': 7.0}"]
    assert start == f'start {entry["id"]} 9' and entry['logged'] == {'train': 4, 'held_out': 3}
    assert rest == [*first, 'stopped', start, "4 {'train/loss': 2.0}", 'finished']
    assert capfd.readouterr() == ('', '')
    assert (tmp_path / 'trackers' / 'fake.log').read_text().split() == ['chatter', 'more', 'chatter'] * 2


def test_a_run_that_begins_anew_gets_another_entry_and_a_killed_one_is_stopped(tmp_path):
    tracker, _ = fake(tmp_path)
    tracker.log(1, {'train/loss': 1.0})
    tracker._requests.write(b'{"step": 2, "met')
    tracker._requests.close()  # as if this process were killed while it writes
    tracker._process.wait(60)
    tracker._replies.close()
    tracker, _ = fake(tmp_path)
    tracker.log(1, {'train/loss': 1.0})
    tracker.finish('failed')
    first, one, stopped, second, again, failed = calls(tmp_path)
    assert (one, stopped, failed) == (again, 'stopped', 'failed') and first != second


@pytest.mark.parametrize('kind, reason', [('fails', 'no such server'), ('dies', 'its process ended with exit code 7')])
def test_a_tracker_that_fails_says_why(tmp_path, kind: str, reason: str):
    tracker, _ = fake(tmp_path, kind)
    tracker.log(2, {'train/loss': 1.0})
    tracker._process.wait(60)
    with pytest.raises(RunError, match=rf'^{reason} \({tmp_path}/trackers/fake\.log\)$'):
        tracker.log(3, {'train/loss': 1.0})
    assert tracker._process.returncode is not None


def test_a_tracker_that_hangs_is_ended_after_a_while(tmp_path):
    clock = Clock()
    tracker, _ = fake(tmp_path, 'hangs', clock=clock)
    wait_for_answer(tracker)
    tracker.log(2, {'train/loss': 1.0})
    clock.now += ANSWER_SECONDS - 1
    tracker.log(3, {'train/loss': 1.0})
    clock.now += 2
    with pytest.raises(RunError, match=rf'^it has not answered for {ANSWER_SECONDS:.0f} seconds'):
        tracker.log(4, {'train/loss': 1.0})
    assert tracker._process.wait(60) < 0


def test_messages_that_nobody_reads_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(separate_process, 'MOST_PENDING', 1000)
    tracker, _ = fake(tmp_path, 'lazy')
    long = {f'train/{"x" * 1000}{number}': 0.5 for number in range(100)}
    with pytest.raises(RunError, match='^it reads no more metrics'):
        tracker.log(1, long)
    assert tracker._process.wait(60) < 0


def test_the_end_of_a_run_waits_only_a_short_time(tmp_path, monkeypatch):
    monkeypatch.setattr(separate_process, 'FINISH_SECONDS', 0.01)
    tracker, _ = fake(tmp_path, 'endless')
    with pytest.raises(RunError, match='^not finished after 0 seconds, so it continues in the background'):
        tracker.finish('finished')
    tracker._process.kill()
    tracker._process.wait(60)
