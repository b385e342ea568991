"""Each script reads a command line of the release before as the one of today, and says what has changed."""

import runpy
import shlex
import sys
from pathlib import Path

import pytest

from efficient_attention.commands import command_line as command

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {  # old: new
    'convert.py --source a --to=b --to-long 8 --global-tokens 2': 'convert.py --model a --output=b --length 8 '
    '--global_tokens 2',
    'predict.py --model a --output b --set text=c id=d --split dev': 'predict.py --model a --output b --split dev '
    '--set text=c --set id=d',
    'prepare_corpus.py --lowercase false': 'prepare_corpus.py --nolowercase',
    "visualize.py pattern 'window(3)' --out a": "visualize.py pattern --output a 'window(3)'",
    'visualize.py gallery --out a': 'visualize.py gallery --output=a',
    'benchmark.py step --lengths 8 16 --peers-python a --json b': 'benchmark.py step --lengths 8,16 '
    '--peers_python a --output b',
    'benchmark.py attention --sides full causal --json b': 'benchmark.py attention --sides full,causal --output b',
    'benchmark.py memory --parts depth output --layers 1 2': 'benchmark.py memory --parts depth,output --layers 1,2',
    'benchmark.py finetune --ways train infer --json b': 'benchmark.py finetune --ways train,infer --output b',
    'benchmark.py decode --contexts 8 16': 'benchmark.py decode --contexts 8,16',
    'benchmarks/inversion.py --layers 1 2': 'benchmarks/inversion.py --layers=1,2',
    'stress/kill_mutants.py --only 1 2 --no_package': 'stress/kill_mutants.py --only 1,2 --alone',
}


class Parsed(BaseException):
    """Raised in place of what a script does after it has read its flags."""


def read(line: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, list[str]]:
    """Flags and words as a script reads them, which then stops."""
    script, *arguments = shlex.split(line)
    parse_flags = command.parse_flags

    def parse_and_stop(*positional, options, **others) -> None:
        words = parse_flags(*positional, options=options, **others)
        raise Parsed(options.flag_values_dict(), words)

    with monkeypatch.context() as patch:
        patch.setattr(sys, 'argv', [script, *arguments])
        patch.setattr(command, 'parse_flags', parse_and_stop)
        with pytest.raises(Parsed) as raised:
            runpy.run_path(str(ROOT / 'scripts' / script), run_name='__main__')
    return raised.value.args


@pytest.mark.parametrize('old', COMMANDS)
def test_an_old_command_line_is_read_as_the_new_one(monkeypatch: pytest.MonkeyPatch, capsys, old: str):
    found = read(old, monkeypatch)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.endswith(' goes with the next release') for line in lines)
    assert found == read(COMMANDS[old], monkeypatch)
    assert capsys.readouterr().err == ''


def test_every_script_has_its_flags_from_one_library():
    scripts = [path for path in ROOT.glob('scripts/**/*.py') if 'import argparse' in path.read_text(encoding='utf-8')]
    # the environment of the peers has no absl
    assert sorted(path.name for path in scripts) == [
        'encoder_decoders.py',
        'encoders.py',
        'searches.py',
    ]
