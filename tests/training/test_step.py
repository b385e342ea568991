"""Tests one training step: the result is the same in any number of micro-batches, and a step that is not finite does no
harm.

tests/test_partitioned_programs.py tests that the result is the same on any mesh.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.objectives.bert_pretraining import Pretraining
from efficient_attention.objectives.objective import Batch, Objective, Sums, total_loss
from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer
from efficient_attention.training.state import initial_state, step_array_names
from efficient_attention.training.step import (
    RowsWithRandomKeys,
    accumulate_micro_batches,
    make_train_step,
    merge_micro_batches,
    row_keys,
    split_into_micro_batches,
)
from efficient_attention.training.step_extensions import FrozenParams
from tests.training.tiny_batch import random_batch

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts

CONFIG = ModelConfig(
    width=16, heads=4, vocab_size=24, layers=2, max_length=12, dropout_rate=0.3, attention_dropout_rate=0.3
)
OBJECTIVE = Pretraining(has_pairs=True)
BATCH = random_batch(rows=16, length=12, vocabulary=24, predictions=8)
EQUAL = {'rtol': 1e-5, 'atol': 1e-5}  # stricter than tests/tolerances.py: only the order of sums differs


def graph_of(model: nnx.Module) -> nnx.GraphDef:
    return nnx.split(model)[0]


@functools.cache
def model() -> tuple[nnx.GraphDef, dict]:
    """Returns the model's graph and its parameters, which are all random, biases and scales included."""
    abstract = nnx.eval_shape(lambda: PretrainingModel(CONFIG, has_pairs=True, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    rng = np.random.default_rng(1)
    params = nnx.to_pure_dict(state)
    return graph, jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32), params)


@functools.cache
def compiled(micro_batches: int) -> Callable:
    graph = model()[0]

    def gradients(params: dict, batch: Batch, seed: int) -> tuple:
        weights, key = OBJECTIVE.weights(batch), jax.random.key(seed)

        def loss_of(params: dict, rows: RowsWithRandomKeys) -> tuple[jax.Array, tuple[Sums, None]]:
            sums, _ = OBJECTIVE.sums(nnx.merge(graph, params), rows.batch, None, rows.keys_B)
            return total_loss(sums, weights), (sums, None)

        gradient = jax.value_and_grad(loss_of, has_aux=True)
        gradient = gradient if micro_batches == 1 else accumulate_micro_batches(gradient, micro_batches)
        (loss, (sums, _)), found = gradient(params, RowsWithRandomKeys(batch, row_keys(key, batch), None))
        return (loss, sums), found

    return jax.jit(gradients)


def loss_and_gradients(params: dict, batch: Batch, micro_batches: int = 1) -> tuple:
    """Returns loss, sums and gradients with dropout on."""
    return jax.device_get(compiled(micro_batches)(params, batch, 3))


@functools.cache
def expected() -> tuple:
    return loss_and_gradients(model()[1], BATCH)


def assert_equal(actual: tuple, expected: tuple) -> None:
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, **EQUAL), actual, expected)


def test_micro_batches_of_very_different_weight_equal_the_whole():
    parts = np.asarray(split_into_micro_batches(BATCH['masked_weights'], 4)).sum(axis=(1, 2))
    assert parts.max() > 2 * parts.min()
    assert_equal(loss_and_gradients(model()[1], BATCH, 4), expected())


def test_a_micro_batch_without_any_weight_changes_nothing():
    is_odd = np.arange(16, dtype=np.float32) % 2  # only the second and the last of four micro-batches have weights
    batch = dict(BATCH)
    batch['masked_weights'] = np.asarray(BATCH['masked_weights']) * is_odd[:, None]
    batch['pair_weights'] = np.asarray(BATCH['pair_weights']) * is_odd
    assert_equal(loss_and_gradients(model()[1], batch, 4), loss_and_gradients(model()[1], batch))


def test_each_part_takes_every_nth_row():
    assert split_into_micro_batches(np.arange(6), 2).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert merge_micro_batches(split_into_micro_batches(np.arange(6), 2)).tolist() == [0, 1, 2, 3, 4, 5]


# Losses of the first three steps, recorded with jax 0.10.2 on a CPU; jax 0.12 gives equal ones.
GOLDEN_LOSSES = [4.31478, 4.286495, 3.994079]


def test_golden_steps():
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.01, warmup_steps=2), 10, stacked=None)
    step = jax.jit(make_train_step(model()[0], OBJECTIVE, optimizer, micro_batches=1))
    state = jax.jit(lambda params: initial_state(params, optimizer, seed=5))(model()[1])
    losses = []
    for _ in GOLDEN_LOSSES:
        state, metrics = step(state, BATCH)
        losses.append(float(metrics['loss']))
    np.testing.assert_allclose(losses, GOLDEN_LOSSES, rtol=1e-5)
    assert int(state.step) == 3


