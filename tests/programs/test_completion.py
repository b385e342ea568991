"""Tests the completion of a command line, in a real bash."""

import subprocess
import sys

import pytest

from efficient_attention.errors import InputError
from efficient_attention.programs import completion

WORDS = {'train': ['--config', '--workdir'], 'translate': ['--model'], 'configs': ['list', 'show', '--source']}
TRY = """
source /dev/stdin
while [[ "$1" != "" ]]; do
  IFS='|' read -ra COMP_WORDS <<< "$1"
  [[ "$1" == *'|' ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _efficient_attention; echo "${COMPREPLY[*]}"
  shift
done
"""
# Words of a command line as bash splits them: what completes the last one. Bash makes three words of --config=x.
LINES = {
    'tr': 'train translate',
    'train|--w': '--workdir',
    'train|--config|finetune/g': 'finetune/glue.py',
    'train|--config|=|finetune/g': 'finetune/glue.py',
    'train|--config=finetune/g': '--config=finetune/glue.py',  # as zsh splits it
    'train|--workdir|runs/x|--con': '--config',
    'train|--workdir|lm': '',
    'train|--workdir|=|': '',
    'train|--config.train.see': '--config.train.seed=',
    'train|--config.train.seed|=|': '',
    'train|--config.train.seed=': '',
    'configs|s': 'show',
    'configs|show|lm/g': 'lm/gpt.py',
    'configs|where|quick': 'quickstart.py',
    'translate|': '--model',
}


def test_bash_completes_subcommands_flags_and_configs():
    script = completion.completion_script('bash', WORDS)
    lines = [f'efficient-attention|{line}' for line in LINES]
    done = subprocess.run(['bash', '-c', TRY, 'bash', *lines], input=script, capture_output=True, text=True)
    assert done.stderr == '' and dict(zip(LINES, done.stdout.split('\n'), strict=False)) == LINES


def test_an_equals_sign_alone_completes_all_configs():
    script = completion.completion_script('bash', WORDS)
    line = 'efficient-attention|train|--config|='
    done = subprocess.run(['bash', '-c', TRY, 'bash', line], input=script, capture_output=True, text=True, check=True)
    assert {'quickstart.py', 'arena.py', 'lm/gpt.py'} < set(done.stdout.split())


def test_zsh_gets_the_same_through_its_own_functions_for_bash():
    scripts = {shell: completion.completion_script(shell, WORDS) for shell in completion.SHELLS}
    lines = {shell: text.splitlines() for shell, text in scripts.items()}
    assert lines['zsh'][1] == 'autoload -U +X bashcompinit && bashcompinit' and lines['zsh'][2:] == lines['bash'][1:]


def test_the_words_are_those_of_the_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, 'argv', ['efficient-attention completion', 'bash'])
    completion.main({'train': lambda: WORDS['train']})
    assert capsys.readouterr().out == completion.completion_script('bash', {'train': WORDS['train']})


def test_an_unknown_shell_is_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, 'argv', ['efficient-attention completion', 'fish'])
    with pytest.raises(InputError, match="^'fish' is no shell that can be completed; known: bash, zsh$"):
        completion.main({})
