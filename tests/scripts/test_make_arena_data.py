"""Tests the command that writes long-range data in the original file layout."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, 'scripts/make_arena_data.py', *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_files_are_written_and_named(tmp_path: Path):
    found = run(
        '--output', str(tmp_path), '--train', 'listops:rows=3:length=8-40', '--test', 'listops:rows=1:length=8-40'
    )
    assert found.returncode == 0
    assert json.loads(found.stdout) == {'files': [str(tmp_path / 'basic_train.tsv'), str(tmp_path / 'basic_test.tsv')]}
    assert len((tmp_path / 'basic_train.tsv').read_text().splitlines()) == 4


def test_a_bad_set_is_one_line(tmp_path: Path):
    found = run('--output', str(tmp_path), '--train', 'chess')
    assert (found.returncode, found.stderr.count('\n')) == (2, 1)
    assert found.stderr.startswith("error: --train is 'chess'; known kinds of rows: listops")
    assert 'give a dataset for at least one of them' in run('--output', str(tmp_path)).stderr