# ---- steps that are not finite, on a model with one number ----


class Line(nnx.Module):
    """A model with one parameter: y = slope x."""

    def __init__(self) -> None:
        self.slope = nnx.Param(jnp.float32(2.0))


@dataclasses.dataclass(frozen=True)
class Roots(Objective):
    """An objective: the sum of sqrt(slope x), whose gradient at 0 is infinite although its value is 0."""

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {'root': batch['weights'].sum()}

    def sums(self, model, batch, carry, rng, step=0):
        del rng, step
        return {'root': {'loss': (jnp.sqrt(model.slope[...] * batch['x']) * batch['weights']).sum()}}, carry


def batch_of(*x: float, weight: float = 1.0) -> Batch:
    return {'x': np.float32(x), 'weights': np.full(len(x), weight, np.float32)}


@functools.cache
def line() -> tuple:
    optimizer = optax.adam(0.1)
    params = {'slope': jnp.float32(2.0)}
    step = jax.jit(make_train_step(graph_of(Line()), Roots(), optimizer))
    return step, initial_state(params, optimizer, seed=0)


# The batch that a step reads, and the array that is reported as not finite.
NOT_FINITE = {
    'an infinite weight': (batch_of(1.0, 4.0, weight=np.inf), 'batch/weights'),
    'a value that is not a number': (batch_of(1.0, np.nan), 'batch/x'),
    'an infinite gradient of a finite loss': (batch_of(0.0, 0.0), 'gradient/slope'),
}


@pytest.mark.parametrize('case', NOT_FINITE.values(), ids=NOT_FINITE)
def test_a_step_that_is_not_finite_changes_nothing_but_the_counters(case: tuple):
    batch, found = case
    step, start = line()
    before, good = step(start, batch_of(1.0, 4.0))
    after, metrics = step(before, batch)
    assert (good['cause'], good['is_spoiled'], good['skipped']) == (-1, False, 0)
    assert not np.isfinite(metrics['loss']) or not np.isfinite(metrics['gradient_norm'])
    rest = [(state.params, state.opt_state, state.key) for state in (after, before)]
    jax.tree.map(np.testing.assert_array_equal, *rest)
    assert (after.step, after.skipped, after.skipped_in_row) == (2, 1, 1)
    assert (metrics['skipped'], metrics['skipped_in_row'], metrics['is_spoiled']) == (1, 1, False)
    assert step_array_names(batch, after)[metrics['cause']] == found


def test_a_finite_gradient_whose_norm_overflows_changes_nothing_either():
    step, _ = line()
    params = {'slope': jnp.full(2, 1e-20)}
    start = initial_state(params, optax.adam(0.1), seed=0)
    after, metrics = step(start, batch_of(1e20, 1e20))
    assert np.isfinite(metrics['loss']) and np.isinf(metrics['gradient_norm'])
    assert (after.skipped, metrics['cause'], metrics['is_spoiled']) == (1, -1, False)
    jax.tree.map(np.testing.assert_array_equal, (after.params, after.opt_state), (params, start.opt_state))


def test_poisoned_parameters_are_left_as_they_are():
    step, start = line()
    poisoned = dataclasses.replace(start, params={'slope': jnp.float32(np.nan)})
    after, metrics = step(poisoned, batch_of(1.0))
    assert np.isnan(after.params['slope']) and after.skipped == 1 and metrics['is_spoiled']
    jax.tree.map(np.testing.assert_array_equal, after.opt_state, start.opt_state)


def test_the_count_in_a_row_starts_again_after_a_good_step():
    step, state = line()
    good, bad = batch_of(1.0, 4.0), batch_of(np.inf, 1.0)
    counts = []
    for batch in (bad, bad, good, bad, good, good):
        state, _ = step(state, batch)
        counts.append((int(state.skipped), int(state.skipped_in_row)))
    assert counts == [(1, 1), (2, 2), (2, 0), (3, 1), (3, 0), (3, 0)]


def test_a_run_with_a_skipped_step_goes_on_as_if_it_had_not_been():
    step, start = line()
    state = start
    for batch in (batch_of(1.0), batch_of(np.nan), batch_of(9.0)):
        state, _ = step(state, batch)
    other = start
    for batch in (batch_of(1.0), batch_of(9.0)):
        other, _ = step(other, batch)
    jax.tree.map(np.testing.assert_array_equal, (state.params, state.opt_state), (other.params, other.opt_state))


@functools.cache
def descent(micro_batches: int) -> tuple:
    """Returns a step of plain gradient descent, and its first state."""
    optimizer = optax.sgd(1.0)
    step = jax.jit(make_train_step(graph_of(Line()), Roots(), optimizer, micro_batches=micro_batches))
    return step, initial_state({'slope': jnp.float32(2.0)}, optimizer, seed=0)


