"""Tests of text files: found in a fixed order, read as UTF-8, and every error names file and position."""

import bz2
import gzip

import pytest

from efficient_attention.data.sources import text_files
from efficient_attention.data.sources.text_files import (
    decode_utf8,
    digest_files,
    find_files,
    read_chunks,
    read_lines,
    read_text,
)
from efficient_attention.errors import InputError


def test_globs_are_recursive_sorted_and_without_repeats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ['b.txt', 'a.txt', 'deep/er/c.txt', 'deep/d.md', 'deep/folder.txt/e.txt']:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    names = [str(path) for path in find_files('**/*.txt, a.txt,deep/*.md')]
    assert names == ['a.txt', 'b.txt', 'deep/d.md', 'deep/er/c.txt', 'deep/folder.txt/e.txt']
    assert len(find_files(str(tmp_path / '*.txt'))) == 2


def test_a_path_with_glob_characters_is_found_as_it_is(tmp_path):
    (tmp_path / 'a[1].txt').touch()
    assert len(find_files(str(tmp_path / 'a[1].txt'))) == 1


def test_every_glob_must_match(tmp_path):
    (tmp_path / 'a.txt').touch()
    with pytest.raises(InputError, match=r"no file matches '.*\.md'"):
        find_files(f'{tmp_path}/*.txt,{tmp_path}/*.md')


def test_the_digest_depends_on_content_order_and_kind_not_on_place(tmp_path):
    def digest(folder, **contents):
        (tmp_path / folder).mkdir()
        paths = [tmp_path / folder / name.replace('_', '.') for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_bytes(content)
        return digest_files(paths)

    original = digest('one', a_txt=b'x', b_txt=b'y')
    assert digest('moved', c_txt=b'x', d_txt=b'y') == original
    assert digest('changed', a_txt=b'x', b_txt=b'z') != original
    assert digest('swapped', a_txt=b'y', b_txt=b'x') != original
    assert digest('markdown', a_md=b'x', b_txt=b'y') != original
    assert digest('shifted', a_txt=b'xy', b_txt=b'') != original


def test_text_is_read_plain_and_packed_without_byte_order_mark(tmp_path):
    text = 'Zoë said:\r\n“北京”\n'
    (tmp_path / 'plain.txt').write_bytes(b'\xef\xbb\xbf' + text.encode())
    (tmp_path / 'packed.txt.gz').write_bytes(gzip.compress(text.encode()))
    expected = text.replace('\r\n', '\n')
    for name in ['plain.txt', 'packed.txt.gz']:
        assert read_text(tmp_path / name) == expected
        assert list(read_lines(tmp_path / name)) == [(1, 'Zoë said:'), (2, '“北京”')]


@pytest.mark.parametrize('name', ['bad.txt', 'bad.txt.gz'])
def test_the_first_byte_that_is_not_utf_8_is_named(tmp_path, name):
    data = 'é\nline\n'.encode() + b'ab\xff\n'
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith('.gz') else data)
    for read in (read_text, lambda path: list(read_lines(path))):
        with pytest.raises(InputError) as caught:
            read(path)
        assert f'{path}: byte 0xff at offset 10 is not UTF-8' in str(caught.value)


def test_a_character_cut_in_half_is_named():
    with pytest.raises(InputError, match='here: byte 0xc3 at offset 102 '):
        decode_utf8(b'ab\xc3', 'here', offset=100)


def test_damaged_gzip_is_named(tmp_path):
    whole = gzip.compress(b'text ' * 1000)
    for number, data in enumerate([b'not gzip', whole[:-20], whole[:20] + b'\xff\xff' + whole[22:]]):
        path = tmp_path / f'{number}.gz'
        path.write_bytes(data)
        with pytest.raises(InputError, match=f'{number}.gz: cannot be read'):
            read_text(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match='gone.txt: cannot be read'):
        read_text(tmp_path / 'gone.txt')


@pytest.mark.parametrize('content', [b'a' * 2**22, b'a\n' * 2**21])
@pytest.mark.parametrize('name', ['x.gz', 'x.bz2'])
def test_a_small_file_that_unpacks_to_far_more_than_a_text_is_left_early(tmp_path, monkeypatch, name, content):
    monkeypatch.setattr(text_files, 'ROOM', 2**17)
    monkeypatch.setattr(text_files, 'PIECE', 2**14)
    unpacked = count_read(monkeypatch)
    path = tmp_path / name
    path.write_bytes((gzip if name == 'x.gz' else bz2).compress(content))
    most = max(2**17, 100 * path.stat().st_size)
    for read in (read_text, lambda path: list(read_lines(path)), lambda path: list(read_chunks(path, 2**14))):
        unpacked.clear()
        with pytest.raises(InputError, match=f'{name}: unpacks to more than {most:,} bytes, far more than a text of'):
            read(path)
        assert sum(unpacked) <= most + 2**14  # The reader stops before the end of the line.


def count_read(monkeypatch) -> list[int]:
    """Patches the reader and returns a list that receives the size of each decompressed piece."""
    found: list[int] = []
    counted = text_files._SizeLimitedReader._check_decompressed_size

    def count(self, data: bytes) -> bytes:
        found.append(len(data))
        return counted(self, data)

    monkeypatch.setattr(text_files._SizeLimitedReader, '_check_decompressed_size', count)
    return found


def test_texts_that_pack_well_are_read(tmp_path):
    text = 'the same line again\n' * 10_000
    (tmp_path / 'x.gz').write_bytes(gzip.compress(text.encode()))
    assert read_text(tmp_path / 'x.gz') == text


@pytest.mark.parametrize('name', ['x.txt', 'x.gz'])
def test_a_text_or_a_line_above_its_limit_is_named_before_its_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text_files, 'MOST_BYTES', 2**16)
    monkeypatch.setattr(text_files, 'MOST_OF_A_LINE', 2**15)
    monkeypatch.setattr(text_files, 'PIECE', 2**10)
    content = b'short\n' + b'a' * 2**17
    (tmp_path / name).write_bytes(gzip.compress(content) if name == 'x.gz' else content)
    with pytest.raises(InputError, match=f'{name}: one text has more than 65,536 bytes$'):
        read_text(tmp_path / name)
    lines = read_lines(tmp_path / name)
    assert next(lines) == (1, 'short')
    with pytest.raises(InputError, match=f'{name}: line 2 has more than 32,768 bytes$'):
        next(lines)
