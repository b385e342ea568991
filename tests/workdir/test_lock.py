"""One trainer for each workdir, whatever becomes of it."""

import subprocess
import sys

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.lock import WorkdirLock

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
