"""Tests of distillation runs: the teacher's outputs join the batch, and the teacher is neither trained nor saved."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.run import RunConfig
from efficient_attention.distillation.teacher import open_teacher
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.interop.compact_export import quantize, save_compact
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.sharding import make_mesh
from efficient_attention.tasks.registry import make_task
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.loop import train
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.state import TrainState
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import read_metrics
from tests.distillation.tiny_teacher import write_teacher
from tests.tolerances import assert_close
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.test_pruned_step import assert_same_moments, first_step, on_a_mesh_and_in_parts
from tests.training.tiny_fine_tuning import WORDS, tiny_config
from tests.training.tiny_run import fresh_workdir
from tests.training.tiny_run import tiny_config as masked_lm_config

pytestmark = pytest.mark.usefixtures('shared_programs')

INSIDE = {'hidden': 1.0, 'embeddings': 0.5, 'attention': 0.1, 'attention_relations': 0.2, 'value_relations': 0.3}
EVERY = {f'distill.{name}': value for name, value in INSIDE.items()} | {'distill.temperature': 2.0}
FEW = {'train.steps': 4, 'checkpoint.every_steps': 2, 'eval.every_steps': 4, 'optimizer.warmup_steps': 0}
FEW |= {'examples.buckets': (16,)}  # A single shape needs a single compiled program.


@pytest.fixture(scope='module')
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp('teacher'), width=24)


def config_of(folder: Path, teacher: Path | str, **fields: Any) -> RunConfig:
    return tiny_config(folder, **(FEW | {'distill.teacher': str(teacher), 'distill.cache': str(folder)} | fields))


def batch_of(run: Run) -> dict[str, Any]:
    return run.put_batch_on_devices(next(run.task.training_batches(0, 1, 0, 1)))


@pytest.fixture(scope='module')
def taught(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> tuple[Run, dict[str, Any]]:
    """Returns a run with the teacher, and the run's first batch."""
    run = build_run(config_of(tmp_path_factory.mktemp('taught'), teacher))
    return run, batch_of(run)


def logits_of(model: FineTuningModel, batch: dict[str, Any]) -> jax.Array:
    """Returns a model's logits for the rows of a batch, without dropout."""
    graph, state = nnx.split(model)
    rows = {name: array for name, array in batch.items() if not name.startswith('teacher')}
    return jax.jit(lambda state, rows: nnx.merge(graph, state).outputs(rows)['logits'])(state, rows)


def test_what_the_teacher_says_has_our_order_of_labels_and_no_dropout(
    tmp_path: Path, teacher: Path, taught: tuple[Run, dict[str, Any]]
):
    run, batch = taught
    assert run.config.examples.labels == ('bad', 'good')
    opened = open_pretrained(teacher)
    model = nnx.eval_shape(lambda: FineTuningModel(opened.model, opened.head, rngs=nnx.Rngs(0)))
    nnx.update(model, opened.params())
    assert_close(batch['teacher_logits'], logits_of(model, batch)[:, ::-1])
    assert run.parameter_count() == build_run(tiny_config(tmp_path, **FEW)).parameter_count()


def test_a_teacher_of_codes_says_what_its_folder_does(
    tmp_path: Path, teacher: Path, taught: tuple[Run, dict[str, Any]]
):
    save_compact(tmp_path / 'int8', quantize(open_pretrained(teacher), 'int8_weights'))
    opened = open_pretrained(tmp_path / 'int8')
    model = pretrained_module(lambda rngs: FineTuningModel(opened.model, opened.head, rngs=rngs), opened)
    batch = batch_of(build_run(config_of(tmp_path, tmp_path / 'int8')))
    assert_close(batch['teacher_logits'], logits_of(model, batch)[:, ::-1])
    exact = np.asarray(taught[1]['teacher_logits'])
    assert np.abs(exact - np.asarray(batch['teacher_logits'])).max() > 1e-4


@pytest.mark.lenient_promotion
def test_a_teacher_computes_in_the_type_of_its_student(
    tmp_path: Path, teacher: Path, taught: tuple[Run, dict[str, Any]]
):
    exact = taught[1]['teacher_logits']
    said = batch_of(build_run(config_of(tmp_path, teacher, **{'model.dtype': 'bfloat16'})))['teacher_logits']
    assert said.dtype == exact.dtype
    assert 0 < np.abs(np.asarray(said) - np.asarray(exact)).max() < 0.2


def test_an_ensemble_says_the_mean_of_its_logits(tmp_path: Path, teacher: Path, taught: tuple[Run, dict[str, Any]]):
    second = write_teacher(tmp_path / 'second', seed=8, labels=('bad', 'good'), layers=1)
    said = [np.asarray(taught[1]['teacher_logits'])]
    for name in (second, f'{teacher}, {second}'):
        said.append(np.asarray(batch_of(build_run(config_of(tmp_path, name)))['teacher_logits']))
    assert_close(said[2], (said[0] + said[1]) / 2)


