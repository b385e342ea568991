"""The two kinds of errors that the entry points turn into one line and an exit code."""

import pytest

from efficient_attention.errors import InputError, RunError, one_line


def test_bad_input_is_a_value_error_and_a_failed_run_is_none():
    assert issubclass(InputError, ValueError)
    assert issubclass(RunError, RuntimeError) and not issubclass(RunError, ValueError)


@pytest.mark.parametrize('kind', [InputError, RunError])
def test_the_message_is_what_was_said(kind: type[Exception]):
    assert str(kind('data.length is 3')) == 'data.length is 3'


def test_a_wrapped_error_is_one_line_with_what_was_wrong_inside():
    assert one_line(ValueError(KeyError('no field\n  x'))) == 'no field x'
