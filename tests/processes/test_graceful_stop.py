"""Tests that the first signal requests a stop and a second one ends the process, and that the handlers are restored."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import jax
import pytest

from efficient_attention.errors import ExitCode, RunStopped
from efficient_attention.processes import graceful_stop as module
from efficient_attention.processes.graceful_stop import EvaluationInterrupted, GracefulStop
from efficient_attention.processes.signal_thread import ECHO, SIGNALS, StoppedBySignal, StopSignalThread, StopStage


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt, as in a terminal; a background job of a shell starts with SIGINT
    ignored.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> StopSignalThread:
    """Returns the signal thread's object that a run sees in this process; it catches no signals."""
    watch = StopSignalThread()
    monkeypatch.setattr(module, 'current_signal_thread', lambda: watch)
    return watch


def several(monkeypatch: pytest.MonkeyPatch, agree: Callable[[], bool]) -> list[bool]:
    """Makes this process one of two, which stop when `agree` says so. Returns a list of whether it asked for a stop at
    each step.
    """
    asked: list[bool] = []

    def all_stop_here(*, is_wanted: bool) -> bool:
        asked.append(is_wanted)
        return agree()

    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    monkeypatch.setattr(module, 'can_agree_on_stop', lambda: True)
    monkeypatch.setattr(module, 'is_agreed_stop_point', all_stop_here)
    return asked


@pytest.mark.parametrize('number', SIGNALS)
def test_the_first_signal_is_remembered(number: int):
    with GracefulStop() as stop:
        stop.enable_graceful_stop()
        stop.raise_if_stop_due()
        assert not stop.is_stop_due()
        signal.raise_signal(number)
        assert stop.is_stop_due()
        with pytest.raises(EvaluationInterrupted):
            stop.raise_if_stop_due()


def test_a_second_one_acts_as_it_did_before():
    with GracefulStop() as stop:
        stop.enable_graceful_stop()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # a signal that follows at once counts as the same one
        time.sleep(1.5 * ECHO)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.is_set


def test_before_there_is_something_to_save_a_signal_does_what_it_did():
    with GracefulStop() as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        stop.raise_if_stop_due()
    assert not stop.is_set


def test_the_handlers_from_before_come_back_even_after_an_error():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), GracefulStop() as stop:
        stop.enable_graceful_stop()
        assert [signal.getsignal(number) for number in SIGNALS] != before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    'is_stopped, error, stage',
    [
        (False, None, StopStage.NOTHING_TO_SAVE),
        (False, ZeroDivisionError, StopStage.NOTHING_TO_SAVE),
        (True, RunStopped, StopStage.SAVED),
        (True, None, StopStage.SAVING),  # the signal came after the last step: the run ends as usual
        (True, ZeroDivisionError, StopStage.SAVING),  # the error has its own line
    ],
)
def test_the_watch_knows_what_there_is_to_save(
    watch: StopSignalThread, is_stopped: bool, error: type | None, stage: StopStage
):
    with contextlib.suppress(RunStopped, ZeroDivisionError), GracefulStop() as stop:
        assert watch.stage is StopStage.NOTHING_TO_SAVE
        stop.enable_graceful_stop()
        assert watch.stage is StopStage.SAVING
        if is_stopped:
            signal.raise_signal(signal.SIGTERM)
        if error:
            raise error
    assert watch.stage is stage


def test_of_several_processes_each_has_yet_to_leave_the_others(
    watch: StopSignalThread, monkeypatch: pytest.MonkeyPatch
):
    several(monkeypatch, lambda: True)
    with contextlib.suppress(RunStopped), GracefulStop() as stop:
        stop.enable_graceful_stop()
        assert stop.is_stop_due()
        raise RunStopped
    assert watch.stage is StopStage.SAVING
    signal.raise_signal(signal.SIGTERM)  # the signal for the same stop reaches this process later than the others


def test_a_stop_before_there_is_something_to_save_gets_no_longer_grace(watch: StopSignalThread):
    with pytest.raises(StoppedBySignal), GracefulStop():
        watch.stage = 'as it was'
        raise StoppedBySignal
    assert watch.stage == 'as it was'


def test_a_run_does_not_begin_after_a_stop(watch: StopSignalThread):
    watch.number = signal.SIGTERM
    watch.enter_stage(StopStage.SAVING)  # the stage after a run that had taken its last step
    with pytest.raises(StoppedBySignal):
        GracefulStop()
    assert watch.is_ending and watch.stop_exit_code == ExitCode.TERMINATED


def test_one_process_may_be_rescued_several_may_not(watch: StopSignalThread, monkeypatch: pytest.MonkeyPatch):
    rescued = []

    @contextlib.contextmanager
    def rescue(save: Callable[[], int]) -> Iterator[None]:
        rescued.append(save())
        yield

    monkeypatch.setattr(watch, 'save_if_unresponsive', rescue)
    for count in (1, 2):
        monkeypatch.setattr(jax, 'process_count', lambda count=count: count)
        with GracefulStop() as stop:
            with stop.save_if_unresponsive(lambda: 7):
                assert not rescued[count - 1 :]  # there is nothing to save yet
            stop.enable_graceful_stop()
            with stop.save_if_unresponsive(lambda: 7):
                pass
    assert rescued == [7]


@pytest.mark.parametrize('number', SIGNALS)
def test_one_of_several_processes_goes_on_until_all_stop(number: int, monkeypatch: pytest.MonkeyPatch):
    answers = iter([False, False, True])
    asked = several(monkeypatch, lambda: next(answers))
    with GracefulStop() as stop:
        stop.enable_graceful_stop()
        assert not stop.is_stop_due()
        signal.raise_signal(number)
        assert [stop.is_stop_due() for _ in range(4)] == [False, True, True, True]
    assert asked == [False, True, True]


def test_a_stop_of_several_that_came_too_late_lets_the_run_end_as_it_would(
    watch: StopSignalThread, monkeypatch: pytest.MonkeyPatch
):
    several(monkeypatch, lambda: False)
    with GracefulStop() as stop:
        stop.enable_graceful_stop()
        signal.raise_signal(signal.SIGTERM)
        assert not stop.is_stop_due()
    assert watch.stage is StopStage.SAVING


def test_where_the_processes_cannot_agree_a_signal_does_what_it_did(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    with GracefulStop() as stop:
        stop.enable_graceful_stop()
        assert not stop.is_stop_due()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
