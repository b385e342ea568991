"""Tests of the readers of GLUE's files: columns, labels, subsets, and row counts of the real files."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.glue import (
    GLUE,
    glue_label,
    glue_sources,
    glue_subset,
    glue_task,
    glue_texts,
    read_glue,
    submission_id,
)
from efficient_attention.data.examples.labelled_text import LabelledText, read_labelled
from efficient_attention.data.sources import tables
from efficient_attention.data.sources.tfds import TFDSRows
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.glue import METRICS

HEADERS = {  # Headers of the benchmark's training files; CoLA's file has none.
    'cola': '',
    'sst2': 'sentence label',
    'mrpc': 'Quality,#1 ID,#2 ID,#1 String,#2 String',
    'qqp': 'id qid1 qid2 question1 question2 is_duplicate',
    'stsb': 'index genre filename year old_index source1 source2 sentence1 sentence2 score',
    'mnli': 'index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse '
    'sentence2_parse sentence1 sentence2 label1 gold_label',
    'qnli': 'index question sentence label',
    'rte': 'index sentence1 sentence2 label',
    'wnli': 'index sentence1 sentence2 label',
}
SOURCES = Path(__file__).resolve().parents[1] / 'sources'
REAL = Path('data/glue')


def columns_of(name):
    if name == 'cola':
        return ['source', 'label', 'mark', 'sentence']
    header = HEADERS[name]
    return header.split(',') if ',' in header else header.split()


def table(name, labels):
    """Returns the content of a GLUE task's file with a row for each label; other fields hold their column's name."""
    columns, task = columns_of(name), GLUE[name]
    rows = [[label if column == task.label else column for column in columns] for label in labels]
    return '\n'.join('\t'.join(fields) for fields in ([] if name == 'cola' else [columns]) + rows)


@pytest.mark.parametrize('name', HEADERS)
def test_every_task_reads_its_columns(tmp_path, name):
    task = glue_task(name)
    labels = task.labels or ('0.000', '4.750')
    (tmp_path / 'train.tsv').write_text('\ufeff' + table(name, labels), encoding='utf-8')
    rows = list(read_glue(task, str(tmp_path / 'train.tsv'), 'train', []))
    assert [glue_label(task, row) for row in rows] == list(labels)
    assert all(glue_texts(task, row) == task.texts for row in rows)
    assert set(task.metrics) <= set(METRICS)


def test_every_task_is_in_the_table():
    assert set(GLUE) == {*HEADERS, 'ax'}
    with pytest.raises(InputError, match="examples.name is 'sst'; known with examples.format 'glue': cola, sst2"):
        glue_task('sst')


def test_a_test_file_has_a_header_and_no_labels(tmp_path):
    (tmp_path / 'test.tsv').write_text('index\tsentence\n0\tAn "unclosed quote.\n1\tb\n')
    rows = list(read_glue(GLUE['cola'], str(tmp_path / 'test.tsv'), 'test', []))
    assert [glue_texts(GLUE['cola'], row) for row in rows] == [('An "unclosed quote.',), ('b',)]
    assert [glue_label(GLUE['cola'], row) for row in rows] == [None, None]
    assert [submission_id(row, 7) for row in rows] == ['0', '1']


def test_a_folder_stands_for_its_files(tmp_path):
    for name in ('train.tsv', 'dev_matched.tsv', 'dev_mismatched.tsv', 'test_matched.tsv', 'other.tsv'):
        (tmp_path / name).write_text('index\n')
    names = [Path(name).name for name in glue_sources(str(tmp_path), 'dev')]
    assert names == ['dev_matched.tsv', 'dev_mismatched.tsv']
    assert [glue_subset(name) for name in names] == ['', 'mismatched']
    both = f'{tmp_path}/train.tsv,{tmp_path}'
    assert glue_sources(both, 'train') == [f'{tmp_path}/train.tsv']
    (tmp_path / 'empty').mkdir()
    with pytest.raises(InputError, match='empty: the folder has no train.tsv'):
        glue_sources(str(tmp_path / 'empty'), 'train')
    assert glue_sources('', 'train') == []


def test_subsets_by_name():
    assert glue_subset('data/diagnostic/diagnostic.tsv') == 'diagnostic'
    assert glue_subset('tfds:glue/mnli:validation_mismatched') == 'mismatched'
    assert glue_subset('mismatched/test_matched.tsv') == ''


def test_broken_rows_of_qqp_are_left_out_in_training_only(tmp_path):
    content = table('qqp', ['0', '1']) + '\n5\tbroken\n'
    (tmp_path / 'x.tsv').write_text(content)
    faults = []
    assert len(list(read_glue(GLUE['qqp'], str(tmp_path / 'x.tsv'), 'train', faults))) == 2
    assert len(faults) == 1 and 'x.tsv: line 4: 2 fields' in faults[0]
    with pytest.raises(InputError, match='line 4'):
        list(read_glue(GLUE['qqp'], str(tmp_path / 'x.tsv'), 'dev', []))


def test_tfds_rows(monkeypatch):
    sets = {
        'glue/mnli': [{'premise': b'a', 'hypothesis': b'b', 'idx': np.int32(4), 'label': np.int64(2)}],
        'glue/stsb': [{'sentence1': b'a', 'sentence2': b'b', 'idx': 0, 'label': np.float32(2.5)}],
        'glue/rte': [{'sentence1': b'a', 'sentence2': b'b', 'idx': 0, 'label': -1}],
        'glue/sst2': [{'sentence': b'a', 'idx': 0, 'label': 2}],
    }
    monkeypatch.setattr(tables, 'tfds_rows', lambda name, _: TFDSRows(name, {}, sets[name]))
    found = {}
    for name in sets:
        task = GLUE[name.removeprefix('glue/')]
        [row] = read_glue(task, f'tfds:{name}:validation', 'dev', [])
        assert glue_texts(task, row) == ('a', 'b')[: len(task.texts)]
        found[name] = row
    assert (
        glue_label(GLUE['mnli'], found['glue/mnli']) == 'contradiction' and submission_id(found['glue/mnli'], 0) == '4'
    )
    assert glue_label(GLUE['stsb'], found['glue/stsb']) == '2.5'
    assert glue_label(GLUE['rte'], found['glue/rte']) is None
    with pytest.raises(InputError, match='row 0: label 2 is not among 0, 1'):
        glue_label(GLUE['sst2'], found['glue/sst2'])


def read_examples(name: str, split: str, sources: str) -> list[LabelledText]:
    """Returns the examples of a split of a GLUE task."""
    return list(read_labelled(ExamplesConfig(format='glue', name=name, **{split: sources}), split, []))


def test_prepared_sets_by_name(monkeypatch):
    monkeypatch.setenv('TFDS_DATA_DIR', str(SOURCES / 'prepared_tfds' / 'public'))
    assert [len(read_examples('sst2', split, 'tfds:glue/sst2')) for split in ('train', 'dev', 'test')] == [3, 2, 3]
    assert {one.label for one in read_examples('sst2', 'train', 'tfds:glue/sst2')} == {'0', '1'}
    assert {one.label for one in read_examples('sst2', 'test', 'tfds:glue/sst2')} == {None}
    pairs = read_examples('mnli', 'dev', 'tfds:glue/mnli')
    assert {one.subset: len(one.texts) for one in pairs} == {'': 2, 'mismatched': 2}
    assert {one.id: one.label for one in pairs} == {'0': 'entailment', '1': 'neutral', '2': 'contradiction'}
    assert {one.label for one in read_examples('stsb', 'train', 'tfds:glue/stsb')} == {'0.5', '1.5', '2.5'}
    with pytest.raises(
        InputError, match="^tfds:glue/mnli: there is no split 'test'; known: train, validation_matched, "
    ):
        read_examples('mnli', 'test', 'tfds:glue/mnli')
    with pytest.raises(InputError, match='^tfds:glue/rte: not prepared .* make tfds NAME=glue/rte$'):
        read_examples('rte', 'train', 'tfds:glue/rte')


def test_files_of_hugging_face(tmp_path):
    rows = {'premise': ['a', 'b'], 'hypothesis': ['c', 'd'], 'label': [2, -1], 'idx': [5, 6]}
    path = tmp_path / 'validation_mismatched-00000-of-00001.parquet'
    parquet.write_table(pyarrow.table(rows), path)
    first, second = read_examples('mnli', 'test', str(path))
    assert (first.texts, first.label, first.id, first.subset) == (('a', 'c'), 'contradiction', '5', 'mismatched')
    assert second.label is None
    with pytest.raises(InputError, match=r"parquet: row 1: field 'gold_label' is empty"):
        read_examples('mnli', 'dev', str(path))
    assert glue_subset('mnli/validation_mismatched/data-00000-of-00001.arrow') == 'mismatched'


@pytest.mark.real
@pytest.mark.parametrize(
    'name, file, split, count',
    [
        ('cola', 'CoLA/train.tsv', 'train', 8551),
        ('cola', 'CoLA/dev.tsv', 'dev', 1043),
        ('cola', 'CoLA/test.tsv', 'test', 1063),
        ('sst2', 'SST-2/train.tsv', 'train', 67349),
        ('sst2', 'SST-2/dev.tsv', 'dev', 872),
        ('sst2', 'SST-2/test.tsv', 'test', 1821),
        ('mrpc', 'MRPC/train.rebuilt_3668.tsv', 'train', 3668),
        ('mrpc', 'MRPC/dev.tsv', 'dev', 408),
        ('mrpc', 'MRPC/test.tsv', 'test', 1725),
        ('stsb', 'STS-B/train.tsv', 'train', 5749),
        ('stsb', 'STS-B/dev.tsv', 'dev', 1500),
        ('stsb', 'STS-B/test.tsv', 'test', 1379),
        ('qnli', 'QNLI/dev.tsv', 'dev', 5463),
        ('rte', 'RTE/train.tsv', 'train', 2490),
        ('rte', 'RTE/dev.tsv', 'dev', 277),
        ('rte', 'RTE/test.tsv', 'test', 3000),
        ('wnli', 'WNLI/train.tsv', 'train', 635),
        ('wnli', 'WNLI/dev.tsv', 'dev', 71),
        ('wnli', 'WNLI/test.tsv', 'test', 146),
        ('ax', 'diagnostic/diagnostic.tsv', 'test', 1104),
    ],
)
def test_the_real_files_have_their_official_counts(name, file, split, count):
    if not (REAL / file).exists():
        pytest.skip(f'no {REAL / file}')
    task = glue_task(name)
    rows = list(read_glue(task, str(REAL / file), split, []))
    assert len(rows) == count
    assert all(text.strip() for row in rows for text in glue_texts(task, row))
    labels = {glue_label(task, row) for row in rows}
    if split == 'test':
        assert labels == {None}
    elif task.labels:
        assert labels == set(task.labels)
    else:
        assert 0 <= min(map(float, labels)) and max(map(float, labels)) == 5


@pytest.mark.parametrize(
    'name, subset',
    [
        ('tfds:glue/mnli_mismatched:validation', 'mismatched'),
        ('tfds:glue/mnli_matched:validation', ''),
        ('tfds:glue/mnli:validation_mismatched', 'mismatched'),
        ('tfds:glue/ax:test', 'diagnostic'),
        ('tfds:glue/ax:2.0.0:test', 'diagnostic'),
    ],
)
def test_subsets_of_mnli_by_the_names_that_tfds_has(name: str, subset: str):
    assert glue_subset(name) == subset
