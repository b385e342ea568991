"""Tests that files and folders appear whole or not at all, also after a failure or a kill in the middle of a write."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.atomic_files import atomic_file, atomic_folder, flush, write_atomically
from efficient_attention.errors import InputError, RunError

ROOT = Path(__file__).resolve().parent.parent


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_text_is_there_and_nothing_else(tmp_path: Path):
    for text in ('a longer text, ä\n', 'b\n'):
        write_atomically(tmp_path / 'file.json', text)
        assert (tmp_path / 'file.json').read_text(encoding='utf-8') == text
    assert names(tmp_path) == ['file.json']


def test_what_is_written_has_the_mode_of_other_files(tmp_path: Path):
    (tmp_path / 'plain').touch()
    (tmp_path / 'folder').mkdir()
    write_atomically(tmp_path / 'file', 'text')
    with atomic_folder(tmp_path / 'new'):
        pass
    assert (tmp_path / 'file').stat().st_mode == (tmp_path / 'plain').stat().st_mode
    assert (tmp_path / 'new').stat().st_mode == (tmp_path / 'folder').stat().st_mode


def no_space(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, 'No space left on device')


def test_a_write_that_fails_leaves_the_old_file_and_names_it(tmp_path: Path, monkeypatch):
    path = tmp_path / 'file.json'
    write_atomically(path, 'old')
    monkeypatch.setattr('os.fsync', no_space)
    with pytest.raises(RunError, match=f'^{path}: cannot be written .No space left on device.$'):
        write_atomically(path, 'new')
    assert path.read_text(encoding='utf-8') == 'old' and names(tmp_path) == ['file.json']


def test_a_folder_that_fails_leaves_nothing_and_is_named(tmp_path: Path, monkeypatch):
    with pytest.raises(ValueError, match='other'), atomic_folder(tmp_path / 'out') as partial:
        (partial / 'half').touch()
        raise ValueError('other')
    monkeypatch.setattr('os.fsync', no_space)
    with (
        pytest.raises(RunError, match=f'^{tmp_path}/out: cannot be written'),
        atomic_folder(tmp_path / 'out') as partial,
    ):
        (partial / 'half').touch()
    assert names(tmp_path) == []


def test_the_file_that_could_not_be_read_keeps_its_name(tmp_path: Path):
    with pytest.raises(FileNotFoundError) as caught, atomic_file(tmp_path / 'out'):
        (tmp_path / 'in').read_bytes()
    assert caught.value.filename == str(tmp_path / 'in')


def test_a_place_that_does_not_serve_is_bad_input(tmp_path: Path):
    (tmp_path / 'file').touch()
    with pytest.raises(InputError, match='file/new: cannot be written .File exists.$'):
        write_atomically(tmp_path / 'file' / 'new', 'text')


def test_an_empty_folder_gives_way_and_a_full_one_stays(tmp_path: Path):
    folder = tmp_path / 'deep' / 'out'
    folder.mkdir(parents=True)
    with atomic_folder(folder) as partial:
        (partial / 'a').write_text('first')
    with (
        pytest.raises(InputError, match='out: cannot .* .Directory not empty'),
        atomic_folder(folder) as partial,
    ):
        (partial / 'a').write_text('second')
    assert (folder / 'a').read_text() == 'first' and names(folder.parent) == ['out']


def test_a_reader_never_sees_a_part(tmp_path: Path, monkeypatch):
    path = tmp_path / 'file.json'
    write_atomically(path, 'old')
    seen = []
    replace = Path.replace

    def look_first(self: Path, target: Path) -> Path:
        seen.append((self.read_text(encoding='utf-8'), target.read_text(encoding='utf-8')))
        return replace(self, target)

    monkeypatch.setattr(Path, 'replace', look_first)
    write_atomically(path, 'new' * 1000)
    assert seen == [('new' * 1000, 'old')]


KILLED = """
import os, pathlib, sys
from efficient_attention.atomic_files import atomic_file, atomic_folder
folder = pathlib.Path(sys.argv[1])
with atomic_file(folder / 'file') as file, atomic_folder(folder / 'folder') as partial:
    file.write_text('half')
    (partial / 'half').touch()
    os._exit(9)
"""


def test_a_kill_leaves_neither_and_the_next_write_tidies_up(tmp_path: Path):
    (tmp_path / 'file').write_text('old')
    assert subprocess.run([sys.executable, '-c', KILLED, str(tmp_path)], cwd=ROOT, check=False).returncode == 9
    assert (tmp_path / 'file').read_text() == 'old' and not (tmp_path / 'folder').exists()
    assert len(names(tmp_path)) == 3
    write_atomically(tmp_path / 'other', 'text')
    assert names(tmp_path) == ['file', 'other']


def test_what_a_living_process_writes_is_not_disturbed(tmp_path: Path):
    with atomic_folder(tmp_path / 'slow') as partial:
        write_atomically(tmp_path / 'fast', 'text')
        assert partial.is_dir() and str(os.getpid()) in partial.name
    assert names(tmp_path) == ['fast', 'slow']


def test_flushing_takes_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flushed: list[int] = []
    monkeypatch.setattr(os, 'fsync', lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    (tmp_path / 'file').touch()
    flush(tmp_path / 'file')
    flush(tmp_path)
    assert flushed == [(tmp_path / 'file').stat().st_ino, tmp_path.stat().st_ino]
