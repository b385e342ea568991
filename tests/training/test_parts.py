"""Which parts join a step: none of a plain run, and of others those that its state and config ask for."""

from typing import Any

import jax.numpy as jnp
import optax

from efficient_attention.training.parts import ExtraArrays, Frozen, Pruning, RunningMeans, StepPart, parts_of
from efficient_attention.training.state import TrainState, initial_state

PLAIN = {'encoder': {'kernel': jnp.ones(2)}}


def state_of(params: Any, beside: Any = None) -> TrainState:
    return initial_state(params, optax.sgd(1.0), seed=0, beside=beside)


def test_a_plain_run_has_no_parts():
    assert parts_of(state_of(PLAIN)) == ()


def test_each_kind_joins_in_its_order():
    params = PLAIN | {'learned': {'running_means': {'points': jnp.ones((1, 3))}}}
    pruner: Any = object()
    found = parts_of(state_of(params, beside={'kernel': jnp.ones(2)}), frozen=('encoder',), pruner=pruner)
    assert list(map(type, found)) == [Frozen, ExtraArrays, Pruning, RunningMeans]
    assert [type(part) for part in parts_of(state_of(params))] == [RunningMeans]


def test_a_part_changes_only_what_it_overrides():
    part, loss = StepPart(), jnp.float32(2.0)
    objective: Any = object()
    state = state_of(PLAIN)
    choice = part.begin(state, state.key)
    assert choice is None and part.inside(PLAIN, objective, choice) == (PLAIN, objective)
    assert part.add_loss(state, loss, PLAIN) == (loss, PLAIN, {}) and part.split(PLAIN) == (PLAIN, None)
