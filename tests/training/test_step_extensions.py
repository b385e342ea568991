"""Tests which extensions join a step: none for a plain run, else those that its state and config require."""

from typing import Any

import jax.numpy as jnp
import optax
import pytest

from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.training.step_extensions import (
    FrozenParams,
    ObjectiveParams,
    PruningMasks,
    RunningMeans,
    StepExtension,
    build_step_extensions,
    check_extensions_cover_state,
)

PLAIN = {'encoder': {'kernel': jnp.ones(2)}}
WITH_MEANS = PLAIN | {'learned': {'running_means': {'points': jnp.ones((1, 3))}}}


def state_of(params: Any, beside: Any = None, scores: Any = None) -> TrainState:
    return initial_state(params, optax.sgd(1.0), seed=0, beside=beside, scores=scores)


def test_a_plain_run_has_no_parts():
    assert build_step_extensions(state_of(PLAIN)) == ()


def test_each_kind_joins_in_its_order():
    pruner: Any = object()
    found = build_step_extensions(
        state_of(WITH_MEANS, beside={'kernel': jnp.ones(2)}), frozen=('encoder',), pruner=pruner
    )
    assert list(map(type, found)) == [FrozenParams, ObjectiveParams, PruningMasks, RunningMeans]
    assert [type(part) for part in build_step_extensions(state_of(WITH_MEANS))] == [RunningMeans]


@pytest.mark.parametrize(
    'state, part',
    [
        (state_of(PLAIN, beside={'kernel': jnp.ones(2)}), 'ObjectiveParams'),
        (state_of(PLAIN, scores=PLAIN), 'PruningMasks'),
        (state_of(WITH_MEANS), 'RunningMeans'),
    ],
    ids=['beside', 'scores', 'running means'],
)
def test_arrays_that_no_part_handles_are_refused(state: TrainState, part: str):
    pruner: Any = object()
    with pytest.raises(ValueError, match=f'missing: {part};'):
        check_extensions_cover_state(state, [FrozenParams(('encoder',))])
    check_extensions_cover_state(state, build_step_extensions(state, pruner=pruner if part == 'PruningMasks' else None))
    check_extensions_cover_state(state_of(PLAIN), [])


def test_a_part_changes_only_what_it_overrides():
    part, loss = StepExtension(), jnp.float32(2.0)
    objective: Any = object()
    state = state_of(PLAIN)
    choice = part.begin_step(state, state.key)
    assert choice is None and part.transform_params(PLAIN, objective, choice) == (PLAIN, objective)
    assert part.add_auxiliary_loss(state, loss, PLAIN) == (loss, PLAIN, {}) and part.split_gradients(PLAIN) == (
        PLAIN,
        None,
    )