@pytest.mark.lenient_promotion
def test_a_step_that_prunes_too_is_the_same_on_any_mesh_and_in_parts(tmp_path: Path, teacher: Path):
    """With pruning, a step counts each penalty once on any mesh and number of micro-batches; scores and maps learn."""
    pruned = {'prune.method': 'movement', 'prune.keep': 0.5, 'prune.begin': 0.0, 'prune.end': 0.0}
    config = config_of(tmp_path, teacher, **EVERY, **pruned, **{'train.batch_size': 16})
    start, alone, metrics = first_step(config)
    assert {f'{name}_loss' for name in (*INSIDE, 'soft', 'fine_tuning')} <= set(metrics)
    assert metrics['soft_loss'] > 0 and set(alone.scores) == {'encoder'}
    total = metrics['fine_tuning_loss'] + metrics['soft_loss']
    total += sum(factor * metrics[f'{name}_loss'] for name, factor in INSIDE.items())
    np.testing.assert_allclose(metrics['loss'], total, rtol=1e-5)
    _, state, others = on_a_mesh_and_in_parts(config, start)
    assert_close(others['loss'], metrics['loss'])
    assert_close(others['gradient_norm'], metrics['gradient_norm'])
    assert set(state.beside) == {'hidden', 'embeddings'}
    assert_same_moments(state, alone)
    assert not np.array_equal(alone.beside['hidden']['kernel'], start.beside['hidden']['kernel'])


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    folder = tmp_path_factory.mktemp('unbroken')
    with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
        train(config_of(folder, teacher, **EVERY, **{'checkpoint.keep': 2}), folder / 'run')
    return folder


def saved(workdir: Path, step: int = 4) -> dict[str, Any]:
    reader = CheckpointReader(workdir)
    tree = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
        ),
        dict(reader.saved_array_metadata(step)),
    )
    return reader.restore(tree, step).state


@pytest.mark.lenient_promotion
def test_a_run_that_goes_on_is_the_unbroken_one(unbroken: Path):
    second = unbroken / 'second'
    shutil.copytree(unbroken / 'run', second)
    shutil.rmtree(second / 'checkpoints' / '4')
    assert CheckpointReader(second).complete_steps() == [2]
    train(read_config(second), second)
    jax.tree.map(np.testing.assert_array_equal, saved(second), saved(unbroken / 'run'))


def test_an_evaluation_needs_no_teacher_and_says_what_the_run_said(unbroken: Path, teacher: Path):
    hidden = teacher.with_name('elsewhere')
    teacher.rename(hidden)
    try:
        found = evaluate_workdir(unbroken / 'run')
    finally:
        hidden.rename(teacher)
    [*_, last] = [line for line in read_metrics(unbroken / 'run') if line['split'] == 'held_out']
    assert found['accuracy'] == last['accuracy']
    assert found['fine_tuning_loss'] == pytest.approx(last['fine_tuning_loss'], rel=1e-5)
    assert 'soft_loss' not in found
    total = last['fine_tuning_loss'] + last['soft_loss']
    total += sum(factor * last[f'{name}_loss'] for name, factor in INSIDE.items())
    assert last['loss'] == pytest.approx(total, rel=1e-5)


def test_another_teacher_is_refused_on_resume(unbroken: Path, tmp_path: Path):
    other = write_teacher(tmp_path, width=24, seed=9)
    moved = {'data.tokenizer': str(tmp_path / 'vocab.txt')}  # Without `data.tokenizer`, the teacher's file is used.
    for fields in ({}, moved):
        with pytest.raises(InputError, match='was made with teacher = '):
            train(config_of(unbroken, other, **EVERY, **fields), unbroken / 'run')


def test_equal_numbers_that_mean_something_else_are_another_teacher(tmp_path: Path):
    digests = set()
    for number, made in enumerate(({}, {'labels': ('bad', 'good')}, {'activation': 'relu'}, {'heads': 4})):
        config = config_of(tmp_path, write_teacher(tmp_path / str(number), **made))
        teacher = open_teacher(config, make_task(config), make_mesh(config.mesh))
        assert teacher is not None
        digests.add(teacher.digest)
    assert len(digests) == 4


def test_the_state_that_is_saved_has_no_teacher(unbroken: Path):
    tree = saved(unbroken / 'run')
    assert set(tree) == {field.name for field in dataclasses.fields(TrainState)} and tree['carry'] is None
    widths = {leaf.shape[-1] for leaf in jax.tree.leaves(tree['params'])}
    assert 24 not in widths  # the teacher's


