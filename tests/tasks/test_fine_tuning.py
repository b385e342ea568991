"""Tests of a fine-tuning run on a tiny table: it learns, resumes and stops early, and batch sizes change no result."""

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jax.extend.backend import get_backend

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate import make_evaluation
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.restore import abstract_params
from efficient_attention.models.flops import encoder_flops
from efficient_attention.models.sharding import make_mesh
from efficient_attention.tasks.fine_tuning import (
    check_global_token_count,
    check_head,
    files_digest,
    globs_and_names_of_split,
)
from efficient_attention.tasks.registry import make_task
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from efficient_attention.training.startup_notes import batch_note
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import read_metrics
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.tasks.test_one_step import fine_tuning
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.tiny_fine_tuning import ROWS, tiny_config, tiny_values, write_files
from tests.training.tiny_run import drawn_workdir

pytestmark = pytest.mark.usefixtures('shared_programs')
# Evaluates every 30 steps and saves every 40. The highest loss counts as the best, so the first evaluation is best.
WORST_IS_BEST = {
    'eval.every_steps': 30,
    'checkpoint.best_metric': 'fine_tuning_loss',
    'checkpoint.best_mode': 'max',
}
# No later evaluation is better than the first.
ENDS_EARLY = WORST_IS_BEST | {'train.early_stop': 2, 'eval.every_steps': 2}


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('tuned')
    train(tiny_config(folder, **WORST_IS_BEST), folder / 'workdir')
    return folder / 'workdir'


def evaluations(workdir: Path) -> list[dict]:
    """Returns the evaluation lines of a run's metrics log."""
    return [line for line in read_metrics(workdir) if line['split'] == 'held_out']


def test_it_learns_what_the_labels_say(trained: Path):
    last = evaluations(trained)[-1]
    assert last['step'] == 80 and last['accuracy'] >= 0.9 and last['fine_tuning_weight'] == ROWS['dev']
    assert last['fine_tuning_accuracy'] == pytest.approx(last['accuracy'])


@pytest.mark.parametrize('batch_size', [8, 16])
def test_a_result_depends_on_no_batch_size(trained: Path, batch_size: int):
    found = evaluate_workdir(trained, batch_size=batch_size)
    last = evaluations(trained)[-1]
    assert found['accuracy'] == last['accuracy']
    assert found['fine_tuning_loss'] == pytest.approx(
        last['fine_tuning_loss'], rel=1e-5, abs=1e-7
    )  # a loss of 0.0015 differs by 2e-8


def test_test_rows_are_scored_where_they_are_asked_for(trained: Path, tmp_path: Path):
    """Test rows are scored on request. The run has no test file, so its labelled training rows serve as one."""
    with pytest.raises(
        InputError, match="^eval.split is 'test', but examples.test is empty: there is nothing to score$"
    ):
        evaluate_workdir(trained, split='test')
    config = tiny_config(tmp_path, **{'examples.test': str(tmp_path / 'train.tsv')})
    drawn_workdir(build_run(config), tmp_path / 'workdir')
    found = evaluate_workdir(tmp_path / 'workdir', split='test')
    assert found['fine_tuning_weight'] == ROWS['train'] and 0 <= found['accuracy'] <= 1
    assert evaluate_workdir(tmp_path / 'workdir')['fine_tuning_weight'] == ROWS['dev']
    (tmp_path / 'train.tsv').write_text('text\tlabel\ngood film\t\n')
    with pytest.raises(InputError, match=r'train\.tsv: line 2: no label to score by; examples\.test needs them'):
        evaluate_workdir(tmp_path / 'workdir', split='test')


def test_test_rows_are_scored_by_the_threshold_of_dev(tmp_path: Path):
    config = fine_tuning(tmp_path, 'question_answering')
    examples = dataclasses.replace(config.examples, has_no_answer=True, test=config.examples.dev)
    config = dataclasses.replace(
        config,
        examples=examples,
        train=dataclasses.replace(config.train, steps=1),
        optimizer=dataclasses.replace(config.optimizer, bias_correction=False),
        checkpoint=dataclasses.replace(config.checkpoint, best_metric='f1', best_mode='max'),
    )
    train(config, tmp_path / 'workdir')
    dev, test = (evaluate_workdir(tmp_path / 'workdir', split=split) for split in ('held_out', 'test'))
    assert dev['no_answer_threshold'] == test['no_answer_threshold'] != 0.0
    assert {name: dev[name] for name in ('exact', 'f1')} == {name: test[name] for name in ('exact', 'f1')}


def test_a_result_depends_on_no_batch_size_where_attention_reads_the_length(tmp_path: Path):
    """Random tiles depend on the length of a row, padding included; the batch size still changes no result."""
    drawn_workdir(build_run(tiny_config(tmp_path, **{'model.attention': 'bigbird(2, 1)'})), tmp_path / 'workdir')
    losses = [evaluate_workdir(tmp_path / 'workdir', batch_size=size)['fine_tuning_loss'] for size in (8, 32)]
    assert losses == pytest.approx(losses[:1] * 2, rel=1e-6)


