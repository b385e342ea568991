"""Tests the flags that several commands share: their types, and one line for a value of the wrong type."""

from collections.abc import Callable
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
    shared_flags.define_profile(options=values)
    shared_flags.define_choices('sides', ('full', 'causal'), 'Mechanisms', options=values)
    return values


def test_values_have_their_types(options: flags.FlagValues):
    parse_flags(['program', '--workdir', 'runs/x', '--lengths=3,-4', '--sides', 'causal'], options=options)
    assert options.workdir == Path('runs/x') and options.lengths == [3, -4] and options.sides == ['causal']


def test_a_profile_is_a_range_of_steps(options: flags.FlagValues):
    parse_flags(['program', '--profile=20:25'], options=options)
    assert options.profile == (20, 25)
    for text in ('25:20', '0:3', '20', '20:', 'a:b', '1:2:3', '-1:5'):
        with pytest.raises(
            InputError,
            match=f"^flag --profile={text}: '{text}' is not a range of steps; write FIRST:LAST, counted from 1",
        ):
            parse_flags(['program', f'--profile={text}'], options=options)


def test_defaults_are_values(options: flags.FlagValues):
    parse_flags(['program'], options=options)
    assert options.output == Path('out.json') and options.workdir is None
    assert options.lengths == [128, 512] and options.sides == ['full', 'causal']


@pytest.mark.parametrize(
    'define, name', [(shared_flags.define_model, 'model'), (shared_flags.define_workdir, 'workdir')]
)
@pytest.mark.parametrize('word', ['model', 'workdir'])
def test_a_trained_model_has_two_words_of_which_one_is_given(define: Callable, name: str, word: str):
    options = flags.FlagValues()
    define(options=options)
    assert parse_flags(['program', f'--{word}=runs/x'], (name,), options=options) == []
    assert options[name].value == Path('runs/x')
    options = flags.FlagValues()
    define(options=options)
    with pytest.raises(InputError, match='^--model and --workdir name one folder: runs/x or runs/y$'):
        parse_flags(['program', '--model=runs/x', '--workdir=runs/y'], options=options)


def test_a_checkpoint_or_a_mean_is_chosen():
    def chosen(*words: str) -> str:
        options = flags.FlagValues()
        shared_flags.define_checkpoint('last', options=options)
        parse_flags(['program', *words], options=options)
        return shared_flags.checkpoint_from_flags(options)

    assert [chosen(), chosen('--checkpoint=7'), chosen('--average=5')] == ['last', '7', 'average-5']
    with pytest.raises(
        InputError, match='^--average takes the mean of the last checkpoints, and --checkpoint names one'
    ):
        chosen('--average=5', '--checkpoint=last')
    with pytest.raises(InputError, match='^flag --average=0: 0 is not a positive integer$'):
        chosen('--average=0')


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
