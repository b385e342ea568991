"""The first signal asks for a stop, the second one ends the process, and afterwards all is as before."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import jax
import pytest

from efficient_attention.errors import ExitCode, RunStopped
from efficient_attention.processes import stop_signal as module
from efficient_attention.processes.stop_signal import Cut, StopSignal
from efficient_attention.processes.stopping import ECHO, SIGNALS, Stage, Stopped, StopWatch


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a terminal; a shell's job in the background begins with it ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> StopWatch:
    """The watch of this process as a run sees it; it catches nothing."""
    watch = StopWatch()
    monkeypatch.setattr(module, 'stop_watch', lambda: watch)
    return watch


def several(monkeypatch: pytest.MonkeyPatch, agree: Callable[[], bool]) -> list[bool]:
    """This process is one of two that stop where `agree` says so; whether it asked for a stop, at each point."""
    asked: list[bool] = []

    def all_stop_here(*, is_wanted: bool) -> bool:
        asked.append(is_wanted)
        return agree()

    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    monkeypatch.setattr(module, 'can_stop_together', lambda: True)
    monkeypatch.setattr(module, 'all_stop_here', all_stop_here)
    return asked


@pytest.mark.parametrize('number', SIGNALS)
def test_the_first_signal_is_remembered(number: int):
    with StopSignal() as stop:
        stop.expect()
        stop.check()
        assert not stop.is_due()
        signal.raise_signal(number)
        assert stop.is_due()
        with pytest.raises(Cut):
            stop.check()


def test_a_second_one_acts_as_it_did_before():
    with StopSignal() as stop:
        stop.expect()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # at once: the same
        time.sleep(1.5 * ECHO)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.is_set


def test_before_there_is_something_to_save_a_signal_does_what_it_did():
    with StopSignal() as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        stop.check()
    assert not stop.is_set


def test_the_handlers_from_before_come_back_even_after_an_error():
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), StopSignal() as stop:
        stop.expect()
        assert [signal.getsignal(number) for number in SIGNALS] != before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    'is_stopped, error, stage',
    [
        (False, None, Stage.NOTHING_TO_SAVE),
        (False, ZeroDivisionError, Stage.NOTHING_TO_SAVE),
        (True, RunStopped, Stage.SAVED),
        (True, None, Stage.SAVING),  # it came after the last step: the run ends as it would have
        (True, ZeroDivisionError, Stage.SAVING),  # the error has its own line
    ],
)
def test_the_watch_knows_what_there_is_to_save(watch: StopWatch, is_stopped: bool, error: type | None, stage: Stage):
    with contextlib.suppress(RunStopped, ZeroDivisionError), StopSignal() as stop:
        assert watch.stage is Stage.NOTHING_TO_SAVE
        stop.expect()
        assert watch.stage is Stage.SAVING
        if is_stopped:
            signal.raise_signal(signal.SIGTERM)
        if error:
            raise error
    assert watch.stage is stage


def test_of_several_processes_each_has_yet_to_leave_the_others(watch: StopWatch, monkeypatch: pytest.MonkeyPatch):
    several(monkeypatch, lambda: True)
    with contextlib.suppress(RunStopped), StopSignal() as stop:
        stop.expect()
        assert stop.is_due()
        raise RunStopped
    assert watch.stage is Stage.SAVING
    signal.raise_signal(signal.SIGTERM)  # the same stop, which reaches this one later than the others


def test_a_stop_before_there_is_something_to_save_gets_no_longer_grace(watch: StopWatch):
    with pytest.raises(Stopped), StopSignal():
        watch.stage = 'as it was'
        raise Stopped
    assert watch.stage == 'as it was'


def test_a_run_does_not_begin_after_a_stop(watch: StopWatch):
    watch.number = signal.SIGTERM
    watch.enter(Stage.SAVING)  # in which a run leaves it that had taken its last step
    with pytest.raises(Stopped):
        StopSignal()
    assert watch.is_ending and watch.code == ExitCode.TERMINATED


def test_one_process_may_be_rescued_several_may_not(watch: StopWatch, monkeypatch: pytest.MonkeyPatch):
    rescued = []

    @contextlib.contextmanager
    def rescue(save: Callable[[], int]) -> Iterator[None]:
        rescued.append(save())
        yield

    monkeypatch.setattr(watch, 'rescue', rescue)
    for count in (1, 2):
        monkeypatch.setattr(jax, 'process_count', lambda count=count: count)
        with StopSignal() as stop:
            with stop.rescue(lambda: 7):
                assert not rescued[count - 1 :]  # nothing is to be saved yet
            stop.expect()
            with stop.rescue(lambda: 7):
                pass
    assert rescued == [7]


@pytest.mark.parametrize('number', SIGNALS)
def test_one_of_several_processes_goes_on_until_all_stop(number: int, monkeypatch: pytest.MonkeyPatch):
    answers = iter([False, False, True])
    asked = several(monkeypatch, lambda: next(answers))
    with StopSignal() as stop:
        stop.expect()
        assert not stop.is_due()
        signal.raise_signal(number)
        assert [stop.is_due() for _ in range(4)] == [False, True, True, True]
    assert asked == [False, True, True]


def test_a_stop_of_several_that_came_too_late_lets_the_run_end_as_it_would(
    watch: StopWatch, monkeypatch: pytest.MonkeyPatch
):
    several(monkeypatch, lambda: False)
    with StopSignal() as stop:
        stop.expect()
        signal.raise_signal(signal.SIGTERM)
        assert not stop.is_due()
    assert watch.stage is Stage.SAVING


def test_where_the_processes_cannot_agree_a_signal_does_what_it_did(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, 'process_count', lambda: 2)
    with StopSignal() as stop:
        stop.expect()
        assert not stop.is_due()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