@pytest.mark.parametrize(
    'made, fields, message',
    [
        ({'labels': ()}, {}, "has a head for 'fill_mask'; examples.problem is 'classification'"),
        ({'labels': ('good', 'fine')}, {}, 'has the labels good, fine; the examples have bad, good'),
        (
            {'words': ['x', *'good bad the a film was it and not very story we'.split()]},
            {},
            'ids stand for other pieces',
        ),
        ({'max_length': 12}, {}, 'has 12 positions; data.length is 16'),
        ({'words': WORDS[:-2], 'vocab_size': 16}, {}, 'has a table of 16 tokens; this run needs 18'),
        (
            {},
            {'train.start_layers': '1,2,3', 'train.start_from': '{teacher}'},
            'model.layers is 2; it must be 3, as many',
        ),
        ({'layers': 3}, {'distill.hidden': 1.0}, "3 layers do not divide by the student's 2"),
        ({'heads': 4}, {'distill.attention': 1.0}, 'has 4 heads, the student 2'),
        ({'width': 24}, {'distill.cosine': 1.0}, 'is 24 wide, the student 16'),
        ({'width': 24}, {'distill.hidden': 1.0, 'distill.projection': 'none'}, "use distill.projection 'own' or 'one'"),
        (
            {},
            {'distill.attention': 1.0, 'model.attention': 'window(4)'},
            r"the student has model.attention 'window\(4\)'",
        ),
        ({}, {'checkpoint.best_metric': 'hidden_loss'}, "checkpoint.best_metric is 'hidden_loss'; known: "),
    ],
)
def test_a_teacher_that_does_not_fit_is_one_line(
    tmp_path: Path, made: dict[str, Any], fields: dict[str, Any], message: str
):
    folder = write_teacher(tmp_path / 'teacher', **made)
    fields = {name: str(folder) if value == '{teacher}' else value for name, value in fields.items()}
    with pytest.raises(InputError, match=message) as found:
        train(config_of(tmp_path, folder, **fields), tmp_path / 'run')
    assert '\n' not in str(found.value) and not (tmp_path / 'run').exists()


@pytest.mark.lenient_promotion
def test_a_masked_model_learns_words_from_another_with_the_layers_that_it_began_with(tmp_path: Path):
    teacher = fresh_workdir(tmp_path / 'first', **{'model.layers': 4})
    fields = {'teacher': str(teacher), 'soft': 5.0, 'labels': 2.0, 'cosine': 1.0}
    fields = {f'distill.{name}': value for name, value in fields.items()}
    fields |= {'train.start_from': str(teacher), 'train.start_layers': '1,4', 'train.steps': 2, 'eval.every_steps': 2}
    config = masked_lm_config(tmp_path / 'second', **fields, **{'data.pairs': 'none', 'optimizer.warmup_steps': 0})
    held_out = train(config, tmp_path / 'run')
    total = 2 * held_out['masked_lm_loss'] + 5 * held_out['soft_loss'] + held_out['cosine_loss']
    assert held_out['loss'] == pytest.approx(total, rel=1e-5)
    assert 'masked_lm_perplexity' in held_out and held_out['soft_weight'] == held_out['masked_lm_weight']
    started = InitialParams(config).make_initial_state(build_run(config)).params['encoder']['stack']['layers']
    theirs = open_pretrained(teacher).params()['encoder']['stack']['layers']
    jax.tree.map(lambda mine, all_: np.testing.assert_array_equal(mine, all_[[0, 3]]), started, theirs)


def test_a_teacher_that_does_not_fit_is_refused_before_a_corpus_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('efficient_attention.training.run.make_task', lambda *_: pytest.fail('data are prepared'))
    folder = write_teacher(tmp_path / 'teacher')
    fields = {'distill.teacher': str(folder), 'distill.labels': 0.0, 'distill.soft': 0.0, 'distill.hidden': 1.0}
    with pytest.raises(InputError, match='has 16 positions; data.length is 32'):
        build_run(masked_lm_config(tmp_path, **fields, **{'data.pairs': 'none'}))


def test_an_encoder_alone_serves_where_its_layers_alone_are_learned_from(tmp_path: Path):
    folder = write_teacher(tmp_path / 'teacher', labels=())
    fields = {'distill.soft': 0.0, 'distill.labels': 0.0, 'distill.hidden': 1.0, 'checkpoint.best_metric': 'loss'}
    run = build_run(config_of(tmp_path, folder, **fields))
    assert set(batch_of(run)) & {'teacher_logits', 'teacher_hidden'} == {'teacher_hidden'}
