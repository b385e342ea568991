"""Tests of table files in the formats that users have, and of errors that name file, line and column."""

import gzip
import json
from pathlib import Path

import pytest

from efficient_attention.data.sources.tables import expand_table_names, read_table, read_tables
from efficient_attention.errors import InputError

ROWS = [{'text': 'one, "two"\nthree', 'label': 'x'}, {'text': 'é', 'label': '2'}]
CSV = 'text,label\n"one, ""two""\nthree",x\n\né,2\n'
JSON = ''.join(json.dumps(row) + '\n' for row in ROWS)


def values(path):
    return [dict(row.values) for row in read_table(str(path))]


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('ends', ['\n', '\r\n'])
@pytest.mark.parametrize(
    'name, content', [('a.csv', CSV), ('a.jsonl', JSON), ('a.json', f'[{JSON.strip().replace(chr(10), ", ")}]')]
)
def test_the_same_rows_from_every_kind_of_file(tmp_path, name, content, ends, packed):
    data = ('\ufeff' + content.replace('\n', ends)).encode()
    path = tmp_path / (name + '.gz' if packed else name)
    path.write_bytes(gzip.compress(data) if packed else data)
    assert values(path) == ROWS


def test_places_are_lines_as_an_editor_counts(tmp_path):
    (tmp_path / 'a.csv').write_text(CSV)
    assert [row.place for row in read_table(str(tmp_path / 'a.csv'))] == ['line 2', 'line 5']
    (tmp_path / 'a.jsonl').write_text('\n' + JSON)
    assert [row.place for row in read_table(str(tmp_path / 'a.jsonl'))] == ['line 2', 'line 3']
    (tmp_path / 'a.json').write_text('[{"text": "a"},\n{"text": "b"}]')
    assert [row.place for row in read_table(str(tmp_path / 'a.json'))] == ['entry 1', 'entry 2']


def test_a_quote_in_tsv_is_a_character(tmp_path):
    (tmp_path / 'a.tsv').write_text('text\tlabel\n"a\tb\n\n\'\t"\n')
    assert values(tmp_path / 'a.tsv') == [{'text': '"a', 'label': 'b'}, {'text': "'", 'label': '"'}]


def test_columns_may_be_given(tmp_path):
    (tmp_path / 'a.tsv').write_text('1\t2\n')
    assert [row.values for row in read_table(str(tmp_path / 'a.tsv'), columns=('x', 'y'))] == [{'x': '1', 'y': '2'}]


def test_a_book_fits_in_a_field(tmp_path):
    (tmp_path / 'a.csv').write_text('text,label\n' + 'long ' * 100_000 + ',x\n')
    assert len(values(tmp_path / 'a.csv')[0]['text']) == 500_000


@pytest.mark.parametrize(
    'name, content, fault',
    [
        ('a.csv', 'text,label\na,b\na,b,c\n', 'line 3: 3 fields where there are 2 columns: text, label'),
        ('a.tsv', 'text\tlabel\na\n', 'line 2: 1 fields where there are 2 columns'),
        ('a.csv', 'text,label\n"a\nb,c\n', 'line 2: not CSV (a double quote opens a field and none closes it)'),
        ('a.csv', 'text,label\n"a"b,c\n', 'line 2: not CSV (text stands behind a closing double quote)'),
        ('a.csv', '\n"title\nof it",label\n\na,b\n', "line 2: no column 'text'; known: 'title\\nof it', 'label'"),
        ('a.csv', 'text,label\n"a\nb",c\nd\n', 'line 4: 1 fields where there are 2 columns'),
        ('a.csv', 'text,label,text\n', "line 1: the header names column 'text' twice"),
        (
            'a.jsonl',
            '{"text": "a"}\n{"text": "a"\n',
            'line 2: not JSON (a comma or a closing bracket is missing at column 13)',
        ),
        ('a.jsonl', '[' * 100_000, 'line 1: not JSON'),
        ('a.jsonl', '["a"]\n', 'line 1: not a JSON object'),
        ('a.json', '{"text": "a"}', 'not a JSON list of objects; write one object per line in a file *.jsonl'),
        ('a.json', '[{"text": "a"}, 5]', 'entry 2: not a JSON object'),
        ('a.text', 'a\n', 'not a known kind of table; known: .csv, .tsv, .jsonl, .json, .txt'),
        ('a.txt', ' \n', "line 1: field 'text' is empty"),
        ('a.csv', '', 'it is empty; its first line must name the columns'),
        ('a.tsv', '\n', 'it is empty; its first line must name the columns'),
        ('a.jsonl', '{"title": "a", "label": 1}\n', "line 1: no column 'text'; known: 'title', 'label'"),
        ('a.tsv', 'title\tlabel\na\tb\n', "line 1: no column 'text'; known: 'title', 'label'"),
        ('a.csv', 'text,label\n" ",b\n', "line 2: field 'text' is empty"),
        ('a.jsonl', '{"text": 5}\n', "line 1: field 'text' is a whole number, not a text"),
        ('a.jsonl', r'{"text": "half \ud83d"}', "line 1: field 'text' holds half of a surrogate pair"),
    ],
)
def test_a_fault_is_named_by_file_line_and_column(tmp_path, name, content, fault):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        [row.column_text('text') for row in read_table(str(tmp_path / name))]
    message = str(caught.value)
    assert message.startswith(f'{tmp_path / name}: ') and fault in message and '\n' not in message


