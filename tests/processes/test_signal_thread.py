"""Tests that a stop signal ends a process wherever its main thread is, with one line and the exit code of the
signal.
"""

import contextlib
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from efficient_attention.errors import ExitCode
from efficient_attention.processes import signal_thread
from efficient_attention.processes.signal_thread import StoppedBySignal, StopSignalThread, StopStage

ROOT = Path(__file__).resolve().parent.parent.parent
LINE = 'stopped by SIGTERM; there was nothing to save\n'


class Left:
    """Replaces the exit of the process: records the exit code and ends the calling thread."""

    def __init__(self) -> None:
        self.code, self.is_left = None, threading.Event()

    def __call__(self, code: int) -> None:
        self.code = code
        self.is_left.set()
        raise SystemExit(code)

    def wait(self) -> int | None:
        assert self.is_left.wait(30)
        return self.code


class EndingWatch(StopSignalThread):
    """A signal thread that ends without a message when it would end the process."""

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):
            super()._run()


@pytest.fixture
def left() -> Left:
    return Left()


@pytest.fixture
def watch(left: Left, monkeypatch: pytest.MonkeyPatch) -> Iterator[StopSignalThread]:
    """Returns a signal thread of this process with short waiting times; restores the handlers afterwards."""
    monkeypatch.setattr(signal_thread, 'GRACE', 0.2)
    monkeypatch.setattr(signal_thread, 'UNANSWERED', 0.2)
    monkeypatch.setattr(signal_thread, 'TICK', 0.01)
    handlers = {number: signal.getsignal(number) for number in signal_thread.SIGNALS}
    hooks = sys.unraisablehook, sys.excepthook
    watch = EndingWatch(left)
    watch.install_signal_handlers()
    try:
        yield watch
    finally:
        signal.set_wakeup_fd(-1)
        sys.unraisablehook, sys.excepthook = hooks
        for number, handler in handlers.items():
            signal.signal(number, handler)


def stopped() -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    'number, name, code', [(signal.SIGINT, 'Ctrl-C', 130), (signal.SIGTERM, 'SIGTERM', 143)], ids=['SIGINT', 'SIGTERM']
)
def test_a_stop_unwinds_the_main_thread_and_ends_in_one_line(
    watch: StopSignalThread, left: Left, capfd, number: int, name: str, code: int
):
    with pytest.raises(StoppedBySignal, match=f'^stopped by {name}; there was nothing to save$'):
        signal.raise_signal(number)
    with pytest.raises(SystemExit):
        watch.end_process()
    assert left.code == code
    left.is_left.clear()
    left.wait()  # the signal thread would end the process, too, if the main thread had not
    assert capfd.readouterr().err == f'stopped by {name}; there was nothing to save\n'


def test_a_stop_that_a_garbage_collectors_callback_loses_is_raised_again(
    watch: StopSignalThread, left: Left, monkeypatch: pytest.MonkeyPatch, capfd
):
    monkeypatch.setattr(signal_thread, 'GRACE', 2.0)  # long enough for the callbacks, also on a busy machine

    def callback(phase: str, info: dict) -> None:
        del info
        if phase == 'start' and not watch.number:
            stopped()

    gc.callbacks.append(callback)
    try:
        with pytest.raises(StoppedBySignal):
            gc.collect(0)  # only the youngest objects, because a long suite leaves millions of objects
            assert watch.number  # the signal came, and its exception was lost
            time.sleep(30)
    finally:
        gc.callbacks.remove(callback)
    left.wait()
    # this is the only line: there is no message about an ignored exception
    assert left.code == ExitCode.TERMINATED and capfd.readouterr().err == LINE


def test_a_main_thread_that_goes_on_is_ended(watch: StopSignalThread, left: Left, capfd):
    with pytest.raises(StoppedBySignal):
        stopped()
    assert watch.is_ending
    assert left.wait() == ExitCode.TERMINATED
    assert capfd.readouterr().err == LINE


