"""Tests the initial state of a run, one pytree: counters at 0, a key from the seed, moments for the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from efficient_attention.training.state import initial_state

PARAMS = {'kernel': jnp.ones((2, 3)), 'bias': jnp.zeros(3)}


def test_counters_are_int32_zeros():
    state = initial_state(PARAMS, optax.adam(1e-3), seed=7)
    for counter in (state.step, state.skipped, state.skipped_in_row):
        assert counter.dtype == jnp.int32 and counter.shape == () and counter == 0


def test_the_key_is_the_seeds_as_plain_numbers():
    keys = [initial_state(PARAMS, optax.sgd(1.0), seed).key for seed in (0, 0, 1)]
    np.testing.assert_array_equal(keys[0], keys[1])
    assert (keys[0] != keys[2]).any()
    assert keys[0].dtype == jnp.uint32
    assert jax.random.wrap_key_data(keys[2]) == jax.random.key(1)


def test_every_field_is_part_of_the_tree():
    state = initial_state(PARAMS, optax.adam(1e-3), seed=0)
    names = {jax.tree_util.keystr(path[:1]) for path, _ in jax.tree_util.tree_leaves_with_path(state)}
    assert names == {'.step', '.params', '.opt_state', '.skipped', '.skipped_in_row', '.key'}
    assert state.opt_state[0].mu.keys() == PARAMS.keys()
