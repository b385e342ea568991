"""Tests of compressed memory in training and evaluation: meshes, resuming, protocols, and refused configs."""

import itertools
import math

import jax
import numpy as np
import pytest

from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, RunStopped
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.training.loop import train
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import jit_train_step
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.metrics import read_metrics
from tests.one_device import see_one_device
from tests.tasks.test_language_modelling_memory import SEGMENT, config_of, state_of
from tests.tolerances import assert_close
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
    pytest.mark.usefixtures('shared_programs'),
    pytest.mark.devices,
]

SLOTS = 8
COMPRESSED = {
    'model.memory_length': SEGMENT,
    'model.compression': 'convolution',
    'model.compressed_length': SLOTS,
    'model.reconstruction_weight': 0.5,
    'model.remat': 'full',
    'model.dropout_rate': 0.0,
    'model.attention_dropout_rate': 0.0,
    'train.log_every_steps': 1,
}
ONE_DEVICE = {'mesh.fsdp': 1, 'mesh.tensor': 1, 'train.micro_batches': 1, 'model.remat': 'none'}
LOSSES = ('loss', 'causal_lm_loss', 'reconstruction_loss')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('compressed')


def compressed(folder, **fields) -> RunConfig:
    return config_of(folder, **COMPRESSED | fields)


@pytest.fixture(scope='module')
def workdir(folder):
    """Returns the folder of a run of 6 steps with two micro-batches on a mesh of 2 x 2 x 2 devices."""
    train(compressed(folder), folder / 'run')
    return folder / 'run'


def test_a_run_that_goes_on_has_the_slots_of_one_that_never_stopped(folder, workdir, monkeypatch):
    config = compressed(folder)
    with monkeypatch.context() as patch:
        steps = itertools.count(1)
        patch.setattr('efficient_attention.training.guarded_run.GracefulStop.is_stop_due', lambda _: next(steps) == 3)
        with pytest.raises(RunStopped):
            train(config, folder / 'stopped')
    saved = state_of(config, folder / 'stopped', 3).carry
    assert saved.compressed.segments_BM.all() and np.abs(saved.compressed.states_BNMD).max() > 0.1
    train(config, folder / 'stopped')
    left, right = (state_of(config, path, 6) for path in (workdir, folder / 'stopped'))
    jax.tree.map(np.testing.assert_array_equal, left, right)


def steps_of(run: Run, state: TrainState, first: int = 0) -> tuple[TrainState, list[list[float]]]:
    """Returns the state after three more steps, and the losses of each step."""
    step, losses = jit_train_step(run), []
    for batch in run.task.training_batches(first, first + 3, 0, 1):
        state, found = step(state, run.put_batch_on_devices(batch))
        losses.append([float(found[name]) for name in LOSSES])
    return state, losses


def test_one_device_and_one_micro_batch_make_the_same_steps_slots_and_losses(folder, workdir):
    run = build_run(compressed(folder, **ONE_DEVICE), jax.devices()[:1])
    state, losses = steps_of(run, run.init_random_state())
    saved = state_of(compressed(folder), workdir, 3)
    assert_close((state.carry, state.params), (saved.carry, saved.params), gradient=True)
    on_mesh = [[line[name] for name in LOSSES] for line in lines_of(workdir, 'train')[:3]]
    np.testing.assert_allclose(losses, on_mesh, rtol=2e-5)
    assert losses[0][2] == 0.0 and losses[1][2] > 0.0  # In the first step no state leaves the memory.
    np.testing.assert_allclose(
        [total for total, _, _ in losses], [lm + 0.5 * aux_losses for _, lm, aux_losses in losses], rtol=1e-6
    )


def lines_of(workdir, split: str) -> list[dict]:
    """Returns the lines of a run's metrics log for one split."""
    return [line for line in read_metrics(workdir) if line['split'] == split]


def test_a_run_goes_on_where_rows_and_slots_are_split_over_devices(folder, workdir):
    run = build_run(compressed(folder, **ONE_DEVICE, **{'mesh.sequence': 2}), jax.devices()[:4])
    state = CheckpointReader(workdir).restore(run.abstract_state, 3).state
    assert state.carry.compressed.states_BNMD.sharding.spec[2] == 'sequence'
    state, _ = steps_of(run, state, 3)
    unbroken = state_of(compressed(folder), workdir, 6)
    assert_close((state.params, state.carry), (unbroken.params, unbroken.carry), gradient=True)


def test_the_compressor_is_trained_and_its_loss_is_logged(folder, workdir):
    kernel = np.asarray(state_of(compressed(folder), workdir, 6).params['stack']['layers']['compressor']['kernel'])
    has_begun_at_0 = np.tile(np.eye(16), (4, 1)) == 0
    assert (kernel[:, has_begun_at_0] != 0).all()
    for split in ('train', 'held_out'):
        assert math.isfinite(lines_of(workdir, split)[-1]['reconstruction_loss'])


def test_evaluation_may_have_more_slots_none_or_no_memory(workdir, monkeypatch):
    see_one_device(monkeypatch)
    usual = evaluate_workdir(workdir)
    assert (usual['memory_length'], usual['compressed_length'], usual['compression_rate']) == (SEGMENT, SLOTS, 4)
    more = evaluate_workdir(workdir, memory_length=20, compressed_length=24)
    assert (more['memory_length'], more['compressed_length']) == (20, 24)
    fewer = evaluate_workdir(workdir, compressed_length=0)
    without = evaluate_workdir(workdir, memory_length=0, context=SEGMENT + 1)
    assert 'compressed_length' not in fewer and 'reconstruction_loss' not in fewer
    assert (fewer['protocol'], without['protocol']) == ('memory', 'no_context')
    assert len({found['bits_per_byte'] for found in (usual, more, fewer, without)}) == 4
    assert usual['reconstruction_loss'] > 0.0


@pytest.mark.parametrize(
    'protocol, message',
    [
        ({'memory_length': 0, 'compressed_length': 8}, 'eval.compressed_length is 8; it must be 0 without memory'),
        ({'context': 18}, 'eval.context is 18; it must be a multiple of model.compression_rate 4'),
    ],
)
def test_what_evaluation_cannot_do_is_one_line(workdir, protocol, message):
    with pytest.raises(InputError, match=message) as caught:
        evaluate_workdir(workdir, **protocol)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'model.memory_length': 0}, 'model.compressed_length is 8; it must be 0 without model.memory_length'),
        ({'model.compressed_length': 0}, "model.compressed_length is 0; it must be above 0 with model.compression 'co"),
        ({'model.compression_rate': 3}, 'data.length is 16; it must be a multiple of model.compression_rate 3'),
        ({'model.compression': 'mean'}, 'model.reconstruction_weight is 0.5; it must be 0 with model.compression'),
        ({'model.stack': 'reversible', 'model.remat': 'none'}, r'a reversible stack \(model.stack\) cannot use memory'),
        (
            {'mesh.fsdp': 1, 'mesh.tensor': 1, 'mesh.sequence': 2, 'model.compressed_length': 7},
            'mesh.sequence is 2; model.compressed_length 7 is not a multiple of it',
        ),
    ],
)
def test_what_does_not_fit_is_one_line(folder, fields, message):
    with pytest.raises(InputError, match=message) as caught:
        build_run(compressed(folder, **fields))
    assert '\n' not in str(caught.value)
