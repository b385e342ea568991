"""Replacing a file at once: the old text or the new one, never a part."""

from pathlib import Path

import pytest

from efficient_attention.workdir.atomic_write import write_atomically


def test_the_text_is_there_and_nothing_else(tmp_path):
    for text in ('a longer text, ä\n', 'b\n'):
        write_atomically(tmp_path / 'file.json', text)
        assert (tmp_path / 'file.json').read_text(encoding='utf-8') == text
    assert [path.name for path in tmp_path.iterdir()] == ['file.json']


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'file.json'
    write_atomically(path, 'old')

    def no_space(_descriptor: int) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('os.fsync', no_space)
    with pytest.raises(OSError, match='No space left'):
        write_atomically(path, 'new')
    assert path.read_text(encoding='utf-8') == 'old'


def test_a_reader_never_sees_a_part(tmp_path, monkeypatch):
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
