"""Tests that a workdir has at most one trainer, and that its lock ends with the trainer, however that ends."""

import subprocess
import sys

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.lock import FOLDERS, WorkdirLock

HOLD = """
import pathlib, sys
from efficient_attention.workdir.lock import WorkdirLock
lock = WorkdirLock(pathlib.Path(sys.argv[1]))
print('held', flush=True)
sys.stdin.read()
"""


def test_another_process_is_named_and_its_death_frees_the_workdir(tmp_path):
    with subprocess.Popen(
        [sys.executable, '-c', HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == 'held\n'
        with pytest.raises(InputError, match=rf'^{tmp_path} is in use by another .* \(process {holder.pid} on '):
            WorkdirLock(tmp_path)
        holder.kill()
        holder.wait()
    WorkdirLock(tmp_path).close()


def test_within_one_process_too(tmp_path):
    with WorkdirLock(tmp_path / 'new'):
        with pytest.raises(InputError, match='this process'):
            WorkdirLock(tmp_path / 'new')
    with WorkdirLock(tmp_path / 'new'):
        pass


@pytest.mark.parametrize('name', ['a_file', 'a_file/inside'])
def test_a_workdir_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / 'a_file').write_text('not a folder')
    with pytest.raises(InputError, match=f'{name}: cannot be written'):
        WorkdirLock(tmp_path / name)


@pytest.mark.parametrize('name', FOLDERS)
def test_a_linked_folder_is_refused(tmp_path, name):
    (tmp_path / 'elsewhere').mkdir()
    link = tmp_path / 'run' / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(InputError, match=f'^{link}: a link to a folder; a run writes files into its own folder only$'):
        WorkdirLock(tmp_path / 'run')
    assert not (tmp_path / 'run' / 'lock').exists()
