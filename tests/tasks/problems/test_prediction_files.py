"""Tests of prediction files: submissions in the format of GLUE's server, and JSON lines."""

import json

import pytest

from efficient_attention.data.examples.labelled_text import LabelledText
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.prediction_files import (
    submission_file_name,
    text_fields,
    write_glue_submissions,
    write_lines,
    write_prediction_json_lines,
)


@pytest.mark.parametrize(
    'title, subset, name',
    [
        ('CoLA', '', 'CoLA.tsv'),
        ('STS-B', '', 'STS-B.tsv'),
        ('MNLI', '', 'MNLI-m.tsv'),
        ('MNLI', 'mismatched', 'MNLI-mm.tsv'),
        ('MNLI', 'diagnostic', 'AX.tsv'),
        ('AX', 'diagnostic', 'AX.tsv'),
        ('AX', '', 'AX.tsv'),
    ],
)
def test_names(title, subset, name):
    assert submission_file_name(title, subset) == name


def test_each_subset_has_a_file(tmp_path):
    examples = [
        LabelledText('f', 'line 2', id, ('a',), subset=subset)
        for id, subset in [('0', ''), ('1', ''), ('0', 'mismatched')]
    ]
    paths = write_glue_submissions('MNLI', examples, ['neutral', 'entailment', 'contradiction'], tmp_path / 'new')
    assert [path.name for path in paths] == ['MNLI-m.tsv', 'MNLI-mm.tsv']
    assert paths[0].read_text() == 'index\tprediction\n0\tneutral\n1\tentailment\n'
    assert paths[1].read_text() == 'index\tprediction\n0\tcontradiction\n'


def test_a_submission_lacks_no_row(tmp_path):
    with pytest.raises(InputError, match="f: line 2: no prediction .*'skip'"):
        write_glue_submissions('RTE', [LabelledText('f', 'line 2', '0', ('a',))], [None], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_json_lines(tmp_path):
    rows = [{'id': 'ü', 'label': 'x'}, {'id': '1', 'label': 2.5}]
    path = write_prediction_json_lines(rows, 'test', tmp_path)
    assert path.name == 'predictions.jsonl' and 'ü' in path.read_text(encoding='utf-8')
    assert [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()] == rows
    assert write_prediction_json_lines([], 'dev', tmp_path).name == 'dev_predictions.jsonl'
    assert write_lines([], tmp_path / 'a' / 'b').read_text() == ''


def test_the_texts_of_an_example_are_fields():
    assert text_fields(LabelledText('', '', '1', ('a', 'b'))) == {'text': 'a', 'text_pair': 'b'}
    assert text_fields(LabelledText('', '', '1', ())) == {}
