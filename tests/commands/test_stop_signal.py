"""The first signal asks for a stop, the second one ends the process, and afterwards all is as before."""

import signal

import pytest

from efficient_attention.commands.stop_signal import StopSignal


@pytest.mark.parametrize('number', StopSignal.SIGNALS)
def test_the_first_signal_is_remembered(number: int):
    with StopSignal() as stop:
        assert not stop.is_due(7)
        signal.raise_signal(number)
        assert stop.is_due(8)


def test_a_second_one_acts_as_it_did_before():
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.is_set


def test_the_handlers_from_before_come_back_even_after_an_error():
    before = [signal.getsignal(number) for number in StopSignal.SIGNALS]
    with pytest.raises(ZeroDivisionError), StopSignal():
        assert [signal.getsignal(number) for number in StopSignal.SIGNALS] != before
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in StopSignal.SIGNALS] == before
