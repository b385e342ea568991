"""Tests of pipelines: the format of answers, independence from batches and padding, and long texts."""

import functools
import json
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import efficient_attention as ea
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.errors import InputError
from efficient_attention.inference.pipeline import make_pipeline, trained_examples_config
from efficient_attention.inference.predict_files import predict_files
from efficient_attention.interop.compact_export import save_compact
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_pretrained
from tests.inference.tiny_checkpoint import LABELS, random_text, write_checkpoint


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    folder, made = tmp_path_factory.mktemp('checkpoints'), {}

    def of(problem: str) -> Path:
        if problem not in made:
            made[problem] = write_checkpoint(folder / problem, problem)
        return made[problem]

    return of


@pytest.fixture(scope='module')
def served(checkpoint):
    """Returns a function that makes each task's pipeline once, with batches of two, since each compiles programs."""

    @functools.cache
    def of(task: str, problem: str = '', **options: Any) -> Any:
        short = SHORT if task == 'question-answering' else {}
        return ea.pipeline(task, checkpoint(problem or PROBLEM[task]), batch_size=2, **short, **options)

    return of


INPUTS = {
    'question-answering': [
        {'question': 'the dog ?', 'context': random_text(9, 1)},
        {'question': 'a red house near the river', 'context': random_text(60, 2)},
    ],
    'text-classification': [random_text(5, 3), random_text(70, 4), random_text(1, 5)],
    'token-classification': [random_text(4, 6), random_text(50, 7)],
    'multiple-choice': [
        {'context': random_text(5, 8), 'choices': ['the dog', 'the old king sleeps', 'a tree']},
        {'context': random_text(3, 9), 'choices': ['a', 'red']},
    ],
    'fill-mask': ['the [MASK] sleeps', 'a [MASK] near the [MASK]'],
    'feature-extraction': [random_text(3, 1), random_text(80, 2)],
}
SHORT = {'question_length': 8, 'stride': 6}  # lengths in tokens; a row has 24
PROBLEM = {
    'question-answering': 'question_answering',
    'text-classification': 'classification',
    'token-classification': 'token_classification',
    'multiple-choice': 'multiple_choice',
    'fill-mask': 'fill_mask',
    'feature-extraction': 'fill_mask',
}


@pytest.mark.parametrize('task', INPUTS)
def test_a_list_gives_what_its_members_give(served, task: str):
    run = served(task)
    together, alone = run(INPUTS[task]), [run(value) for value in INPUTS[task]]
    assert len(together) == len(INPUTS[task])
    if task == 'feature-extraction':
        for left, right in zip(together, alone, strict=True):
            np.testing.assert_allclose(left, right, atol=2e-5)
        return
    assert round_all(together) == round_all(alone)
    json.dumps(together)  # The answers are plain Python objects.