@pytest.mark.parametrize('weight', [0.125, 0.5, 3.0])
@pytest.mark.parametrize('micro_batches', [1, 2])
def test_loss_and_gradient_are_means_by_all_weights_however_small(weight: float, micro_batches: int):
    """Halving all weights changes neither loss nor gradient; plain gradient descent shows the gradient in its
    update.
    """
    step, state = descent(micro_batches)
    batch = {'x': np.float32([2.0, 8.0]), 'weights': np.float32([weight * 3.0, weight])}
    after, metrics = step(state, batch)
    loss, gradient = (3 * 2.0 + 1 * 4.0) / 4, (3 * 2.0 + 1 * 4.0) / 4 / (2 * 2.0)  # d sqrt(s x) / ds = sqrt(x / s) / 2
    np.testing.assert_allclose([metrics['loss'], metrics['root_loss']], loss, rtol=1e-6)
    np.testing.assert_allclose([metrics['gradient_norm'], 2.0 - after.params['slope']], gradient, rtol=1e-6)


# ---- the carry that a step passes to the next ----


class Totals(Roots):
    """An objective whose carry adds up the inputs of each row; the loss reads the carry."""

    def initial_carry(self, rows: int) -> jax.Array:
        return jnp.zeros(rows)

    def sums(self, model, batch, carry, rng, step=0):
        del rng, step
        carry = carry + batch['x']
        return {'root': {'loss': (model.slope[...] * carry * batch['weights']).sum()}}, carry


@pytest.mark.parametrize('micro_batches', [1, 2])
def test_each_row_gets_what_it_handed_on(micro_batches: int):
    optimizer = optax.sgd(0.0)
    step = jax.jit(make_train_step(graph_of(Line()), Totals(), optimizer, micro_batches=micro_batches))
    state = initial_state({'slope': jnp.float32(2.0)}, optimizer, 0, Totals().initial_carry(4))
    losses = []
    for batch in (batch_of(1.0, 2.0, 3.0, 4.0), batch_of(10.0, 20.0, 30.0, 40.0)):
        state, metrics = step(state, batch)
        losses.append(float(metrics['loss']))
    assert state.carry.tolist() == [11, 22, 33, 44]
    assert losses == [2 * 10 / 4, 2 * 110 / 4]


def test_a_step_that_is_not_finite_hands_nothing_on():
    optimizer = optax.sgd(0.0)
    step = jax.jit(make_train_step(graph_of(Line()), Totals(), optimizer))
    state = initial_state({'slope': jnp.float32(2.0)}, optimizer, 0, Totals().initial_carry(2))
    state, _ = step(state, batch_of(1.0, np.inf))
    assert state.skipped == 1 and state.carry.tolist() == [0, 0]


def test_a_carry_that_is_not_finite_makes_a_step_be_skipped_though_its_loss_is():
    """The loss does not read the carry here."""

    class Keeps(Totals):
        def sums(self, model, batch, carry, rng, step=0):
            sums, _ = super().sums(model, batch, jnp.zeros_like(carry), rng, step)
            return sums, carry * batch['x']

    optimizer = optax.sgd(0.5)
    step = jax.jit(make_train_step(graph_of(Line()), Keeps(), optimizer))
    start = initial_state({'slope': jnp.float32(2.0)}, optimizer, 0, jnp.full(2, 3e38))
    after, metrics = step(start, batch_of(1.0, 4.0))
    assert np.isfinite(metrics['loss']) and after.skipped == 1 and not metrics['is_spoiled']
    assert step_array_names(batch_of(1.0), after)[int(metrics['cause'])] == 'new_carry'
    assert after.carry.tolist() == [0, 0] and after.params['slope'] == 2.0


def test_frozen_parameters_get_the_updates_of_zero_gradients_and_cost_no_backward_pass():
    graph, params = model()
    fields = OptimizerConfig(learning_rate=0.1, warmup_steps=0, schedule='constant', frozen=('^encoder/',))
    optimizer = make_optimizer(fields, 10, stacked=STACKED_LAYERS)
    state = jax.jit(lambda params: initial_state(params, optimizer, 0))(params)
    found, costs = [], []
    for parts in ((), (FrozenParams(fields.frozen),)):
        step = jax.jit(make_train_step(graph, OBJECTIVE, optimizer, parts=parts)).lower(state, BATCH).compile()
        found.append(step(state, BATCH)[0].params)
        costs.append(step.cost_analysis()['flops'])
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, **EQUAL), *found)
    jax.tree.map(np.testing.assert_array_equal, found[1]['encoder'], params['encoder'])
    assert costs[1] < 0.75 * costs[0]
