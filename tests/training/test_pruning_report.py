"""Tests the report of the weights that are left in a pruned run, and which of its evaluations count."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.pruning.pruner import flatten_by_path
from efficient_attention.training.loop import train
from efficient_attention.training.pruning_report import remaining_weights_lines
from efficient_attention.training.run import build_run
from efficient_attention.training.step import jit_train_step
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import read_metrics
from tests.distillation.test_teacher import saved
from tests.distillation.tiny_teacher import write_teacher
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.tiny_fine_tuning import tiny_config

pytestmark = pytest.mark.usefixtures('shared_programs')

RUN = {'train.steps': 12, 'eval.every_steps': 4, 'checkpoint.every_steps': 4, 'checkpoint.keep': 3}
RUN |= {'checkpoint.save_best': False, 'optimizer.warmup_steps': 0}
RUN |= {'examples.buckets': (16,)}  # rows of one length need only one program
MOVEMENT = {'prune.method': 'movement', 'prune.keep': 0.25, 'prune.begin': 0.0, 'prune.end': 0.6}


def test_layers_that_are_alike_have_one_line():
    alike = {'a/layers/attention/query/kernel': np.array([0.5, 0.5]), 'a/layers/attention/out/kernel': np.array([1, 1])}
    assert remaining_weights_lines(alike) == ['weights left in each layer of a: query 0.500, out 1.000']
    shared = {'a/layers/attention/query/kernel': np.array(0.25)}
    assert remaining_weights_lines(shared) == ['weights left in each layer of a: query 0.250']
    apart = {'a/layers/feed_forward/up/kernel': np.array([0.5, 0.0])}
    assert remaining_weights_lines(apart) == [
        'weights left in layer 1 of a: up 0.500',
        'weights left in layer 2 of a: up 0.000',
    ]


@pytest.fixture(scope='module')
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('pruned')
    with jax.numpy_dtype_promotion('standard'), jax.numpy_rank_promotion('allow'):
        train(tiny_config(folder, **RUN, **MOVEMENT), folder / 'run')
    return folder


def test_evaluations_at_the_final_share_alone_are_the_best(pruned: Path):
    lines = [line for line in read_metrics(pruned / 'run') if line['split'] == 'held_out']
    assert [line.get('still_pruning', 0.0) for line in lines] == [1.0, 0.0, 0.0]
    assert lines[0]['weights_kept'] > lines[1]['weights_kept'] == pytest.approx(0.25, abs=0.01)
    better = pruned / 'better'
    shutil.copytree(pruned / 'run', better)
    record = better / 'checkpoints' / '4' / 'record' / 'metadata'
    values = json.loads(record.read_text())
    assert values['metrics']['still_pruning'] == 1.0
    values['metrics']['accuracy'] = 2.0  # better than all others, but with more weights left
    record.write_text(json.dumps(values))
    assert CheckpointReader(better).best_step('accuracy', 'max') in (8, 12)


def test_a_penalty_removes_weights_to_the_end_so_that_no_run_stops_before(tmp_path: Path):
    fields = {'prune.method': 'l0', 'prune.penalty': 1.0, 'train.early_stop': 2, 'checkpoint.best_metric': 'accuracy'}
    with pytest.raises(InputError, match="train.early_stop is 2; it must be 0 with prune.method 'l0', whose penalty"):
        tiny_config(tmp_path, **RUN, **fields)


def test_all_readers_of_a_workdir_see_masked_parameters(pruned: Path):
    [*_, last] = [line for line in read_metrics(pruned / 'run') if line['split'] == 'held_out']
    found = evaluate_workdir(pruned / 'run')
    assert found['fine_tuning_loss'] == pytest.approx(last['fine_tuning_loss'], rel=1e-5)
    config = read_config(pruned / 'run')
    run = build_run(config)
    assert run.pruner is not None
    state = saved(pruned / 'run', 12)
    expected = flatten_by_path(run.pruner.pruned(state['params'], state['scores'], 12))
    opened = flatten_by_path(open_pretrained(pruned / 'run', checkpoint='last').params())
    assert set(opened) == set(expected)
    for path, array in expected.items():
        np.testing.assert_array_equal(opened[path], array)
    assert (opened['encoder/stack/layers/attention/query/kernel'] == 0.0).mean() == 0.75
    assert (state['params']['encoder']['stack']['layers']['attention']['query']['kernel'] != 0.0).all()


@pytest.mark.lenient_promotion
def test_a_run_that_goes_on_is_the_unbroken_one(pruned: Path):
    second = pruned / 'second'
    shutil.copytree(pruned / 'run', second)
    for step in (8, 12):
        shutil.rmtree(second / 'checkpoints' / str(step))
    train(read_config(second), second)
    jax.tree.map(np.testing.assert_array_equal, saved(second, 12), saved(pruned / 'run', 12))


@pytest.mark.lenient_promotion
def test_a_lottery_ticket_has_the_zeros_of_one_run_and_the_weights_of_another_start(pruned: Path, tmp_path: Path):
    fields: dict[str, Any] = {'prune.method': 'fixed', 'prune.mask_from': str(pruned / 'run'), 'train.seed': 3}
    fields |= RUN | {'train.steps': 4}
    train(tiny_config(tmp_path, **fields), tmp_path / 'ticket')
    ticket = flatten_by_path(open_pretrained(tmp_path / 'ticket').params())
    for path, array in flatten_by_path(open_pretrained(pruned / 'run').params()).items():
        if path.endswith('up/kernel'):
            np.testing.assert_array_equal(ticket[path] == 0.0, array == 0.0)
            assert not np.isclose(ticket[path], array)[array != 0.0].all()
    dense = write_teacher(tmp_path / 'dense', layers=2)
    with pytest.raises(
        InputError, match='prune.mask_from .*dense/model has no zeros in the kernels of prune.attention'
    ):
        train(tiny_config(tmp_path, **fields | {'prune.mask_from': str(dense)}), tmp_path / 'no')
    with pytest.raises(InputError, match='prune.mask_from: .*nowhere is no folder'):
        train(tiny_config(tmp_path, **fields | {'prune.mask_from': str(tmp_path / 'nowhere')}), tmp_path / 'no')
    assert not (tmp_path / 'no').exists()
    with pytest.raises(InputError, match='prune.mask_from .*key/kernel has the shape .2, 16, 16., not .3, 16, 16.'):
        train(tiny_config(tmp_path, **fields, **{'model.layers': 3}), tmp_path / 'no')


@pytest.mark.lenient_promotion
def test_masked_weights_have_no_gradient_and_only_decay_moves_them(tmp_path: Path):
    """The query kernels have weight decay here; the kernels named `up` have none."""
    fields = {'prune.method': 'random', 'prune.begin': 0.0, 'prune.end': 0.0, 'prune.keep': 0.25}
    fields |= {'optimizer.weight_decay': 0.5, 'optimizer.no_decay': ('up/kernel$',)}
    run = build_run(tiny_config(tmp_path, **RUN, **fields))
    state, step = run.init_random_state(), jit_train_step(run)
    before = flatten_by_path(jax.device_get(state.params))
    kept = {
        path: array != 0.0 for path, array in flatten_by_path(jax.device_get(run.evaluation_params_fn(state))).items()
    }
    for batch, _ in zip(run.task.training_batches(0, 3, 0, 1), range(3), strict=False):
        state, _ = step(state, run.put_batch_on_devices(batch))
    for path, array in flatten_by_path(jax.device_get(state.params)).items():
        if path.endswith(('query/kernel', 'up/kernel')):
            masked, moved = ~kept[path], array != before[path]
            decays = path.endswith('query/kernel')
            assert masked.mean() == 0.75 and moved[~masked].mean() > 0.8 and moved[masked].any() == decays
            assert (np.abs(array[masked]) <= np.abs(before[path][masked])).all()


@pytest.mark.lenient_promotion
def test_what_is_frozen_is_not_its_scores(tmp_path: Path):
    fields = {**RUN, **MOVEMENT, 'optimizer.frozen': ('encoder/stack',)}
    run = build_run(tiny_config(tmp_path, **fields))
    batch = run.put_batch_on_devices(next(run.task.training_batches(0, 1, 0, 1)))
    start = run.init_random_state()
    before = flatten_by_path(jax.device_get(start.params))
    state, _ = jit_train_step(run)(start, batch)
    for path, array in flatten_by_path(jax.device_get(state.params)).items():
        assert np.array_equal(array, before[path]) == path.startswith('encoder/stack')
    assert all(np.any(np.asarray(one)) for one in jax.tree.leaves(state.scores))


def test_a_run_that_prunes_has_no_more_steps_than_it_began_with(pruned: Path):
    fields = {**RUN, **MOVEMENT, 'train.steps': 24, 'optimizer.schedule': 'constant'}
    with pytest.raises(InputError, match='now it is "constant" .also different: config.train.steps'):
        train(tiny_config(pruned, **fields), pruned / 'run')
