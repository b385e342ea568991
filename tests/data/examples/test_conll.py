"""Tests of the readers of tagged sentences in columns, CoNLL-U and JSON lists, and of row counts of real files."""

import json
from pathlib import Path

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.conll import read_sentences
from efficient_attention.errors import InputError

CONLLU = """# text = a don't
1\ta\ta\tDET\tDT\t_\t3\tdet\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t0\troot\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# no blank line at the end
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
"""


def read(path, content, split='train', **options):
    path.write_bytes(content.encode())
    config = ExamplesConfig(problem='token_classification', **{'format': 'conll', split: str(path), **options})
    return [(one.words, one.tags, one.lines) for one in read_sentences(config, split)]


@pytest.mark.parametrize('ends', ['\n', '\r\n'])
def test_columns_by_tabs_or_spaces(tmp_path, ends):
    tabs = '\ufeffa b\tX\n#c\tY\n\t\n\n-DOCSTART-\tO\n\nd\tX\n'.replace('\n', ends)
    assert read(tmp_path / 'a.conll', tabs) == [(('a b', '#c'), ('X', 'Y'), (1, 2)), (('d',), ('X',), (7,))]
    spaces = '-DOCSTART- -X- O O\n\nEU  NNP I-NP B-ORG\n, , O O\n'.replace('\n', ends)
    assert read(tmp_path / 'a.txt', spaces) == [(('EU', ','), ('B-ORG', 'O'), (3, 4))]


def test_columns_by_number(tmp_path):
    content = '1 EU NNP B-ORG\n2 , , O\n'
    assert read(tmp_path / 'a', content, text='2', label='3')[0][:2] == (('EU', ','), ('NNP', ','))
    assert read(tmp_path / 'a', content, text='2', label='-1')[0][1] == ('B-ORG', 'O')
    with pytest.raises(
        InputError, match="examples.text is 'word'; for such a file it must be 'text' or a number from 1"
    ):
        read(tmp_path / 'a', content, text='word')


def test_conllu_words(tmp_path):
    assert read(tmp_path / 'a.conllu', CONLLU) == [
        (('a', 'do', "n't"), ('DET', 'AUX', 'PART'), (2, 4, 5)),
        (('#',), ('SYM',), (9,)),
    ]
    assert read(tmp_path / 'a.conllu', CONLLU, label='xpos')[0][1] == ('DT', 'VB', 'RB')
    with pytest.raises(InputError, match="examples.label is 'pos'; for such a file it must be id, form"):
        read(tmp_path / 'a.conllu', CONLLU, label='pos')


def test_spaces_around_a_tag_make_no_other_class(tmp_path):
    assert read(tmp_path / 'a.conll', 'a\tX\nb\tX \n')[0][1] == ('X', 'X')
    content = json.dumps({'words': ['a', 'b'], 'tags': ['X ', 'X']})
    assert read(tmp_path / 'a.jsonl', content, format='table', text='words', label='tags')[0][1] == ('X', 'X')
    with pytest.raises(InputError, match='a.conll: line 2: column 2 is empty'):
        read(tmp_path / 'a.conll', 'a\tX\nb\t \n')


def test_lists_in_json_lines(tmp_path):
    rows = [{'words': ['a', 'b'], 'tags': ['X', 'Y']}]
    content = '\n'.join(map(json.dumps, rows))
    options = {'format': 'table', 'text': 'words', 'label': 'tags'}
    assert read(tmp_path / 'a.jsonl', content, **options) == [(('a', 'b'), ('X', 'Y'), (1, 1))]
    without = json.dumps({'words': ['a']})
    assert read(tmp_path / 'a.jsonl', without, 'test', **options) == [(('a',), None, (1,))]


@pytest.mark.parametrize(
    'row, fault',
    [
        ({'words': ['a'], 'tags': ['X', 'Y']}, "line 1: 1 words in 'words' and 2 tags in 'tags'"),
        ({'words': 'a b', 'tags': ['X', 'Y']}, "line 1: field 'words' is not a list of texts"),
        ({'words': [], 'tags': []}, "line 1: field 'words' is not a list of texts"),
        ({'words': ['a', ' '], 'tags': ['X', 'Y']}, "line 1: field 'words' is not a list of texts"),
        ({'words': ['a']}, "line 1: no column 'tags'; known: 'words'; set examples.label to one of them"),
    ],
)
def test_bad_lists_are_named(tmp_path, row, fault):
    with pytest.raises(InputError, match=f'a.jsonl: {fault}'):
        read(tmp_path / 'a.jsonl', json.dumps(row), format='table', text='words', label='tags')


def test_a_test_file_may_have_no_tags(tmp_path):
    assert read(tmp_path / 'a', 'x\ny\n', 'test') == [(('x', 'y'), None, (1, 2))]
    assert read(tmp_path / 'a', 'x A\n', 'test') == [(('x',), ('A',), (1,))]
    assert read(tmp_path / 'a', 'x A\n', 'test', text='1', label='3') == [(('x',), None, (1,))]
    with pytest.raises(InputError, match='a: line 1: one column, which cannot be both word and tag'):
        read(tmp_path / 'a', 'x\ny\n', 'dev')


@pytest.mark.parametrize(
    'name, content, fault',
    [
        ('a', 'x A\ny\n', 'line 2: 1 columns where the lines before have 2'),
        ('a', 'x\tA\n\t B\n', 'line 2: column 1 is empty'),
        ('a', '\n\nx\t\n', 'line 3: column 2 is empty'),
        ('a.conllu', '1\ta\n', 'line 1: 2 columns; CoNLL-U has 10'),
    ],
)
def test_a_fault_is_named_by_file_and_line(tmp_path, name, content, fault):
    with pytest.raises(InputError) as caught:
        read(tmp_path / name, content)
    assert str(caught.value) == f'{tmp_path / name}: {fault}'


def test_a_column_that_is_not_there_is_named(tmp_path):
    for column in ('4', '-3'):
        with pytest.raises(InputError, match=f'a: line 1: 2 columns; examples.label is column {column}$'):
            read(tmp_path / 'a', 'x A\n', label=column)


def test_no_file_no_sentences():
    assert list(read_sentences(ExamplesConfig(problem='token_classification', format='conll'), 'dev')) == []


@pytest.mark.real
@pytest.mark.parametrize(
    'path, sentences, words',
    [
        ('wnut17/wnut17train.conll', 3394, 62730),
        ('wnut17/emerging.dev.conll', 1009, 15733),
        ('wnut17/emerging.test.annotated', 1287, 23394),
        ('ud_english_ewt/en_ewt-ud-train.rebuilt.conllu', 12544, 204577),
        ('ud_english_ewt/en_ewt-ud-dev.conllu', 2001, 25147),
        ('ud_english_ewt/en_ewt-ud-test.conllu', 2077, 25094),
    ],
)
def test_the_real_files_have_their_official_counts(path, sentences, words):
    file = Path('data') / path
    if not file.exists():
        pytest.skip(f'no {file}')
    config = ExamplesConfig(problem='token_classification', format='conll', dev=str(file))
    found = list(read_sentences(config, 'dev'))
    assert (len(found), sum(len(one.words) for one in found)) == (sentences, words)
