"""Tests of language modelling with segment memory: streams, resuming, evaluation protocols, and refused configs."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.lm.common import language_modelling_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, RunStopped
from efficient_attention.inference.evaluate import make_evaluation
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.sharding import make_mesh
from efficient_attention.tasks.language_modelling import LanguageModellingTask
from efficient_attention.tasks.registry import make_task
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import jit_train_step
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from tests.one_device import see_one_device
from tests.tolerances import assert_close
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.tiny_run import write_corpus

pytestmark = [
    pytest.mark.lenient_promotion,  # Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
    pytest.mark.usefixtures('shared_programs'),
    pytest.mark.devices,
]

MEMORY, SEGMENT = 24, 16
FIELDS = {
    'data.units': 'bytes',
    'data.vocab_size': 256,
    'data.splitting': 'end',
    'data.held_out': 0.05,
    'data.length': SEGMENT,
    'data.batches': 'streams',
    'model.width': 16,
    'model.init_std': 0.2,
    'model.positions': 'none',
    'model.relative': 'transformer_xl',
    'model.memory_length': MEMORY,
    'train.steps': 6,
    'train.batch_size': 8,
    'train.micro_batches': 2,
    'train.log_every_steps': 3,
    'mesh.fsdp': 2,
    'mesh.tensor': 2,
    'checkpoint.every_steps': 3,
    'eval.every_steps': 6,
    'eval.batch_size': 4,
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('memory')


def config_of(folder, **fields) -> RunConfig:
    config = language_modelling_config()
    config.data.source = write_corpus(folder)
    config.data.cache = str(folder / 'cache')
    config.update_from_flattened_dict(FIELDS | fields)
    return from_dict(config.to_dict(), RunConfig)


@pytest.fixture(scope='module')
def workdir(folder):
    """Returns the folder of a run of 6 steps with dropout and two micro-batches on a mesh of 2 x 2 x 2 devices."""
    train(config_of(folder), folder / 'run')
    return folder / 'run'


@functools.cache
def state_shapes(config: RunConfig) -> TrainState:
    """Returns the shapes of a run's state, and their sharding."""
    return build_run(config).abstract_state


def state_of(config: RunConfig, workdir, step):
    return CheckpointReader(workdir).restore(state_shapes(config), step).state


def test_a_run_that_goes_on_has_the_memory_of_one_that_never_stopped(folder, workdir, monkeypatch):
    config = config_of(folder)
    with monkeypatch.context() as patch:
        steps = itertools.count(1)
        patch.setattr('efficient_attention.training.guarded_run.GracefulStop.is_stop_due', lambda _: next(steps) == 3)
        with pytest.raises(RunStopped):
            train(config, folder / 'stopped')
    saved = state_of(config, folder / 'stopped', 3).carry
    assert saved.segments_BM.all() and np.abs(saved.states_BNMD).max() > 0.1
    train(config, folder / 'stopped')
    left, right = (state_of(config, path, 6) for path in (workdir, folder / 'stopped'))
    jax.tree.map(np.testing.assert_array_equal, left, right)


SHORT = {'mesh.fsdp': 1, 'mesh.tensor': 1, 'data.held_out': 0.01}  # one device, and little held-out text


def evaluation_loss(config: RunConfig, params, **evaluation) -> float:
    """Returns the loss in nats over the held-out text, by the task's evaluation protocol."""
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, **evaluation))
    evaluation = make_evaluation(config, make_task(config), make_mesh(config.mesh, jax.devices()[:1]))
    return evaluation.metrics(evaluation.step(), params)['causal_lm_loss']


@pytest.fixture(scope='module')
def decoder(folder) -> tuple:
    """Returns the graph and the parameters of a decoder."""
    make = nnx.jit(lambda: Decoder(config_of(folder, **SHORT).model, rngs=nnx.Rngs(1)))
    return nnx.split(make())


