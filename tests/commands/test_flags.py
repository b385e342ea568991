"""Flags that several commands have: their types, and one line for a value that is none."""

from pathlib import Path

import pytest
from absl import flags

from efficient_attention.commands import flags as shared_flags
from efficient_attention.commands.command_line import flags_of_command, parse_flags
from efficient_attention.errors import InputError


@pytest.fixture
def options() -> flags.FlagValues:
    values = flags.FlagValues()
    shared_flags.define_workdir(options=values)
    shared_flags.define_output('Where', Path('out.json'), options=values)
    shared_flags.define_integers('lengths', (128, 512), 'Tokens', options=values)
    shared_flags.define_choices('sides', ('full', 'causal'), 'Mechanisms', options=values)
    return values


def test_values_have_their_types(options: flags.FlagValues):
    parse_flags(['program', '--workdir', 'runs/x', '--lengths=3,-4', '--sides', 'causal'], options=options)
    assert options.workdir == Path('runs/x') and options.lengths == [3, -4] and options.sides == ['causal']


def test_defaults_are_values(options: flags.FlagValues):
    parse_flags(['program'], options=options)
    assert options.output == Path('out.json') and options.workdir is None
    assert options.lengths == [128, 512] and options.sides == ['full', 'causal']


@pytest.mark.parametrize(
    'argument, message',
    [
        ('--lengths=3,four', "flag --lengths=3,four: 'four' is not a whole number"),
        ('--sides=full,fast', "flag --sides=full,fast: 'fast' is unknown; known: full, causal"),
    ],
)
def test_other_values_are_named(options: flags.FlagValues, argument: str, message: str):
    with pytest.raises(InputError) as raised:
        parse_flags(['program', argument], options=options)
    assert str(raised.value) == message


def test_help_shows_defaults_as_they_are_written(options: flags.FlagValues):
    text = flags_of_command(options).get_help()
    for default in ("'128,512'", "'full,causal'", "'out.json'"):
        assert f'(default: {default})' in text