def test_a_result_depends_on_no_device_count(trained: Path):
    """Evaluation on all eight devices equals the evaluation of training, which used one device."""
    config = read_config(trained)
    task, mesh = make_task(config), make_mesh(MeshConfig(), get_backend().devices())
    assert mesh.size == 8
    state = CheckpointReader(trained).restore({'params': abstract_params(task, mesh)}, None).state
    evaluation = make_evaluation(config, task, mesh)
    found, last = evaluation.metrics(evaluation.step(), state['params']), evaluations(trained)[-1]
    assert found['accuracy'] == last['accuracy']
    assert found['fine_tuning_loss'] == pytest.approx(
        last['fine_tuning_loss'], rel=1e-5, abs=1e-7
    )  # a loss of 0.0015 differs by 2e-8


def test_the_workdir_knows_labels_and_tokenizer(trained: Path):
    config = json.loads((trained / 'config.json').read_text())
    assert config['examples']['labels'] == ['bad', 'good']
    assert (trained / 'tokenizer.json').is_file()


def test_a_run_that_gets_no_better_ends_early(tmp_path: Path):
    config = tiny_config(tmp_path, **ENDS_EARLY)
    train(config, tmp_path / 'workdir')
    assert [line['step'] for line in evaluations(tmp_path / 'workdir')] == [2, 4, 6]
    (tmp_path / 'workdir' / 'metrics.jsonl').unlink()  # Stopping does not depend on this file.
    train(config, tmp_path / 'workdir')  # The same command trains no further.
    assert max(line['step'] for line in read_metrics(tmp_path / 'workdir')) == 6


def test_the_best_evaluation_is_saved_whatever_the_interval_of_checkpoints(trained: Path):
    losses = [line['fine_tuning_loss'] for line in evaluations(trained)]
    assert len(losses) == 3 and max(losses) == losses[0] > losses[-1]
    assert CheckpointReader(trained).complete_steps() == [30, 80]  # the best step by this metric, and the last step


def test_a_run_goes_on_with_the_files_it_began_with(tmp_path: Path):
    config = tiny_config(tmp_path, **{'train.steps': 1})
    drawn_workdir(build_run(config), tmp_path / 'workdir')
    path = tmp_path / 'dev.tsv'
    path.write_text(path.read_text(encoding='utf-8') + 'the good film\tgood\n', encoding='utf-8')
    with pytest.raises(InputError, match='examples'):
        train(config, tmp_path / 'workdir')


@pytest.mark.parametrize('has_global, places', [(True, 0), (False, 2)])
def test_global_tokens_are_marked_where_the_model_has_places(tmp_path: Path, has_global: bool, places: int):
    fields = {'examples.has_global': has_global, 'model.global_tokens': places}
    with pytest.raises(
        InputError, match=rf'^examples\.has_global is {has_global} with model\.global_tokens {places}; '
    ):
        build_run(tiny_config(tmp_path, **fields))


def test_a_model_with_global_tokens_gets_them_marked(tmp_path: Path):
    config = tiny_config(tmp_path, **{'model.global_tokens': 1, 'model.attention': 'window(2)'})
    assert config.examples.has_global
    run = build_run(config)
    batch = next(run.task.training_batches(0, 1, 0, 1))
    assert batch['is_global'][:, 0].all() and not batch['is_global'][:, 1:].any()


def test_global_tokens_are_counted_in_each_row_of_a_rows_rows():
    marks = np.zeros((5, 4), bool)
    marks[:, 0] = True
    check_global_token_count([{'is_global': marks}, {}], ModelConfig(attention='window(2)', global_tokens=1))
    marks[2, 1] = True
    with pytest.raises(InputError, match='^a row has 2 global tokens; model.global_tokens 1 must be at least as many$'):
        check_global_token_count([{'is_global': marks}], ModelConfig(attention='window(2)', global_tokens=1))


def test_each_choice_counts_as_a_row_of_the_encoder(tmp_path: Path):
    task = make_task(fine_tuning(tmp_path, 'multiple_choice'))
    choices = len(task.encoded.train_rows[0]['tokens'])
    assert task.batch_size == 8 and choices > 1 and task.tokens_per_step() == 8 * choices * 64
    assert task.training_flops() == 3.0 * 8 * choices * encoder_flops(task.model, 64, predictions=0)


def test_a_run_needs_files_to_evaluate_on(tmp_path: Path):
    with pytest.raises(InputError, match=r'^examples\.dev is empty; it must name files to evaluate on$'):
        build_run(tiny_config(tmp_path, **{'examples.dev': ''}))
    config = tiny_config(tmp_path)
    (tmp_path / 'dev.tsv').write_text('text\tlabel\n')
    with pytest.raises(InputError, match=r'^examples\.dev .*dev\.tsv. gives no row to evaluate on$'):
        build_run(config)


