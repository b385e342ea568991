"""Tests that NaN or infinity in any array of a run is counted, reported with its step, and never saved."""

import contextlib
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.lm.common import language_modelling_config
from efficient_attention.attention.favor import definition
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.inference.evaluate import Evaluation
from efficient_attention.models.sharding import path_name
from efficient_attention.processes.watchdog import Watchdog
from efficient_attention.training import loop
from efficient_attention.training.early_stop import Patience
from efficient_attention.training.guarded_run import GuardedRun
from efficient_attention.training.loop import Trainer
from efficient_attention.training.progress import SilentProgress
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.state import (
    NonFiniteTrainingError,
    StateArraysForNanCheck,
    TrainState,
    array_names,
    first_nonfinite_index,
    is_finite,
    is_state_finite,
)
from efficient_attention.training.step import StepFn, jit_train_step
from efficient_attention.training.step_queue import MetricsInterval
from efficient_attention.workdir.trackers.all_trackers import Trackers
from tests.training.tiny_run import write_corpus

pytestmark = [pytest.mark.lenient_promotion, pytest.mark.devices]  # Optax mixes Python floats with int32 counts

STEPS, STEP = 8, 4  # the steps of a run, and the step after which a value is put into an array
FIELDS = {
    'data.units': 'bytes',
    'data.vocab_size': 256,
    'data.splitting': 'end',
    'data.held_out': 0.0,
    'data.length': 16,
    'model.width': 16,
    'model.layers': 1,
    'model.dropout_rate': 0.0,
    'model.attention_dropout_rate': 0.0,
    'optimizer.warmup_steps': 1,
    'train.steps': STEPS,
    'train.batch_size': 4,
    'train.log_every_steps': 2,
    'train.max_skipped_in_row': 3,
    'mesh.fsdp': 2,
    'checkpoint.every_steps': 2,
}
MEMORY = {'data.batches': 'streams', 'model.positions': 'none', 'model.relative': 'transformer_xl'}
MEMORY |= {'model.memory_length': 16, 'model.adaptive_cutoffs': (64,), 'model.output_bias': True}
LARGEST = float(np.finfo(np.float32).max)


NAN, INF = float('nan'), float('inf')