def round_all(value):
    if isinstance(value, dict):
        return {name: round_all(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_all(part) for part in value]
    return pytest.approx(value, abs=2e-5) if isinstance(value, float) else value


def test_answers_are_parts_of_the_context(served):
    run = served('question-answering')
    for value in INPUTS['question-answering']:
        answer = run(value)
        assert value['context'][answer['start'] : answer['end']] == answer['answer'] != ''
        assert 0 < answer['score'] <= 1


def test_the_whole_of_a_long_context_counts(served):
    """An answer may be anywhere in a context that is much longer than a row."""
    run = served('question-answering')
    starts = {run({'question': 'a dog', 'context': random_text(120, seed)})['start'] for seed in range(8)}
    assert max(starts) > 150  # 150 characters are more than a row's 20 words.


def test_classes_have_their_names_and_probabilities(served):
    run = served('text-classification')
    for answer in run(INPUTS['text-classification']):
        assert set(answer['scores']) == set(LABELS['classification'])
        assert sum(answer['scores'].values()) == pytest.approx(1, abs=1e-5)
        assert answer['label'] == max(answer['scores'], key=answer['scores'].get)


def test_a_pair_of_texts_is_another_input(served):
    run = served('text-classification')
    pair, text = run(('the dog', 'a tree')), run('the dog a tree')
    assert pair['scores'] != text['scores']
    assert round_all(run({'text': 'the dog', 'text_pair': 'a tree'})) == round_all(pair)


def test_a_regression_gives_a_number(served):
    answer = served('text-classification', 'regression')('the old king')
    assert isinstance(answer['score'], float)


def of_type(source: Path, folder: Path, problem_type: str) -> Path:
    """Copies a checkpoint, sets `problem_type` and drops our checksums, as if another library had written it."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns('seal-*'))
    values = json.loads((folder / 'config.json').read_text()) | {'problem_type': problem_type}
    (folder / 'config.json').write_text(json.dumps(values))
    return folder


def test_several_numbers_and_several_labels_are_no_softmax(checkpoint, served, tmp_path: Path):
    source, text = checkpoint('classification'), INPUTS['text-classification'][0]
    [probabilities] = served('text-classification')([text])
    raw = ea.pipeline('text-classification', of_type(source, tmp_path / 'raw', 'regression'))(text)
    assert set(raw) == {'scores'} and tuple(raw['scores']) == LABELS['classification']
    logits = np.array(list(raw['scores'].values()))
    np.testing.assert_allclose(scipy.special.softmax(logits), list(probabilities['scores'].values()), atol=1e-6)
    labels = of_type(source, tmp_path / 'labels', 'multi_label_classification')
    found = ea.pipeline('text-classification', labels)(text)
    np.testing.assert_allclose(list(found['scores'].values()), scipy.special.expit(logits), atol=1e-6)
    assert found['labels'] == [name for name, logit in raw['scores'].items() if logit >= 0]
    save_pretrained(tmp_path / 'again', open_pretrained(labels))
    save_compact(tmp_path / 'small', open_pretrained(labels))
    for folder in ('again', 'small'):
        assert round_all(ea.pipeline('text-classification', tmp_path / folder)(text)) == round_all(found)


def test_rows_with_several_labels_are_predicted_and_not_scored(checkpoint, tmp_path: Path):
    model = of_type(checkpoint('classification'), tmp_path / 'in', 'multi_label_classification')
    (tmp_path / 'rows.csv').write_text('id,text\n7,the dog\n')
    [file] = predict_files(model, tmp_path / 'out', test=str(tmp_path / 'rows.csv'))['files']
    [row] = map(json.loads, Path(file).read_text().splitlines())
    assert row['id'] == '0' and round_all(row['scores']) == round_all(
        ea.pipeline('text-classification', model)('the dog')['scores']
    )
    (tmp_path / 'rows.csv').write_text('label,text\ngood,the dog\n')
    with pytest.raises(
        InputError, match=r"rows.csv: line 2: field 'label' is 'good'; .* are not scored: leave the col"
    ):
        predict_files(model, tmp_path / 'more', test=str(tmp_path / 'rows.csv'))


def test_every_word_of_a_long_text_has_a_label(served):
    text = random_text(50, 7)
    words = served('token-classification')(text)
    assert all(text[word['start'] : word['end']] == word['word'] for word in words)
    assert [word['word'] for word in words] == text.split()


def test_words_may_be_given(served):
    words = tuple(random_text(6, 8).split())
    run = served('token-classification')
    assert [found['word'] for found in run(words)] == list(words)
    assert [round_all(found) for found in run([words[:2], words])] == [round_all(run(words[:2])), round_all(run(words))]


def test_vectors(served):
    texts = INPUTS['feature-extraction']
    short, long = served('feature-extraction')(texts)
    assert short.shape == (5, 16) and len(long) >= 82 and long.dtype == np.float32
    mean = served('feature-extraction', pooling='mean')(texts[0])
    np.testing.assert_allclose(mean, short.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(served('feature-extraction', pooling='first')(texts[0]), short[0], atol=1e-6)


def test_masks_are_filled_with_the_number_of_tokens_asked_for(served):
    masks = served('fill-mask', top=2)('a [MASK] near the [MASK]')
    assert [len(candidates) for candidates in masks] == [2, 2]
    assert masks[0][0]['score'] >= masks[0][1]['score']


@pytest.mark.parametrize('task', INPUTS)
def test_a_bad_item_of_a_list_is_named_by_its_number(served, task: str):
    run = served(task)
    good = INPUTS[task]
    with pytest.raises(InputError, match=f'^item {len(good)} of {len(good) + 1}: '):
        run([*good[:-1], 5, good[-1]])
    with pytest.raises(InputError) as raised:
        run(5)
    assert not str(raised.value).startswith('item')


def test_a_text_that_is_too_long_is_named_by_its_number(served):
    run = served('text-classification', overlong='error')
    with pytest.raises(InputError, match="^item 2 of 3: input: field 'text' has 70 tokens"):
        run([random_text(5, 3), random_text(70, 4), random_text(80, 4)])


@pytest.mark.parametrize('problem', ['classification', 'token_classification'])
def test_outputs_without_names_are_numbered(tmp_path: Path, problem: str):
    [task] = [task for task, own in PROBLEM.items() if own == problem]
    path, text = write_checkpoint(tmp_path, problem, is_named=False), random_text(9, 3)
    numbered = ea.pipeline(task, path)(text)
    named = ea.pipeline(task, path, labels=LABELS[problem])(text)
    found, expected = ([one['label'] for one in own] for own in (listed(numbered), listed(named)))
    assert found == [f'LABEL_{LABELS[problem].index(label)}' for label in expected]
    with pytest.raises(InputError, match=r'^head\.outputs is 3; the examples have 2 \(a, b\)$'):
        ea.pipeline(task, path, labels=('a', 'b'))(text)


def listed(answer) -> list:
    return answer if isinstance(answer, list) else [answer]


def test_what_is_cut_or_left_out_is_said(served):
    text = random_text(70, 4)
    run = served('text-classification', overlong='truncate')
    message = r'^input: 1 of 2 rows have more than data\.length 24 tokens and were cut$'
    with pytest.warns(UserWarning, match=message) as caught:
        cut, _ = run([text, 'the dog'])
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=r'1 of 1 rows .* were cut$') as caught:
        assert round_all(run(text)) == round_all(cut)
    assert [warning.filename for warning in caught] == [__file__]
    served('text-classification')(text)  # Windows cover the whole text, so nothing warns.


def test_a_question_that_is_cut_is_said(served):
    run = served('question-answering')
    message = r'^1 of 2 questions have more than examples\.question_length 8 tokens and were cut, the first: the que'
    with pytest.warns(UserWarning, match=message):
        run([{'question': random_text(words, 2), 'context': random_text(40, 3)} for words in (8, 9)])


def test_words_that_a_vocabulary_of_words_lacks_are_said(served, monkeypatch):
    run = served('text-classification')
    run('the purple dog')  # Word pieces cover unknown words, so nothing warns.
    monkeypatch.setattr(run, 'encoder', text_encoder(Path('fixed:listops')))
    run(['[MAX 1 2 ]', '( [MIN 3 4 ] )'])
    with pytest.warns(UserWarning, match=r'^input: 2 words are not among the 20 of the tokenizer$'):
        run(['[MAX 1 2 ]', '[MAX one 2 ] ]]'])


@pytest.mark.parametrize(
    'task, problem, options, message',
    [
        ('poetry', 'classification', {}, r"^pipeline 'poetry' is unknown; known: fill-mask, "),
        (
            'text-clasification',
            'classification',
            {},
            r"^pipeline 'text-clasification' is unknown; did you mean text-classification\?$",
        ),
        (
            'fill-mask',
            'classification',
            {},
            r"holds a model for 'classification'; filling masks needs one that was pretrained",
        ),
        ('question-answering', 'classification', {}, r"was trained for 'classification'; question-answering needs"),
        ('text-classification', 'classification', {'length': 99}, r'^length is 99; the model has 24 positions$'),
        ('text-classification', 'classification', {'texts': 1}, r'^unknown option among texts; known: problem, '),
        ('feature-extraction', 'fill_mask', {'pooling': 'max'}, r"^pooling is 'max'; known: none, first, mean$"),
    ],
)
def test_what_cannot_be_served_is_named(checkpoint, task: str, problem: str, options: dict, message: str):
    with pytest.raises(InputError, match=message):
        ea.pipeline(task, checkpoint(problem), **options)


@pytest.mark.parametrize('value', ['', 3, ('a', ''), {'context': 'a'}, None])
def test_inputs_of_another_form_are_named(served, value):
    with pytest.raises(InputError):
        served('text-classification')(value)
    with pytest.raises(InputError):
        served('question-answering')(value)


def test_the_options_of_a_long_range_run_with_two_towers():
    """A pipeline reads the user's texts, so it ignores the cache, data set and windows of the training run."""
    rows = 'passages:rows=9:length=100:source=stdlib'
    trained = ExamplesConfig('classification', 'arena', train=rows, cache='elsewhere', towers=True)
    model = types.SimpleNamespace(global_tokens=0)
    run = types.SimpleNamespace(examples=trained)
    found = trained_examples_config(
        types.SimpleNamespace(model=model, examples={}, run=run, problem='classification', labels=('0', '1')), {}
    )
    assert (found.format, found.cache, found.train, found.overlong) == ('table', 'cache', '', 'truncate')
    assert found.towers and found.labels == ('0', '1') and found.text_pair == 'text_pair'


@pytest.mark.parametrize(
    ('train', 'is_pair'),
    [
        ({'train': 'rows.csv'}, False),
        ({'train': 'rows.csv', 'text_pair': 'other'}, True),
        ({'format': 'arena', 'train': 'listops:rows=9:length=4-9'}, False),
        ({'format': 'arena', 'train': 'passages:rows=9:length=9:source=stdlib'}, True),
    ],
)
def test_a_run_knows_whether_it_reads_one_text_or_two(checkpoint, train: dict[str, str], is_pair: bool):
    trained = ExamplesConfig('classification', labels=LABELS['classification'], **train)
    pretrained = open_pretrained(checkpoint('classification'))
    run = types.SimpleNamespace(examples=trained)
    own = types.SimpleNamespace(**vars(pretrained) | {'run': run})
    answer = make_pipeline('text-classification', Path('runs/x'), own, {}, batch_size=2, length=0)
    one, two = ('the dog', ('the dog', 'a tree')) if not is_pair else (('the dog', 'a tree'), 'the dog')
    assert set(answer(one)['scores']) == set(LABELS['classification'])
    with pytest.raises(InputError, match=r'^an input has . texts; this task is about .$'):
        answer(two)
