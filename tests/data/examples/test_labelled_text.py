"""Tests of the reader of texts, text pairs and labels in tables."""

import re
from pathlib import Path

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.labelled_text import LabelledText, label_names, numeric_label, read_labelled
from efficient_attention.errors import InputError

SOURCES = Path(__file__).resolve().parents[1] / 'sources'


def config_of(folder, content, **options):
    (folder / 'a.csv').write_text(content)
    path = str(folder / 'a.csv')
    return ExamplesConfig(problem='classification', **{'train': path, 'dev': path, 'test': path, **options})


def test_texts_pairs_and_ids_by_column(tmp_path):
    config = config_of(tmp_path, 'name,first,second,class\nx7,a,b,yes\nx8,c,d,no\n', text='first', label='class')
    assert [(one.id, one.texts, one.label) for one in read_labelled(config, 'train', [])] == [
        ('0', ('a',), 'yes'),
        ('1', ('c',), 'no'),
    ]
    config = config_of(
        tmp_path, 'name,first,second,class\nx7,a,b,yes\n', text='first', text_pair='second', label='class', id='name'
    )
    [only] = read_labelled(config, 'dev', [])
    assert (only.id, only.texts, only.file_and_line) == ('x7', ('a', 'b'), f'{tmp_path}/a.csv: line 2')


def test_reviews_by_name_and_from_saved_folders(monkeypatch):
    monkeypatch.setenv('TFDS_DATA_DIR', str(SOURCES / 'prepared_tfds' / 'public'))
    saved = SOURCES / 'saved_datasets' / 'reviews'
    config = ExamplesConfig(train='tfds:imdb_reviews:train', dev=f'{saved}/train', test=f'{saved}/test')
    assert {one.label for one in read_labelled(config, 'train', [])} == {'neg', 'pos'}
    assert [one.label for one in read_labelled(config, 'dev', [])] == ['good', 'bad', 'bad', 'good', 'good']
    assert [(one.texts, one.label) for one in read_labelled(config, 'test', [])] == [(('No label.',), None)]


def test_only_a_test_file_may_lack_labels(tmp_path):
    config = config_of(tmp_path, 'text\na\n')
    assert [one.label for one in read_labelled(config, 'test', [])] == [None]
    with pytest.raises(
        InputError, match="line 1: no column 'label'; known: 'text'; set examples.label to one of them$"
    ):
        list(read_labelled(config, 'dev', []))
    config = config_of(tmp_path, 'text,label\na,x\nb,\n')
    assert [one.label for one in read_labelled(config, 'test', [])] == ['x', None]
    with pytest.raises(InputError, match="a.csv: line 3: field 'label' is empty"):
        list(read_labelled(config, 'train', []))
    glue = config_of(tmp_path, 'index,sentence\n0,a\n', format='glue', name='sst2')
    with pytest.raises(InputError, match="a.csv: line 1: no column 'label'; known: 'index', 'sentence'$"):
        list(read_labelled(glue, 'dev', []))


@pytest.mark.parametrize('field', ['text', 'text_pair', 'id'])
def test_the_field_that_names_a_missing_column_is_named(tmp_path, field: str):
    config = config_of(tmp_path, 'text,label\na,x\n', **{field: 'body'})
    said = rf"line 1: no column 'body'; known: 'text', 'label'; set examples\.{field} to one of them$"
    with pytest.raises(InputError, match=said):
        list(read_labelled(config, 'train', []))


def test_an_empty_identifier_is_named(tmp_path):
    with pytest.raises(InputError, match="a.csv: line 2: field 'name' is empty"):
        list(read_labelled(config_of(tmp_path, 'name,text,label\n,a,x\n', id='name'), 'train', []))


def test_no_file_no_examples():
    assert list(read_labelled(ExamplesConfig(problem='classification'), 'dev', [])) == []


@pytest.mark.parametrize(
    'labels, expected',
    [
        (['b', 'a', 'b', None], ('a', 'b')),
        (['10', '9', '0'], ('0', '9', '10')),
        (['1', '-1'], ('-1', '1')),
        (['10', '9', 'x'], ('10', '9', 'x')),
        ([], ()),
    ],
)
def test_label_names_are_sorted(labels, expected):
    assert label_names([LabelledText('f', 'line 1', '0', ('a',), label) for label in labels]) == expected


@pytest.mark.parametrize('first, second', [('1', '1.0'), ('1.', '1'), ('-2.00', '-2'), ('0.5', '0.50'), ('+1', '1')])
def test_one_number_is_not_two_classes(first, second):
    rows = [LabelledText('f', f'line {line}', '0', ('a',), label) for line, label in enumerate((first, second, 'x'))]
    line = f"f: line 1: label '{second}' is the number '{first}' of f: line 0; write both alike"
    with pytest.raises(InputError, match=f'^{re.escape(line)}$'):
        label_names(rows)
    codes = [LabelledText('f', 'line 1', '0', ('a',), label) for label in ('1', '01', '1e0', '1-0')]
    assert len(label_names(codes)) == 4  # These labels are different texts, not spellings of one number.


def test_one_number_in_several_spellings_of_json_is_one_class(tmp_path):
    labels = ('1', '1.0', '"1"', '0', '0.0')
    (tmp_path / 'a.jsonl').write_text(''.join(f'{{"text": "a", "label": {label}}}\n' for label in labels))
    config = ExamplesConfig(problem='classification', train=str(tmp_path / 'a.jsonl'))
    assert label_names(read_labelled(config, 'train', [])) == ('0', '1')


def test_what_a_csv_writes_for_nothing_is_a_text(tmp_path):
    config = config_of(tmp_path, 'text,label\na,NA\nb,null\nc,nan\n')
    assert label_names(read_labelled(config, 'train', [])) == ('NA', 'nan', 'null')


def test_numbers():
    assert numeric_label(LabelledText('f', 'line 1', '0', ('a',), ' 2.50')) == 2.5
    for label in ('x', 'nan', 'inf', ''):
        with pytest.raises(InputError, match='f: line 3: label .* is not a number'):
            numeric_label(LabelledText('f', 'line 3', '0', ('a',), label))
    with pytest.raises(InputError, match="^f: line 3: label '-1e39' is beyond the range of float32, 3.403e[+]38$"):
        numeric_label(LabelledText('f', 'line 3', '0', ('a',), '-1e39'))
