"""Tests the command that prepares a corpus before training."""

import os
import subprocess
import sys
from pathlib import Path

from tests.scripts.called import refusal_of

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, cwd):
    command = [sys.executable, str(ROOT / 'scripts' / 'prepare_corpus.py'), *arguments]
    environment = os.environ | {'PYTHONPATH': str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_says_where_the_corpus_lies_and_what_is_in_it(tmp_path):
    for number in range(4):
        (tmp_path / f'{number}.txt').write_text(f'Book {number} begins. It is short. It ends.')
    result = run(
        '--source', 'text:*.txt', '--vocab_size', '60', '--cache', 'prepared', '--held_out', '0.3', cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    counts, folder = result.stdout.splitlines()
    assert 'documents' in counts and 'held out' in counts
    assert (tmp_path / folder / 'manifest.json').is_file()
    assert 'tokenising' in result.stderr  # progress is printed in plain lines if there is no terminal


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for arguments, part in [
        (('--source', 'web:x'), 'known: stdlib, text:'),
        (('--source', 'text:*.none'), "no file matches '*.none'"),
        (('--tokenizer', 'train:letters'), 'known: train:wordpiece'),
        (('--held_out', 'nan'), 'data.held_out'),
    ]:
        said = refusal_of('prepare_corpus.py', *arguments, monkeypatch=monkeypatch, capfd=capfd)
        assert said.startswith('error: ') and said.count('\n') == 1 and part in said
    assert not list(tmp_path.iterdir())  # no refused call has written a file