def test_a_folder_of_glue_is_its_files(tmp_path: Path):
    write_files(tmp_path)
    for split in ('train', 'dev'):
        rows = [line.split('\t') for line in (tmp_path / f'{split}.tsv').read_text(encoding='utf-8').splitlines()[1:]]
        lines = ['sentence\tlabel', *(f'{text}\t{int(label == "good")}' for text, label in rows)]
        (tmp_path / 'SST-2').mkdir(exist_ok=True)
        (tmp_path / 'SST-2' / f'{split}.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    folder = str(tmp_path / 'SST-2')
    names = ExamplesConfig(problem='classification', format='glue', name='sst2', train=folder, dev=folder)
    files = dataclasses.replace(names, train=f'{folder}/train.tsv', dev=f'{folder}/dev.tsv')
    assert files_digest(names) == files_digest(files)
    saved = 'tests/data/sources/saved_datasets/reviews'
    table = ExamplesConfig(problem='classification', train=f'{saved}/train', dev=f'{saved}/test')
    assert files_digest(table) == files_digest(dataclasses.replace(table, train=f'{saved}/train/*.arrow'))
    assert files_digest(table) != files_digest(dataclasses.replace(table, train=f'{saved}/test'))
    assert globs_and_names_of_split(ExamplesConfig(format='squad', dev='a.json#first:3, b.json'), 'dev') == [
        'a.json',
        'b.json',
    ]
    assert globs_and_names_of_split(ExamplesConfig(dev='a#b.csv'), 'dev') == ['a#b.csv']


def test_global_projections_begin_as_copies_where_a_checkpoint_has_none(tmp_path: Path):
    checkpoint = write_checkpoint(tmp_path / 'made', 'fill_mask')
    values = tiny_values(tmp_path, **{'train.start_from': str(checkpoint), 'model.attention': 'window(3)'})
    values['data']['tokenizer'] = None
    values['model'] = dict.fromkeys(values['model']) | {'global_tokens': 1}
    config = fill_config(values).config
    attention = (
        InitialParams(config).make_initial_state(build_run(config)).params['encoder']['stack']['layers']['attention']
    )
    np.testing.assert_array_equal(attention['global_projections']['key']['kernel'], attention['key']['kernel'])


def test_a_start_that_is_refused_leaves_the_workdir_free(tmp_path: Path):
    values = tiny_values(tmp_path, **{'examples.overlong': 'error', 'train.steps': 1})
    path = tmp_path / 'train.tsv'
    whole = path.read_text(encoding='utf-8')
    path.write_text(f'{whole}{"film " * 20}\tgood\n', encoding='utf-8')
    with pytest.raises(InputError, match=r'data\.length 16'):
        train(fill_config(values).config, tmp_path / 'w')
    train(tiny_config(tmp_path, **ENDS_EARLY), tmp_path / 'w')
    assert read_metrics(tmp_path / 'w')


def test_a_missing_file_is_named_with_its_field(tmp_path: Path):
    values = tiny_values(tmp_path, **{'examples.labels': ('bad', 'good'), 'train.steps': 1})
    values['examples']['dev'] = str(tmp_path / 'none.tsv')
    with pytest.raises(InputError, match=r'^examples\.dev: no file matches '):
        build_run(fill_config(values).config)


@pytest.mark.parametrize(
    ('kind', 'fields', 'message'),
    [
        ('span', {'outputs': 3}, 'head.outputs is 3; a span head does not read it, so it must be 2$'),
        (
            'token',
            {'transform': 'relu'},
            "head.transform is 'relu'; a token head does not read it, so it must be 'tanh'$",
        ),
        ('token', {'pooling': 'mean'}, "head.pooling is 'mean'; a token head does not read it, so it must be 'first'$"),
        ('choice', {'sentence_layers': 1}, 'head.sentence_layers is 1; a choice head does not read it'),
        ('choice', {'outputs': 4}, 'head.outputs is 4; a choice head does not read it'),
        ('sequence', {'outputs': 4}, r'head.outputs is 4; the examples have 2 \(no, yes\)$'),
        ('span', {}, ''),
    ],
)
def test_what_a_head_does_not_read_is_refused(kind: str, fields: dict, message: str):
    class Task:
        head, labels, head_output_count, config = kind, ('no', 'yes'), 2, ExamplesConfig(problem='classification')

    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        check_head(Task(), HeadConfig(kind=kind, **fields))


def test_a_batch_of_more_rows_than_the_data_is_told(tmp_path: Path):
    """A batch larger than the data is reported: its empty rows take time and teach nothing."""
    config = tiny_config(tmp_path, **{'train.batch_size': 168})
    run = SimpleNamespace(config=config, task=make_task(config))
    assert run.task.rows_per_epoch() == ROWS['train']
    assert batch_note(run)[0].startswith('each batch is partly empty: train.batch_size is 168, the data has 160 rows;')
