"""Tests of predictions for the run's files or other files, with metrics if the rows have labels."""

import dataclasses
import json
from pathlib import Path

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.errors import InputError, RunError
from efficient_attention.inference.pipeline import TextPipeline, pipeline
from efficient_attention.inference.predict_files import predict_files
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.tasks.problems import prediction_files
from tests.inference.tiny_checkpoint import LABELS, random_text, write_checkpoint


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('checkpoint'), 'classification')


def write_rows(path: Path, *, labelled: bool) -> str:
    rows = [{'review': random_text(4, seed), 'number': f'r{seed}'} for seed in range(5)]
    labels = LABELS['classification']
    lines = [json.dumps(row | ({'label': labels[place % 3]} if labelled else {})) for place, row in enumerate(rows)]
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return str(path)


def test_one_prediction_a_row(checkpoint: Path, tmp_path: Path):
    files = write_rows(tmp_path / 'rows.jsonl', labelled=False)
    found = predict_files(checkpoint, tmp_path / 'out', test=files, text='review', id='number')
    [path] = found['files']
    rows = [json.loads(line) for line in Path(path).read_text(encoding='utf-8').splitlines()]
    assert path == str(tmp_path / 'out' / 'predictions.jsonl')
    assert [row['id'] for row in rows] == ['r0', 'r1', 'r2', 'r3', 'r4']
    assert [row['text'] for row in rows] == [random_text(4, seed) for seed in range(5)]
    assert all(row['label'] in LABELS['classification'] for row in rows) and found['metrics'] == {}


def test_predictions_that_cannot_be_written_leave_nothing(checkpoint: Path, tmp_path: Path, monkeypatch):
    files = write_rows(tmp_path / 'rows.jsonl', labelled=False)

    def half(lines: list[str], path: Path) -> None:
        path.write_text(lines[0][:5])
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(prediction_files, 'write_lines', half)
    with pytest.raises(RunError, match=f'^{tmp_path}/out: cannot be written .No space left on device.$'):
        predict_files(checkpoint, tmp_path / 'out', test=files, text='review')
    assert [path.name for path in tmp_path.iterdir()] == ['rows.jsonl']


def test_dev_files_are_scored(checkpoint: Path, tmp_path: Path):
    files = write_rows(tmp_path / 'rows.jsonl', labelled=True)
    found = predict_files(checkpoint, tmp_path / 'out', split='dev', dev=files, text='review')
    rows = [json.loads(line) for line in Path(found['files'][0]).read_text(encoding='utf-8').splitlines()]
    right = sum(row['label'] == LABELS['classification'][place % 3] for place, row in enumerate(rows))
    assert found['metrics']['accuracy'] == pytest.approx(right / 5)


def test_test_files_are_scored_where_all_rows_have_labels(checkpoint: Path, tmp_path: Path):
    files = write_rows(tmp_path / 'rows.jsonl', labelled=True)
    options = {'dev': files, 'test': files, 'text': 'review'}
    scores = [
        predict_files(checkpoint, tmp_path / split, split=split, **options)['metrics'] for split in ('dev', 'test')
    ]
    assert scores[0] == scores[1] and set(scores[0]) == {'accuracy', 'f1'}


def test_a_partly_labelled_test_file_is_not_scored_and_it_is_said(checkpoint: Path, tmp_path: Path):
    files = write_rows(tmp_path / 'rows.jsonl', labelled=True)
    rows = [json.loads(line) for line in Path(files).read_text(encoding='utf-8').splitlines()]
    del rows[1]['label']
    Path(files).write_text('\n'.join(map(json.dumps, rows)), encoding='utf-8')
    found = predict_files(checkpoint, tmp_path / 'out', test=files, text='review')
    assert found['metrics'] == {}
    assert found['notes'] == ['4 of 5 examples of examples.test have labels; scores need labels for all']


