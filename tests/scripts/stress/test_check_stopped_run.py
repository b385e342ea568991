"""Tests which ends of a stopped run count as documented, and the faults reported for other ends."""

import signal
from pathlib import Path

import pytest

from efficient_attention.processes.signal_thread import stop_message
from efficient_attention.workdir.checksums import write_checksums
from scripts.stress import check_stopped_run
from scripts.stress.check_stopped_run import StoppedProcess, newest_saved_step, stop_faults
from scripts.stress.signal_moments import PhaseEvent

LAST = 60
STOPPED = 'stopped after step 7, which is saved; the same command goes on from there'
NOTHING = stop_message(signal.SIGTERM)
BEGUN = '900 parameters on 1 cpu device(s) (data 1); new run in runs/x, freshly initialised parameters (seed 0)'
COMPILING = 'compiling the training step'
RESUMED = f'900 parameters on 1 cpu device(s) (data 1); resumed at step {LAST} in runs/x'
NOTED = [(1, 'imports', 0), (2, 'preparation', 0), (3, 'restoring', 0), (4, 'compilation', 1), (8, 'input', 7)]
EVENTS = [PhaseEvent(float(moment), phase, step) for moment, phase, step in [*NOTED, (9, 'step', 7), (12, 'input', 8)]]
SAVING = [PhaseEvent(12.5, 'save', 7), PhaseEvent(13.0, 'sealing', 0), PhaseEvent(14.0, 'sealed', 0)]
IN_A_STEP = StoppedProcess(signal.SIGTERM, 0.0, 9.5, 15.0, 3, [BEGUN, COMPILING, STOPPED], [*EVENTS, *SAVING], None, 7)
IN_COMPILATION = StoppedProcess(signal.SIGTERM, 0.0, 5.0, 7.0, 143, [BEGUN, NOTHING], EVENTS[:4], None, None)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Returns the workdir of a run whose step 7 is saved."""
    (tmp_path / 'checkpoints' / '7').mkdir(parents=True)
    (tmp_path / 'checkpoints' / '7' / 'weights').write_bytes(b'abc')
    write_checksums(tmp_path / 'checkpoints' / '7', 'step 7')
    return tmp_path


def test_a_stop_with_its_line_its_code_and_its_step_is_clean(workdir):
    assert stop_faults(IN_A_STEP, workdir, LAST) == []
    assert stop_faults(IN_COMPILATION, workdir, LAST) == []
    by_hand = IN_COMPILATION._replace(number=signal.SIGINT, code=130, lines=[stop_message(signal.SIGINT)])
    assert stop_faults(by_hand, workdir, LAST) == []
    at_the_last = [event._replace(step=LAST) for event in IN_A_STEP.events]
    done = IN_A_STEP._replace(
        code=0, after=LAST, events=at_the_last, lines=[BEGUN, 'step 60/60  loss 2.0  0:00:00 left']
    )
    assert stop_faults(done, workdir, LAST) == []
    events = [*EVENTS[:3], PhaseEvent(4.0, 'evaluation', LAST), PhaseEvent(8.0, 'evaluation', LAST)]
    made_up_for = IN_COMPILATION._replace(events=events, before=LAST, after=LAST, lines=[RESUMED, NOTHING])
    assert stop_faults(made_up_for, workdir, LAST) == []
    before_python = IN_A_STEP._replace(code=-signal.SIGTERM, events=[], lines=[], after=None, end=9.75)
    assert stop_faults(before_python, workdir, LAST) == []


@pytest.mark.parametrize(
    'ending, said',
    [
        (IN_A_STEP._replace(code=143), 'exit code 143'),
        (IN_A_STEP._replace(code=0), 'exit code 0'),  # the run has not reached its last step
        (IN_A_STEP._replace(code=0, after=LAST), 'exit code 0'),  # the run took all remaining steps after the signal
        (IN_COMPILATION._replace(code=130), 'exit code 130'),
        (IN_COMPILATION._replace(code=-15), 'exit code -15'),
        (IN_COMPILATION._replace(code=0, lines=[BEGUN], after=LAST), 'exit code 0'),
        (IN_A_STEP._replace(end=17.5), '5.5 s after'),
        (IN_COMPILATION._replace(end=10.5), '5.5 s after'),
        (IN_A_STEP._replace(lines=[BEGUN]), '0 lines of a stop'),
        (IN_A_STEP._replace(lines=[BEGUN, STOPPED, STOPPED]), '2 lines of a stop'),
        (IN_A_STEP._replace(lines=['Traceback (most recent call last):', STOPPED]), 'said: Traceback'),
        (IN_A_STEP._replace(lines=[STOPPED, BEGUN]), 'said after the line of the stop: 900 par'),
        (IN_A_STEP._replace(lines=[BEGUN, NOTHING]), 'exit code 3 with: stopped by'),
        (IN_A_STEP._replace(lines=[BEGUN.replace('new run', 'resumed at step 5'), STOPPED]), 'went on from step 5'),
        (IN_A_STEP._replace(before=5), 'went on from step None, and 5 was saved'),
        (IN_A_STEP._replace(after=5), 'step 7 was said to be saved, and 5 is'),
        (IN_COMPILATION._replace(before=5, lines=[NOTHING]), 'step 5 was saved before, None is now'),
        (IN_A_STEP._replace(sent=12.2), 'stopped at step 8, and 7 is saved'),
    ],
)
def test_each_fault_is_named(workdir, ending: StoppedProcess, said: str):
    assert any(said in fault for fault in stop_faults(ending, workdir, LAST)), stop_faults(ending, workdir, LAST)


def test_a_damaged_step_is_no_saved_one(workdir):
    (workdir / 'checkpoints' / '7' / 'weights').write_bytes(b'abd')
    assert stop_faults(IN_A_STEP, workdir, LAST) == ['step 7: weights is not what was written']


def test_seconds_count_from_the_end_of_what_was_under_way():
    assert IN_A_STEP.overtime_seconds == 3.0  # from second 12, when the step had ended
    assert IN_A_STEP._replace(sent=12.7).overtime_seconds == 1.0  # from second 14, when the save had ended
    assert IN_COMPILATION.overtime_seconds == 2.0
    cut = IN_A_STEP._replace(
        events=[*EVENTS, PhaseEvent(12.5, 'evaluation', 8), PhaseEvent(12.75, 'evaluation', 8)], sent=12.6
    )
    assert cut.overtime_seconds == 2.25
    # no phase followed, so the count starts at the signal
    assert IN_A_STEP._replace(events=EVENTS[:-1]).overtime_seconds == 5.5


def test_only_steps_with_checksums_are_saved(workdir):
    assert newest_saved_step(workdir) == 7 and newest_saved_step(workdir / 'none') is None
    (workdir / 'checkpoints' / '9.orbax-checkpoint-tmp-3').mkdir()
    assert newest_saved_step(workdir) == 7
    assert check_stopped_run.MOST_SECONDS == 5.0