class Saved:
    """Replaces the checkpoint writer: checks that each saved state is finite, and keeps only the step numbers."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def raise_if_save_failed(self) -> None:
        """Does nothing, because no save is running that could fail."""

    def wait_until_saved(self) -> None:
        """Does nothing, because saves here take no time."""

    def save(self, step: int, state: TrainState, **_: Any) -> None:
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(state)))
        self.steps.append(step)


class Lines(SilentProgress):
    """Replaces the display and the log of a run: keeps its lines and its counts of skipped steps."""

    start_step = lines = 0

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.said: list[str] = []
        self.skipped: list[int] = []
        self.trackers = Trackers({}, self.print_line)

    def print_line(self, text: str) -> None:
        self.said.append(text)

    def digest(self) -> str:
        return ''

    def write_metrics(self, _step: int, _split: str, metrics: dict[str, Any]) -> None:
        self.skipped += [metrics['skipped']] if 'skipped' in metrics else []


class Endless:
    """Replaces the watch for stop signals; no stop comes."""

    def enable_graceful_stop(self) -> None:
        """Does nothing, because there are no other processes."""

    def is_stop_due(self) -> bool:
        return False


def run_of(folder: Path, fields: dict[str, Any]) -> Run:
    config = language_modelling_config()
    config.data.source = write_corpus(folder)
    config.data.cache = str(folder / 'cache')
    config.update_from_flattened_dict(FIELDS | fields)
    return build_run(from_dict(config.to_dict(), RunConfig), jax.devices()[: config.mesh.fsdp])


@pytest.fixture(scope='module')
def remembering(tmp_path_factory) -> tuple[Run, TrainState, StepFn]:
    """Returns a Transformer-XL run with an adaptive softmax over two devices, its first state, and its compiled
    step.
    """
    run = run_of(tmp_path_factory.mktemp('memory'), MEMORY)
    return run, jax.device_get(run.init_random_state()), jit_train_step(run)


def with_value(tree: Any, name: str, value: float, place: Any) -> Any:
    """Returns the tree with `value` at `place` in the array whose path ends in `name`."""

    def put(path: tuple, leaf: jax.Array) -> jax.Array:
        if not f'/{path_name(path)}'.endswith(f'/{name}'):
            return leaf
        array = np.array(leaf)
        array[place] = value
        return jax.device_put(array, leaf.sharding)

    return jax.tree_util.tree_map_with_path(put, tree)


def unguarded(run: Run, state: TrainState, saved: Saved, lines: Lines) -> GuardedRun:
    """Returns a new run with these replacements, without a workdir."""
    patience, watchdog = Patience(run.config.train.early_stop, run.config.checkpoint), Watchdog(0, lines.workdir)
    beside: Any = {'checkpoints': saved, 'log': lines, 'progress': lines, 'stop': Endless(), 'watchdog': watchdog}
    return GuardedRun(run, state, evaluations=[], patience=patience, interval=MetricsInterval(), record={}, **beside)


def take_steps(started: tuple, folder: Path, monkeypatch, name: str = '', *put: Any) -> tuple[Saved, Lines]:
    """Takes all steps of a run; before step `STEP` + 1, `put` names a value and place for the array `name` of batch or
    state.
    """
    run, state, step = started
    injected: list[int] = []

    def take_step(state: TrainState, batch: dict) -> tuple:
        if name and int(state.step) == STEP:
            injected.append(STEP)
            state, batch = with_value(state, name, *put), with_value(batch, name, *put)
        return step(state, batch)

    monkeypatch.setattr(loop, 'jit_train_step', lambda _run: take_step)
    saved, lines = Saved(), Lines(folder)
    guarded = unguarded(run, jax.device_put(state, run.shardings), saved, lines)
    monkeypatch.setattr(loop, 'guarded_run', lambda *_, **__: contextlib.nullcontext(guarded))
    loop.train(run.config, folder)
    assert not name or injected
    return saved, lines


# Arrays that a step only reads: array, value, place, and the reason why the step is skipped.
SKIPPED = {
    'a weight of the batch that is not a number': ('weights', NAN, (1, 2), 'batch/weights is not finite'),
    'an infinite weight of the batch': ('weights', INF, (0, 0), 'batch/weights is not finite'),
    'weights whose sum overflows': ('weights', LARGEST, ..., 'its loss is not finite'),
    'memory that is not a number': ('carry/states_BNMD', NAN, ..., 'carry/states_BNMD is not finite'),
    'infinite memory of one row': ('carry/states_BNMD', INF, 2, 'carry/states_BNMD is not finite'),
    'memory that overflows a layer': ('carry/states_BNMD', LARGEST, ..., 'its loss and gradient/.* are not finite'),
}


@pytest.mark.parametrize('case', SKIPPED.values(), ids=SKIPPED)
def test_a_step_that_reads_it_is_skipped_counted_and_named(remembering, tmp_path, monkeypatch, case):
    name, value, place, reason = case
    saved, lines = take_steps(remembering, tmp_path, monkeypatch, name, value, place)
    (line,) = [line for line in lines.said if 'skipped' in line]
    assert re.fullmatch(f'step {STEP + 1} skipped: {reason}', line)
    assert lines.skipped == [0, 0, 1, 1] and saved.steps == [2, 4, 6, 8]


# Arrays that stay in the state: array, value, place, and the array that the run's last line names.
LAYER = 'stack/layers'
STOPPED = {
    'a first moment': (f'mu/{LAYER}/attention/query/kernel', NAN, 0, f'optimizer/mu/{LAYER}/attention/query/kernel'),
    'an infinite first moment': ('mu/head/tails/kernel', INF, (0, 0), 'optimizer/mu/head/tails/kernel'),
    'an infinite second moment': ('nu/embeddings/token/embedding', INF, 7, 'optimizer/nu/embeddings/token/embedding'),
    'a second moment below 0': (f'nu/{LAYER}/attention/out/bias', -1.0, 0, f'params/{LAYER}/attention/out/bias'),
    'a parameter that its update makes overflow': ('mu/norm/bias', LARGEST, 3, 'params/norm/bias'),
    'the row of a token': ('params/embeddings/token/embedding', NAN, ord('a'), 'params/embeddings/token/embedding'),
    'the row of no token': ('params/embeddings/token/embedding', NAN, 0, 'params/embeddings/token/embedding'),
    'a normalisation': (f'params/{LAYER}/attention_norm/scale', INF, 0, f'params/{LAYER}/attention_norm/scale'),
    'queries': (f'params/{LAYER}/attention/query/kernel', NAN, 0, f'params/{LAYER}/attention/query/kernel'),
    'a feed-forward layer': (f'params/{LAYER}/feed_forward/up/bias', -INF, 0, f'params/{LAYER}/feed_forward/up/bias'),
    'the projection of distances': (
        f'params/{LAYER}/attention/distances/projection/kernel',
        NAN,
        0,
        f'params/{LAYER}/attention/distances/projection/kernel',
    ),
    'the bias of distances': ('params/stack/position_bias/distance', NAN, 0, 'params/stack/position_bias/distance'),
    'the clusters of the adaptive softmax': ('params/head/tails/kernel', NAN, (0, 0), 'params/head/tails/kernel'),
}


@pytest.mark.parametrize('case', STOPPED.values(), ids=STOPPED)
def test_a_state_with_it_ends_the_run_at_once_and_is_not_saved(remembering, tmp_path, monkeypatch, case):
    name, value, place, culprit = case
    with pytest.raises(
        NonFiniteTrainingError, match=f'^stopped at step {STEP + 1}: {culprit} is not finite; nothing of it'
    ):
        take_steps(remembering, tmp_path, monkeypatch, name, value, place)


def test_a_finite_parameter_that_spoils_every_step_ends_the_run_by_their_count(remembering, tmp_path, monkeypatch):
    line = f'^stopped at step {STEP + 3}: 3 steps in a row were skipped .* the last as its loss and gradient/'
    with pytest.raises(NonFiniteTrainingError, match=line):
        take_steps(remembering, tmp_path, monkeypatch, 'params/norm/scale', LARGEST, ...)


def test_random_features_that_are_not_finite_are_found_by_the_gradient(tmp_path, monkeypatch):
    draw = definition.draw_features
    monkeypatch.setattr(definition, 'draw_features', lambda *arguments: jnp.nan * draw(*arguments))
    run = run_of(tmp_path, {'model.attention': 'favor(8, causal=True)', 'model.max_length': 16, 'mesh.fsdp': 1})
    with pytest.raises(
        NonFiniteTrainingError, match=r'^stopped at step 3: 3 steps in a row .* gradient/\S+ is not finite'
    ):
        take_steps((run, run.init_random_state(), jit_train_step(run)), tmp_path, monkeypatch)


def test_a_run_without_any_of_it_skips_nothing(remembering, tmp_path, monkeypatch):
    saved, lines = take_steps(remembering, tmp_path, monkeypatch)
    assert lines.skipped == [0, 0, 0, 0] and saved.steps == [2, 4, 6, 8]
    assert lines.said[0] == 'compiling the training step' and lines.said[-1].startswith('compiled in ')
    assert all(
        line.startswith('attention: layer') for line in lines.said[1:-1]
    )  # none if JAX has traced the step before


def test_a_state_that_is_spoiled_after_its_step_is_not_saved(remembering, tmp_path, monkeypatch):
    """A memory fault, for example, spoils the state after the step itself has found nothing."""
    original = Trainer.log_mean_metrics

    def log_and_spoil(trainer: Trainer, number: int) -> None:
        original(trainer, number)
        _, state = trainer.queue.newest
        wrong = jnp.nan * np.asarray(state.params['norm']['scale'])
        state.params['norm']['scale'] = jax.device_put(wrong, state.params['norm']['scale'].sharding)

    monkeypatch.setattr(Trainer, 'log_mean_metrics', log_and_spoil)
    with pytest.raises(NonFiniteTrainingError, match='^stopped at step 2: params/norm/scale is not finite'):
        take_steps(remembering, tmp_path, monkeypatch)


def test_held_out_numbers_that_are_not_finite_are_named_and_are_not_the_best(remembering, tmp_path, monkeypatch):
    run, state, _ = remembering
    monkeypatch.setattr(Evaluation, 'metrics', lambda *_, **__: {'causal_lm_loss': NAN, 'causal_lm_accuracy': 0.5})
    lines = Lines(tmp_path)
    trainer = Trainer(unguarded(run, state, Saved(), lines))
    trainer.patience.add_evaluation(trainer.evaluate(2, state))
    assert lines.said[-1] == 'step 2 held out: not finite, and never the best: causal_lm_loss'
    assert not trainer.patience.is_best


# ---- positions and names of arrays ----


def test_the_first_of_several_is_named_and_whole_numbers_are_none():
    tree = {'a': np.arange(3), 'b': np.ones(2), 'c': np.array([1.0, INF]), 'd': np.float32(NAN)}
    assert array_names(tree) == ['b', 'c', 'd']
    assert first_nonfinite_index(tree) == 1 and not is_finite(tree)
    assert first_nonfinite_index({'a': np.arange(3)}) == first_nonfinite_index(None) == -1 and is_finite(None)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.parametrize('value', [NAN, INF, -INF])
def test_every_kind_of_number_counts(dtype: str, value: float):
    assert not is_finite(jnp.array([0.0, value], dtype)) and is_finite(jnp.array([0.0, 1.0], dtype))


def test_moments_are_looked_at_together_with_their_parameter_and_alone():
    params = {'x': jnp.ones(3), 'y': {'x': jnp.ones(2)}}
    opt_state = (optax.EmptyState(), optax.adam(1e-3).init(params), {'other': jnp.ones(1), 'x': jnp.ones(4)})
    assert is_state_finite(params, opt_state)
    for place in range(len(leaves := jax.tree.leaves((params, opt_state)))):
        if jnp.issubdtype(leaves[place].dtype, jnp.floating):
            bad = [leaf * jnp.nan if number == place else leaf for number, leaf in enumerate(leaves)]
            assert not is_state_finite(*jax.tree.unflatten(jax.tree.structure((params, opt_state)), bad))


def test_the_numbers_of_a_chain_are_no_part_of_a_name():
    state = optax.chain(optax.clip(1.0), optax.adam(1e-3)).init({'x': {'1': jnp.ones(2)}})
    assert array_names(StateArraysForNanCheck(state, None, None)) == ['optimizer/mu/x/1', 'optimizer/nu/x/1']
