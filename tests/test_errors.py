"""The two kinds of errors that the entry points turn into one line and an exit code."""

import numpy as np
import pytest

from efficient_attention.errors import InputError, RunError, is_whole_number, one_line


def test_bad_input_is_a_value_error_and_a_failed_run_is_none():
    assert issubclass(InputError, ValueError)
    assert issubclass(RunError, RuntimeError) and not issubclass(RunError, ValueError)


@pytest.mark.parametrize('kind', [InputError, RunError])
def test_the_message_is_what_was_said(kind: type[Exception]):
    assert str(kind('data.length is 3')) == 'data.length is 3'


def test_a_wrapped_error_is_one_line_with_what_was_wrong_inside():
    assert one_line(ValueError(KeyError('no field\n  x'))) == 'no field x'


def test_whole_numbers_are_those_of_python_and_numpy():
    assert all(map(is_whole_number, (0, -3, np.int32(5), np.uint8(1))))
    assert not any(map(is_whole_number, (True, np.bool_(True), 1.0, np.float32(2), '1', None)))