def test_labels_without_names(tmp_path: Path):
    """Labels are numbers unless the options, the training files or a GLUE task give names."""
    path = write_checkpoint(tmp_path / 'made', 'classification', is_named=False)
    files, names = write_rows(tmp_path / 'rows.jsonl', labelled=True), LABELS['classification']
    other, options = write_rows(tmp_path / 'other.jsonl', labelled=False), {'text': 'review', 'id': 'number'}
    found = {}
    for number, fields in enumerate(({}, {'labels': names}, {'train': files})):
        [out] = predict_files(path, tmp_path / f'{number}', test=other, **options, **fields)['files']
        found[number] = [json.loads(line)['label'] for line in Path(out).read_text(encoding='utf-8').splitlines()]
    assert found[0] == [f'LABEL_{names.index(label)}' for label in found[1]] and found[1] == found[2]
    scores = predict_files(path, tmp_path / 'dev', split='dev', dev=files, labels=names, **options)['metrics']
    assert 'accuracy' in scores
    glue = ExamplesConfig(problem='classification', format='glue', name='mnli')
    task = pipeline('text-classification', path).make_task(glue)
    assert task.labels == ('entailment', 'neutral', 'contradiction')


def test_tags_without_names(tmp_path: Path):
    path = write_checkpoint(tmp_path / 'made', 'token_classification', is_named=False)
    (tmp_path / 'rows.conll').write_text('the\ndog\n\na\n')
    found = predict_files(path, tmp_path / 'out', test=str(tmp_path / 'rows.conll'), format='conll')
    lines = Path(found['files'][0]).read_text(encoding='utf-8').split()
    assert sum(line.startswith('LABEL_') for line in lines) == 3


def test_files_must_be_named(checkpoint: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r'names no files for examples\.test; name them \(--files\)$'):
        predict_files(checkpoint, tmp_path / 'out')
    with pytest.raises(InputError, match=r"^split is 'train'; known: dev, test$"):
        predict_files(checkpoint, tmp_path / 'out', split='train')


def test_earlier_predictions_are_kept(checkpoint: Path, tmp_path: Path):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'predictions.jsonl').write_text('earlier')
    with pytest.raises(InputError, match=r'out: there is something already; name another folder \(--output\)$'):
        predict_files(checkpoint, tmp_path / 'out', test=write_rows(tmp_path / 'rows.jsonl', labelled=False))


def test_a_checkpoint_without_a_head_predicts_nothing(tmp_path: Path):
    path = write_checkpoint(tmp_path, 'fill_mask')
    with pytest.raises(InputError, match=r"was trained for 'fill_mask'; it has no head to predict with$"):
        predict_files(path, tmp_path / 'out')


def test_thresholds_chosen_on_dev_are_used(tmp_path: Path):
    path = write_checkpoint(tmp_path, 'question_answering')
    question = {'question': 'the dog', 'context': random_text(9), 'id': 'q'}
    pretrained = open_pretrained(path)
    encoder = text_encoder(pretrained.tokenizer)
    examples = ExamplesConfig(
        problem='question_answering',
        format='squad',
        overlong='windows',
        has_no_answer=True,
        question_length=8,
        stride=6,
    )
    answers = {}
    for threshold in (-1e6, 1e6):  # The first answers never, the second always.
        chosen = {'no_answer_threshold': threshold, 'f1': 0.5}
        own = dataclasses.replace(pretrained, thresholds=lambda chosen=chosen: chosen)
        run = TextPipeline(own, encoder, examples, length=24, batch_size=4)
        answers[threshold] = run(question)['answer']
    assert answers[-1e6] == '' != answers[1e6]
    # An exported and reopened checkpoint gives the same answers.
    for threshold in (-1e6, 1e6):
        kept = {'has_no_answer': True, 'question_length': 8, 'stride': 6}
        chosen = {'no_answer_threshold': threshold}
        own = dataclasses.replace(pretrained, examples=kept, thresholds=lambda chosen=chosen: chosen)
        save_pretrained(tmp_path / f'out{threshold}', own)
        again = open_pretrained(tmp_path / f'out{threshold}')
        assert (again.examples, again.thresholds()) == (kept, chosen)
        assert pipeline('question-answering', tmp_path / f'out{threshold}')(question)['answer'] == answers[threshold]
