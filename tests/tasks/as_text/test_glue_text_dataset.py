"""Tests of GLUE as text: T5's sources and label words, and the official metrics of generated texts."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.examples.glue import GLUE
from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.glue_text_dataset import (
    FORMS,
    format_number,
    make_glue_text_dataset,
    parse_number,
)
from efficient_attention.tasks.metrics.glue import matthews, spearman
from tests.data.examples.test_glue import HEADERS, table

# task: (the source of a row whose fields are its column names, the words of the labels by T5's appendix D)
EXPECTED = {
    'cola': ('cola sentence: sentence', 'unacceptable acceptable'),
    'sst2': ('sst2 sentence: sentence', 'negative positive'),
    'mrpc': ('mrpc sentence1: #1 String sentence2: #2 String', 'not_equivalent equivalent'),
    'qqp': ('qqp question1: question1 question2: question2', 'not_duplicate duplicate'),
    'stsb': ('stsb sentence1: sentence1 sentence2: sentence2', '0.0 4.8'),
    'mnli': ('mnli hypothesis: sentence2 premise: sentence1', 'entailment neutral contradiction'),
    'qnli': ('qnli question: question sentence: sentence', 'entailment not_entailment'),
    'rte': ('rte sentence1: sentence1 sentence2: sentence2', 'entailment not_entailment'),
    'wnli': ('wnli sentence1: sentence1 sentence2: sentence2', 'not_entailment entailment'),
}


def set_of(path: Path, name: str, content: str, field: str = 'pairs.held_out'):
    path.write_text(content + '\n', encoding='utf-8')
    return make_glue_text_dataset(f'glue:{name}:{path}', field, f'{name}:{path}')


@pytest.mark.parametrize('name', HEADERS)
def test_sources_and_targets(tmp_path: Path, name: str):
    one = set_of(tmp_path / 'dev.tsv', name, table(name, GLUE[name].labels or ('0.000', '4.750')))
    pairs = list(one.read_pairs())
    source, words = EXPECTED[name]
    assert [pair.source for pair in pairs] == [source] * len(pairs)
    assert [pair.target for pair in pairs] == words.split() and f'{tmp_path}/dev.tsv' in pairs[0].where
    scores = one.scores(one.examples, [pair.target for pair in pairs])
    assert scores == {metric: pytest.approx(1.0) for metric in GLUE[name].metrics}


def test_every_task_has_a_form_with_a_word_for_each_label():
    assert set(FORMS) == set(GLUE)
    for name, (texts, words) in FORMS.items():
        assert len(texts) == len(GLUE[name].texts) and len(words) == len(GLUE[name].labels)


def test_what_was_written_is_scored_as_the_task_asks(tmp_path: Path):
    rows = [f'x\t{label}\t\tsaid' for label in (0, 1, 1, 0, 1, 0)]
    cola = set_of(tmp_path / 'dev.tsv', 'cola', '\n'.join(rows))
    texts = ['unacceptable', 'acceptable', 'unacceptable', 'acceptable', 'accept', 'unaccept able']
    expected, predicted = np.array([0, 1, 1, 0, 1, 0]), np.array([0, 1, 0, 1, 0, 0])
    assert cola.scores(cola.examples, texts) == {'matthews': matthews(expected, predicted)}
    rows = ['sentence1\tsentence2\tscore', *(f'a\tb\t{score}' for score in (0.1, 2.4, 5.0, 3.3))]
    stsb = set_of(tmp_path / 'dev.tsv', 'stsb', '\n'.join(rows))
    found = stsb.scores(stsb.examples, ['0.2', '2. 4', 'five', '3.4'])
    assert found['spearman'] == spearman(np.array([0.1, 2.4, 5.0, 3.3]), np.array([0.2, 2.4, -1.0, 3.4]))


def test_subsets_are_scored_apart(tmp_path: Path):
    header = 'index\tsentence1\tsentence2\tgold_label\n'
    for file in ('dev_matched.tsv', 'dev_mismatched.tsv'):
        (tmp_path / file).write_text(header + '0\ta\tb\tneutral\n1\ta\tb\tentailment\n', encoding='utf-8')
    one = make_glue_text_dataset('', 'pairs.held_out', f'mnli:{tmp_path}')  # A folder means its files of the split.
    assert [example.subset for example in one.examples] == ['', '', 'mismatched', 'mismatched']
    found = one.scores(one.examples, ['neutral', 'entailment', 'neutral', 'nothing'])
    assert found == {'accuracy': 1.0, 'accuracy_mismatched': 0.5}


def test_numbers_are_multiples_of_a_fifth():
    assert [format_number(value) for value in (0.0, 0.09, 0.11, 4.75, 5.0)] == ['0.0', '0.0', '0.2', '4.8', '5.0']
    assert [parse_number(text) for text in ('3.8', '3 . 8', 'nan', 'inf', '')] == [3.8, 3.8, -1.0, -1.0, -1.0]


def test_broken_rows_of_official_files_are_noted(tmp_path: Path):
    header = 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate'
    one = set_of(tmp_path / 'train.tsv', 'qqp', f'{header}\n0\t1\t2\ta\tb\t1\n1\t2', 'pairs.train')
    assert len(list(one.read_pairs())) == 1
    assert one.notes[0].startswith('pairs.train: 1 broken rows were left out, the first: ')


@pytest.mark.parametrize(
    'name, content, field, said',
    [
        ('sst2', 'index\tsentence\n0\tgood', 'pairs.test', 'no label or answer, which pairs.test needs to train on'),
        ('sst2', 'sentence\tlabel\ngood\t2', 'pairs.held_out', "line 2: label '2' is not among 0, 1"),
        ('sst2', 'sentence\tlabel\ngood\t', 'pairs.held_out', "line 2: field 'label' is empty"),
    ],
)
def test_labels_that_are_missing_or_unknown_are_named(tmp_path: Path, name: str, content: str, field: str, said: str):
    with pytest.raises(InputError, match=said):
        list(set_of(tmp_path / 'a.tsv', name, content, field).read_pairs())


@pytest.mark.parametrize('text', ['glue:sst3:a.tsv', 'glue:sst2', 'glue:sst2:'])
def test_other_forms_are_refused_by_the_field(text: str):
    with pytest.raises(InputError, match=f"^pairs.train has the set '{text}'; it is glue:<task>:<files>"):
        make_glue_text_dataset(text, 'pairs.train', text.removeprefix('glue:'))


def test_a_digest_follows_the_content_and_the_task(tmp_path: Path):
    one = set_of(tmp_path / 'a.tsv', 'sst2', 'sentence\tlabel\ngood\t1')
    before = one.digest()
    other = make_glue_text_dataset('', 'pairs.held_out', f'cola:{tmp_path}/a.tsv')
    assert before not in (other.digest(), set_of(tmp_path / 'a.tsv', 'sst2', 'sentence\tlabel\nbad\t1').digest())