def test_a_text_file_is_a_row_of_its_folders_class(tmp_path):
    for name in ('pos/7', 'neg/3'):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f'{name}.txt').write_text(f'{name}\nend\n')
    rows = list(read_tables(f'{tmp_path}/*/*.txt'))
    assert [row.values for row in rows] == [
        {'text': 'neg/3\nend\n', 'label': 'neg', 'id': '3'},
        {'text': 'pos/7\nend\n', 'label': 'pos', 'id': '7'},
    ]


def test_broken_rows_may_be_collected(tmp_path):
    (tmp_path / 'a.tsv').write_text('text\tlabel\na\nb\tc\n')
    faults = []
    assert [row.column_text('text') for row in read_table(str(tmp_path / 'a.tsv'), faults=faults)] == ['b']
    assert faults == [f'{tmp_path}/a.tsv: line 2: 1 fields where there are 2 columns: text, label']


@pytest.mark.parametrize(
    'written, label',
    [
        ('" x "', 'x'),
        ('""', None),
        ('null', None),
        ('3', '3'),
        ('0', '0'),
        ('-1', '-1'),
        ('true', 'true'),
        ('2.5', '2.5'),
        ('1.0', '1'),
        ('1e0', '1'),
        ('-0.0', '0'),
        ('1e20', '100000000000000000000'),
        ('"1"', '1'),
        ('"NA"', 'NA'),
        ('"null"', 'null'),
        ('"nan"', 'nan'),
        ('"1.0"', '1.0'),
    ],
)
def test_labels_as_json_writes_them(tmp_path, written, label):
    (tmp_path / 'a.jsonl').write_text(f'{{"label": {written}}}')
    [row] = read_table(str(tmp_path / 'a.jsonl'))
    assert row.column_label('label') == label


@pytest.mark.parametrize(
    'written, fault',
    [
        ('[]', 'a list, not a text or a number'),
        ('{}', 'an object, not a text or a number'),
        ('NaN', 'NaN, not a text or a finite number'),
        ('Infinity', 'Infinity, not a text or a finite number'),
        ('-1e999', '-Infinity, not a text or a finite number'),
    ],
)
def test_what_is_no_label(tmp_path, written, fault):
    (tmp_path / 'a.jsonl').write_text(f'{{"label": {written}}}')
    [row] = read_table(str(tmp_path / 'a.jsonl'))
    with pytest.raises(InputError, match=f"a.jsonl: line 1: field 'label' is {fault}$"):
        row.column_label('label')


def test_files_come_in_the_order_that_names_them(tmp_path):
    for name in 'cab':
        (tmp_path / f'{name}.tsv').write_text(f'text\n{name}\n')
    sources = f'{tmp_path}/c.tsv, {tmp_path}/*.tsv'
    assert [row.column_text('text') for row in read_tables(sources)] == ['c', 'a', 'b']
    with pytest.raises(InputError, match='no file matches'):
        expand_table_names(f'{tmp_path}/c.tsv,{tmp_path}/d.tsv')
    with pytest.raises(InputError, match='tfds:imdb_reviews: no split; write .* such as tfds:imdb_reviews:train'):
        expand_table_names('tfds:imdb_reviews')


def test_tfds_rows_have_texts_and_named_classes(monkeypatch):
    monkeypatch.setenv('TFDS_DATA_DIR', str(Path(__file__).parent / 'prepared_tfds' / 'public'))
    first, second = read_tables('tfds:glue/sst2:train[:2]')
    assert {row.column_text('sentence')[:4] for row in (first, second)} <= {'The ', 'Here'}
    assert first.column_label('label') in ('negative', 'positive')
    assert [row.column_label('label') for row in read_tables('tfds:glue/sst2:test')] == [None] * 3
    assert second.file_and_line == 'tfds:glue/sst2:train[:2]: row 1'
    with pytest.raises(InputError, match="row 1: no column 'body'; known: .*'sentence'"):
        second.column_text('body')
    with pytest.raises(InputError, match='tfds:nothing: not prepared in .* make tfds NAME=nothing$'):
        list(read_tables('tfds:nothing:train'))
