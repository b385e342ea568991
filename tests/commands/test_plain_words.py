"""Tests that libraries' messages about bad flags are reworded in plain words, and that other messages stay."""

import pytest
from absl import flags

from efficient_attention.commands.command_line import parse_flags, simplify_library_message
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'said, plain',
    [
        ("flag --a=x: invalid literal for int() with base 10: 'x'", "flag --a=x: 'x' is not a whole number"),
        ("flag --a=: could not convert string to float: ''", 'flag --a=: the value is missing; it must be a number'),
        (
            "Attribute <class 'int'>.x does not exist and so on lookup: model.width.x",
            'model.width is a field, and has no',
        ),
        (
            "Failed to parse '3' as a ConfigDict: `3` is not a dict.",
            "'3' is given to a group; give a value to one field",
        ),
        ('Error whilst parsing config file: ValueError: width is odd', 'width is odd'),
        ('Error whilst parsing config file: efficient_attention.errors.InputError: width is odd', 'width is odd'),
        ("Error whilst parsing config file: NameError: name 'x'", "the config file fails: NameError: name 'x'"),
        ('flag --model=b: already defined as a', '--model and --workdir name one folder: a or b'),
        ("Unknown command line flag 'stop'", "Unknown command line flag 'stop'"),
    ],
)
def test_lines(said: str, plain: str):
    assert simplify_library_message(said).startswith(plain)


@pytest.mark.parametrize(
    'argument, line',
    [
        ('--step=two', "'two' is not a whole number"),
        ('--step=1.5', "'1.5' is not a whole number"),
        ('--step=', 'the value is missing; it must be a whole number'),
        ('--rate=fast', "'fast' is not a number"),
        ('--rate=', 'the value is missing; it must be a number'),
        ('--verify=maybe', "'maybe' is neither true nor false"),
        ('--split=all', 'it must be one of dev|test'),
    ],
)
def test_what_the_installed_absl_says(argument: str, line: str):
    """This test fails if a release of absl changes the wording of its errors."""
    values = flags.FlagValues()
    flags.DEFINE_integer('step', None, '', flag_values=values)
    flags.DEFINE_float('rate', None, '', flag_values=values)
    flags.DEFINE_bool('verify', None, '', flag_values=values)
    flags.DEFINE_enum('split', None, ['dev', 'test'], '', flag_values=values)
    with pytest.raises(InputError) as caught:
        parse_flags(['program', argument], options=values)
    assert str(caught.value) == f'flag {argument}: {line}'