@pytest.mark.parametrize('second, code', [(signal.SIGINT, 143), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_a_run_that_saves(watch: StopSignalThread, left: Left, capfd, second: int, code: int):
    signal.signal(signal.SIGTERM, lambda *_: None)  # `GracefulStop` installs such a handler
    signal.signal(signal.SIGINT, lambda *_: None)
    watch.enter_stage(StopStage.SAVING)
    stopped()
    stopped()  # a signal that follows at once counts as the same one
    time.sleep(2 * signal_thread.GRACE)
    assert not left.is_left.is_set()  # saving may take longer than the grace period
    signal.raise_signal(second)
    assert left.wait() == code
    assert capfd.readouterr().err.startswith('ended by a second ')


def test_after_saving_the_process_has_a_moment_to_end(watch: StopSignalThread, left: Left, capfd):
    signal.signal(signal.SIGTERM, lambda *_: None)
    watch.enter_stage(StopStage.SAVING)
    stopped()
    watch.enter_stage(StopStage.SAVED)
    assert not watch.is_ending
    assert left.wait() == ExitCode.STOPPED
    assert capfd.readouterr().err == ''  # the run itself has reported the stop


def test_what_a_busy_main_thread_cannot_save_the_thread_saves(watch: StopSignalThread, left: Left):
    signal.signal(signal.SIGTERM, lambda *_: None)
    watch.enter_stage(StopStage.SAVING)
    saved = []

    def save() -> int:
        saved.append(threading.current_thread().name)
        return ExitCode.STOPPED

    with watch.save_if_unresponsive(save):
        time.sleep(2 * signal_thread.UNANSWERED)
    assert not saved  # without a stop the thread saves nothing
    with watch.save_if_unresponsive(save):
        stopped()
        assert left.wait() == ExitCode.STOPPED
    assert saved == ['stop']


def test_a_rescue_is_not_begun_when_the_main_thread_has_answered(watch: StopSignalThread, left: Left):
    signal.signal(signal.SIGTERM, lambda *_: None)
    watch.enter_stage(StopStage.SAVING)
    with watch.save_if_unresponsive(lambda: 99):
        stopped()
    time.sleep(2 * signal_thread.UNANSWERED)
    assert not left.is_left.is_set()


def test_a_rescue_that_fails_is_one_line_and_the_code_of_a_failure(watch: StopSignalThread, left: Left, capfd):
    signal.signal(signal.SIGTERM, lambda *_: None)
    watch.enter_stage(StopStage.SAVING)
    with watch.save_if_unresponsive(lambda: 1 // 0):
        stopped()
        assert left.wait() == ExitCode.FAILED
    assert capfd.readouterr().err == 'error: integer division or modulo by zero\n'


def test_an_error_that_a_stop_caused_in_the_imports_is_its_one_line(watch: StopSignalThread, left: Left, capfd):
    """The imports of an entry point are outside `run_command`, so `sys.excepthook` gets the error."""
    with pytest.raises(StoppedBySignal):
        stopped()
    assert watch.is_ending
    with pytest.raises(SystemExit):
        sys.excepthook(ImportError, ImportError('half of a library'), None)
    assert left.code == ExitCode.TERMINATED and capfd.readouterr().err == LINE


def test_an_error_without_a_stop_keeps_its_traceback(watch: StopSignalThread, left: Left, capfd):
    sys.excepthook(ImportError, ImportError('no such library'), None)
    assert not watch.is_ending and not left.is_left.is_set()
    assert 'ImportError: no such library' in capfd.readouterr().err
    own = ModuleNotFoundError("No module named 'scripts.none'", name='scripts.none')
    sys.excepthook(ModuleNotFoundError, own, None)
    assert "ModuleNotFoundError: No module named 'scripts.none'" in capfd.readouterr().err


@pytest.mark.usefixtures('watch')
def test_a_missing_package_is_one_line_with_the_remedy(capfd):
    missing = ModuleNotFoundError("No module named 'ml_collections'", name='ml_collections')
    sys.excepthook(ModuleNotFoundError, missing, None)
    remedy = 'run `make install-run`, then start commands with .venv/bin/python'
    assert capfd.readouterr().err == f"error: No module named 'ml_collections'; {remedy}\n"


@pytest.mark.parametrize('number', signal_thread.SIGNALS)
def test_a_signal_while_python_takes_itself_apart_changes_nothing(number: int):
    lines = (
        'import os',
        'from efficient_attention.processes.signal_thread import catch_stop_signals',
        'catch_stop_signals()',
        'class Last:',
        '    def __del__(self, kill=os.kill, process=os.getpid()):',
        f'        kill(process, {number:d})',
        "        print('still there')",
        'last = Last()',
        'raise SystemExit(4)',
    )
    done = subprocess.run([sys.executable, '-c', '\n'.join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (4, 'still there\n', '')


def test_every_command_catches_stop_signals_first():
    files = [*ROOT.glob('*.py'), *(ROOT / 'scripts').rglob('*.py')]
    commands = {path: text for path in files if '    run_command(main)' in (text := path.read_text(encoding='utf-8'))}
    assert commands
    for path, text in commands.items():
        imports = [line for line in text.splitlines() if line.startswith(('import ', 'from '))]
        if (
            path.name == 'measure_gpu.py'
        ):  # It runs without an environment, so it first adds the repository to the path.
            assert imports[:2] == ['import sys', 'from pathlib import Path']
            imports = imports[2:]
        assert imports[0].split('  #')[0] == (
            'from efficient_attention.processes.signal_thread import catch_stop_signals'
        ), path
        keeps = 'keeps_freed_memory=True' if '    tune_allocator()\n' in text else ''
        assert text.index(f'    catch_stop_signals({keeps})') < text.index('run_command'), path
