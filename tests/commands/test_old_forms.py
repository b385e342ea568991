"""Command lines of the release before: what they mean now, and the line that says so."""

import pytest
from absl import flags

from efficient_attention.commands.flags import define_integers
from efficient_attention.commands.old_forms import in_new_form

OLD_NAMES = {'to': 'output', 'to-long': 'length'}


@pytest.fixture
def options() -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_string('output', None, 'A folder.', flag_values=values)
    flags.DEFINE_integer('length', None, 'Tokens.', flag_values=values)
    flags.DEFINE_bool('quick', False, 'Small.', flag_values=values)
    flags.DEFINE_multi_string('set', [], 'Fields.', flag_values=values)
    define_integers('layers', [1], 'Depths', values)
    return values


@pytest.mark.parametrize(
    'old, new, said',
    [
        ('--to x', '--output x', ['--to is now --output; the old name']),
        ('--to-long=8 --to=x', '--length=8 --output=x', ['--to-long is now --length', '--to is now --output']),
        ('--layers 1 -2 --quick', '--layers=1,-2 --quick', ['--layers 1 -2 is now --layers=1,-2; the old form']),
        ('--set a=b c=d', '--set=a=b --set=c=d', ['--set a=b c=d is now --set=a=b --set=c=d; the old form']),
        ('--quick False x', '--quick=False x', ['--quick False is now --quick=False; the old form']),
    ],
)
def test_an_old_form_is_understood_and_said(options, capsys, old: str, new: str, said: list[str]):
    assert in_new_form(old.split(), options, OLD_NAMES) == new.split()
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith(start) for line, start in zip(lines, said, strict=True)] == [True] * len(said)
    assert all(line.endswith(' goes with the next release') for line in lines)


@pytest.mark.parametrize(
    'arguments',
    [
        '--output --to',  # a value that looks like an old name
        '--layers 1 --set a=b --set c=d',
        '--quick word --length 3',
        '--unknown 1 2 -- --to x',
        'word --layers=1,2 --noquick --length',
    ],
)
def test_the_form_of_today_stays_as_it_is(options, capsys, arguments: str):
    assert in_new_form(arguments.split(), options, OLD_NAMES) == arguments.split()
    assert capsys.readouterr().err == ''
