"""Tests of tables whose rows keep all columns, and of lines written in the format of the read file."""

from pathlib import Path

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_table import TextTable, format_table_lines
from efficient_attention.errors import InputError

ROW = {'text': 'a "b", c', 'label': '1'}


@pytest.mark.parametrize(
    'suffix, has_header, lines',
    [
        ('.tsv', True, ['text\tlabel\n', 'a "b", c\t1\n']),
        ('.tsv', False, ['a "b", c\t1\n']),
        ('.csv', True, ['text,label\n', '"a ""b"", c",1\n']),
        ('.jsonl', True, ['{"text": "a \\"b\\", c", "label": "1"}\n']),
    ],
)
def test_lines_of_a_row(suffix: str, has_header: bool, lines: list[str]):
    assert list(format_table_lines([ROW], suffix, has_header=has_header)) == lines


def test_cola_has_no_header_and_others_have_one(tmp_path: Path):
    path = tmp_path / 'train.tsv'
    path.write_text('x\t1\t\tada ran\n')
    assert not TextTable(path, ExamplesConfig(problem='classification', format='glue', name='cola')).has_header()
    path.write_text('sentence\tlabel\nada ran\t1\n')
    assert TextTable(path, ExamplesConfig(problem='classification', format='glue', name='sst2')).has_header()


def test_what_is_no_table_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r'rows must come from a file of .csv, .tsv, .jsonl'):
        list(TextTable(tmp_path / 'a.txt', ExamplesConfig(problem='classification')).rows([]))
