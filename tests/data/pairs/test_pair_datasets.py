"""Tests of data sets of pairs: parallel files, table columns, toy problems, and a one-line error for each fault."""

import gzip
import json
from pathlib import Path

import pytest

from efficient_attention.data.pairs.pair_datasets import TextPair, parse_pair_datasets
from efficient_attention.data.sources import tables
from efficient_attention.data.sources.tfds import TFDSRows
from efficient_attention.errors import InputError


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == '.gz' else text.encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path / 'a.de.gz', 'eins\nzwei\n'), written(tmp_path / 'a.en', 'one\ntwo\r\n')


def read(text: str) -> list[TextPair]:
    return [pair for one in parse_pair_datasets(text, 'pairs.train') for pair in one.read_pairs()]


def test_parallel_files(files):
    source, target = files
    pairs = read(f'lines:{source},{target}')
    assert [pair[:2] for pair in pairs] == [('eins', 'one'), ('zwei', 'two')]
    assert pairs[1].where == f'{source}: line 2'


def test_columns_of_tables(tmp_path: Path):
    row = {'id': 1, 'long': 'ein Text', 'short': 'Text'}
    written(tmp_path / 't.jsonl', json.dumps(row) + '\n')
    written(tmp_path / 't.tsv', 'short\tlong\nb\ta\n')
    pairs = read(f'table:{tmp_path}/t.*#long,short; toy:copy:1:3-3')
    assert [pair[:2] for pair in pairs[:2]] == [('ein Text', 'Text'), ('a', 'b')]
    assert pairs[2].source == pairs[2].target and len(pairs) == 3


def test_a_digest_follows_the_content(files):
    [one] = parse_pair_datasets(f'lines:{files[0]},{files[1]}', 'pairs.train')
    before = one.digest()
    written(files[1], 'one\nthree\n')
    assert one.digest() != before
    assert parse_pair_datasets('toy:copy:1:3-3', 'x')[0].digest() == 'toy:copy:1:3-3'


@pytest.mark.parametrize('longer', [0, 1])
def test_files_of_unequal_length_name_the_first_line_without_a_partner(files, longer: int):
    with (gzip.open if longer == 0 else open)(files[longer], 'at') as file:
        file.write('more\nand more\n')
    line = rf'^{files[longer]}: line 3 has no partner; {files[1 - longer]} has 2 lines$'
    with pytest.raises(InputError, match=line):
        read(f'lines:{files[0]},{files[1]}')


def test_an_empty_side_is_named(files):
    written(files[1], 'one\n \n')
    with pytest.raises(InputError, match=rf'^{files[1]}: line 2 is empty$'):
        read(f'lines:{files[0]},{files[1]}')


@pytest.mark.parametrize(
    'text, said',
    [
        ('lines:only.de', "pairs.train has the set 'lines:only.de'; known: lines:<source file>,<target file>"),
        ('table:file.tsv', "pairs.train has the set 'table:file.tsv'"),
        ('pairs:a,b', "pairs.train has the set 'pairs:a,b'"),
        ('lines:none.de,none.en', "pairs.train: no file matches 'none.de'"),
        ('table:none.tsv#a,b', "pairs.train: no file matches 'none.tsv'"),
    ],
)
def test_other_sets_are_refused_by_the_field(text: str, said: str):
    with pytest.raises(InputError) as refused:
        read(text)
    assert str(refused.value).startswith(said)


def test_a_side_is_one_file(files, tmp_path: Path):
    written(tmp_path / 'b.de.gz', 'drei\n')
    with pytest.raises(InputError, match='matches 2 files; each side of parallel lines must be one file'):
        read(f'lines:{tmp_path}/*.de.gz,{files[1]}')


def test_pairs_that_follow_one_another_are_joined(files):
    written(files[0], 'eins \nzwei\ndrei\n')
    written(files[1], 'one\ntwo\nthree\n')
    pairs = read(f'joined:2:lines:{files[0]},{files[1]}')
    assert [pair[:2] for pair in pairs] == [('eins zwei', 'one two'), ('drei', 'three')]
    assert pairs[1].where == f'{files[0]}: line 3'
    digests = {
        one.digest() for number in (1, 2, 3) for one in parse_pair_datasets(f'joined:{number}:toy:copy:4:2-3', '')
    }
    assert len(digests) == 3
    assert read('joined:1:toy:copy:4:2-3') == read('toy:copy:4:2-3')


@pytest.mark.parametrize('number', ['0', 'x', ''])
def test_a_number_of_joined_pairs_that_is_none_is_refused(number: str):
    with pytest.raises(InputError, match=rf"^pairs.train has the set 'joined:{number}:toy:copy:4:2-3'; joined:<pairs>"):
        read(f'joined:{number}:toy:copy:4:2-3')


def test_pairs_of_tensorflow_datasets(monkeypatch: pytest.MonkeyPatch):
    rows = TFDSRows('wmt/de-en', {}, [{'de': 'schön'.encode(), 'en': b'nice'}, {'de': b'alt', 'en': b'old'}])
    monkeypatch.setattr(tables, 'tfds_rows', lambda *name: {('wmt/de-en', 'validation'): rows}[name])
    pairs = read('tfds:wmt/de-en:validation#de,en')
    assert [pair[:2] for pair in pairs] == [('schön', 'nice'), ('alt', 'old')]
    assert pairs[1].where == 'tfds:wmt/de-en:validation: row 1'
    one, other = (
        parse_pair_datasets(f'tfds:wmt/de-en:validation#{columns}', 'pairs.train')[0] for columns in ('de,en', 'en,de')
    )
    assert one.digest() != other.digest()
    with pytest.raises(InputError, match="row 0: no column 'fr'"):
        read('tfds:wmt/de-en:validation#de,fr')
