"""Tests that a cache folder is either complete or absent."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.preparation.cache_folder import new_cache_folder
from efficient_attention.errors import InputError, RunError


def test_the_name_appears_when_the_block_ends(tmp_path):
    folder = tmp_path / 'deep' / 'cache' / 'corpus'
    with new_cache_folder(folder) as partial:
        (partial / 'file').write_text('content')
        assert partial.parent == folder.parent and not folder.exists()
    assert (folder / 'file').read_text() == 'content'
    assert [path.name for path in folder.parent.iterdir()] == ['corpus']
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize('error', [KeyboardInterrupt, InputError('no'), ValueError('no')])
def test_nothing_stays_when_the_block_fails(tmp_path, error):
    with (
        pytest.raises(type(error) if isinstance(error, Exception) else error),
        new_cache_folder(tmp_path / 'corpus') as partial,
    ):
        (partial / 'file').write_text('half')
        raise error
    assert not list(tmp_path.iterdir())


def test_of_two_at_the_same_time_the_first_stays(tmp_path):
    folder = tmp_path / 'corpus'
    with new_cache_folder(folder) as slow:
        (slow / 'manifest.json').write_text('same content')
        with new_cache_folder(folder) as fast:
            (fast / 'manifest.json').write_text('same content')
            inode = (fast / 'manifest.json').stat().st_ino
    assert (folder / 'manifest.json').stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ['corpus']


def test_an_incomplete_folder_in_the_way_is_named(tmp_path):
    (tmp_path / 'corpus').mkdir()
    (tmp_path / 'corpus' / 'shard').touch()
    with (
        pytest.raises(InputError, match='corpus: incomplete; delete the folder'),
        new_cache_folder(tmp_path / 'corpus'),
    ):
        pass


def test_what_a_killed_process_left_is_removed_and_a_living_one_is_not_disturbed(tmp_path):
    program = (
        'import pathlib, time\n'
        'from efficient_attention.data.preparation.cache_folder import new_cache_folder\n'
        f'with new_cache_folder(pathlib.Path({str(tmp_path)!r}) / "corpus") as partial:\n'
        '    (partial / "half").touch()\n'
        '    time.sleep(60)\n'
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, '-c', program], cwd=root)
    try:
        while not list(tmp_path.glob('.partial-*/half')):
            assert process.poll() is None
            time.sleep(0.02)
        with new_cache_folder(tmp_path / 'other'):
            pass
        assert list(tmp_path.glob('.partial-*/half'))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / 'corpus').exists()
    with new_cache_folder(tmp_path / 'another'):
        pass
    assert not list(tmp_path.glob('.partial-*'))


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'file').touch()
    with (
        pytest.raises(InputError, match='file/corpus: cannot be written'),
        new_cache_folder(tmp_path / 'file' / 'corpus'),
    ):
        pass


def test_a_full_disk_is_no_bad_input_and_named_by_the_folder(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    line = f'^{tmp_path}/corpus: cannot be written '
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
        with pytest.raises(RunError, match=line), new_cache_folder(tmp_path / 'corpus') as partial:
            (partial / 'file').write_bytes(bytes(2**17))
        with pytest.raises(RunError, match=line), new_cache_folder(tmp_path / 'corpus') as partial:
            np.save(partial / 'array.npy', np.zeros(2**14))  # NumPy's error has no errno.
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_another_file_that_fails_meanwhile_is_named(tmp_path):
    with pytest.raises(InputError, match=f'^{tmp_path}/none: No such file'), new_cache_folder(tmp_path / 'corpus'):
        (tmp_path / 'none').read_bytes()