@pytest.mark.parametrize('streams', [1, 2])
def test_evaluation_with_memory_is_one_pass_over_each_stream(folder, decoder, streams: int):
    """If memory holds the whole text, segments score as in a single pass over each stream; each token counts once."""
    config = config_of(folder, **SHORT)
    ids = np.asarray(LanguageModellingTask(config).text.splits['held_out'], np.int32)
    graph, state = decoder
    loss = evaluation_loss(config, nnx.to_pure_dict(state), memory_length=len(ids), batch_size=streams)
    part = -(-(len(ids) - 1) // streams)
    rows, targets = np.zeros((streams, part), np.int32), np.full((streams, part), -1)
    for row, start in enumerate(range(0, len(ids) - 1, part)):
        text = ids[start : start + part + 1]
        rows[row, : len(text) - 1], targets[row, : len(text) - 1] = text[:-1], text[1:]

    @jax.jit
    def log_p(rows):
        return jax.nn.log_softmax(nnx.merge(graph, state)(rows, jnp.ones_like(rows)))

    found = np.take_along_axis(np.asarray(log_p(rows)), targets[..., None], axis=2)[..., 0]
    assert (targets >= 0).sum() == len(ids) - 1
    assert loss == pytest.approx(-found[targets >= 0].sum(dtype=np.float64) / (len(ids) - 1), rel=1e-5)


def test_a_model_that_knows_nothing_scores_8_bits_a_byte_with_memory(folder, decoder):
    params = jax.tree.map(np.zeros_like, nnx.to_pure_dict(decoder[1]))
    loss = evaluation_loss(config_of(folder, **SHORT), params, batch_size=2)
    assert loss == pytest.approx(math.log(256), rel=1e-6)


def test_one_device_and_one_micro_batch_make_the_same_step_and_memory(folder, workdir):
    config = config_of(folder, **{'mesh.fsdp': 1, 'mesh.tensor': 1, 'train.micro_batches': 1})
    run = build_run(config, jax.devices()[:1])
    state, batches = run.init_random_state(), run.task.training_batches(0, 3, 0, 1)
    step = jit_train_step(run)
    for batch in batches:
        state, _ = step(state, run.put_batch_on_devices(batch))
    assert_close(state.carry, state_of(config_of(folder), workdir, 3).carry, gradient=True)


def test_the_result_names_its_protocol(workdir, monkeypatch):
    see_one_device(monkeypatch)
    usual = evaluate_workdir(workdir)
    assert {name: usual[name] for name in ('protocol', 'context', 'memory_length', 'streams')} == {
        'protocol': 'memory',
        'context': SEGMENT,
        'memory_length': MEMORY,
        'streams': 4,
    }
    without = evaluate_workdir(workdir, memory_length=0)
    assert (without['protocol'], without['stride']) == ('no_context', SEGMENT)
    assert evaluate_workdir(workdir, memory_length=0, same_length=True)['protocol'] == 'no_context'
    clamped = evaluate_workdir(workdir, memory_length=40, clamp_length=20, same_length=True)
    assert (clamped['memory_length'], clamped['clamp_length'], clamped['same_length']) == (40, 20, True)
    scores = {result['bits_per_byte'] for result in (usual, without, clamped)}
    assert len(scores) == 3 and all(math.isfinite(score) for score in scores)
    assert usual['causal_lm_weight'] == without['causal_lm_weight']


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'data.batches': 'windows'}, "data.batches is 'windows'; with model.memory_length 24"),
        ({'eval.stride': 8}, 'eval.stride is 8 with a memory of 24 tokens'),
        ({'model.attention': 'favor(8, causal=True)', 'model.relative': 'none'}, 'cannot use memory'),
        ({'model.memory_length': 0, 'model.same_length': True}, 'model.same_length is True'),
        ({'model.memory_length': -3}, 'model.memory_length is -3'),
        ({'model.relative': 'none', 'model.rotary': True, 'model.clamp_length': 9}, 'model.clamp_length is 9'),
    ],
)
def test_what_does_not_fit_is_one_line(folder, fields, message):
    dropout = {'model.attention_dropout_rate': 0.0} if 'model.attention' in fields else {}
    with pytest.raises(InputError, match=message) as caught:
        build_run(config_of(folder, **fields | dropout))
    assert '\n' not in str(caught.value)


@pytest.mark.slow  # tests/tasks/test_compressed_memory.py also tests this, with a compressed memory.
def test_a_run_goes_on_where_rows_and_memory_are_split_over_devices(folder, workdir):
    fields = {'mesh.fsdp': 1, 'mesh.tensor': 1, 'mesh.sequence': 2, 'train.micro_batches': 1}
    run = build_run(config_of(folder, **fields), jax.devices()[:4])
    state = CheckpointReader(workdir).restore(run.abstract_state, 3).state
    assert state.carry.states_BNMD.sharding.spec[2] == 'sequence'
    step, batches = jit_train_step(run), run.task.training_batches(3, 6, 0, 1)
    for _ in range(3):
        state, _ = step(state, run.put_batch_on_devices(next(batches)))
    unbroken = state_of(config_of(folder), workdir, 6)
    assert_close((state.params, state.carry.states_BNMD), (unbroken.params, unbroken.carry.states_BNMD))
