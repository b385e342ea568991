"""Tests the context of a layer: its random keys by its number, and the positions of memory before a segment."""

import typing

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.request import CallOptions
from efficient_attention.modules.layer_context import (
    CompressedLayerMemory,
    Context,
    ContextOptions,
    LayerMemory,
    fold_into_key,
)

SEGMENTS = jnp.asarray([[1, 1, 2], [3, 0, 0]])


def test_the_options_of_a_call_are_the_fields_behind_segments_and_positions():
    """Lengths are no option, because `make_context` finds them in the segments."""
    fields, options = typing.get_type_hints(Context), typing.get_type_hints(ContextOptions)
    assert fields.pop('lengths_B') == jax.Array | None
    assert list(fields)[:2] == ['segments_BL', 'positions_BL'] and list(options) == list(fields)[2:]
    assert all(options[name] == fields[name] for name in options) and set(Context._field_defaults) == set(options) | {
        'lengths_B'
    }


def test_fold_gives_each_number_its_own_key():
    assert fold_into_key(None, 3) is None
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(0), 4)
    assert fold_into_key(key, 1) != fold_into_key(key, 2)
    data = np.asarray(jax.random.key_data(jnp.stack([fold_into_key(keys, 0), fold_into_key(keys, 1)]))).reshape(8, -1)
    assert len(np.unique(data, axis=0)) == 8


def test_a_layer_of_a_stack_gets_its_keys_and_its_memory_and_what_all_read():
    context = Context(SEGMENTS, jnp.arange(3)[None], rng=jax.random.key(1), bias=jnp.ones(3))
    memory = LayerMemory(jnp.zeros((2, 1, 4)), jnp.ones((2, 1), jnp.int32))
    second = context.layer_context(1, memory)
    assert second.rng == fold_into_key(context.rng, 1) != context.rng and second.mechanism_rng is None
    assert second.memory is memory and context.layer_context(1).memory is None
    assert second.segments_BL is SEGMENTS and second.bias is context.bias


def test_a_memory_stands_before_the_segment():
    options = LayerMemory(jnp.zeros((2, 2, 4)), jnp.asarray([[0, 1], [3, 3]])).memory_attend_options(
        CallOptions(), SEGMENTS
    )
    np.testing.assert_array_equal(options.key_segments, [[0, 1, 1, 1, 2], [3, 3, 3, 0, 0]])
    np.testing.assert_array_equal(options.key_positions, [[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(options.query_positions, [[2, 3, 4]])


def memory_of(*numbers: int) -> LayerMemory:
    """Returns a memory of one row, in which each token's vector is its segment number."""
    segments_BM = jnp.asarray([numbers], jnp.int32)
    return LayerMemory(segments_BM[..., None].astype(jnp.float32), segments_BM)


def test_slots_stand_in_front_of_the_memory_and_the_oldest_tokens_leave_it():
    memory = CompressedLayerMemory(memory_of(1, 2), memory_of(3, 4, 5))
    joined = memory.all_memory_slots()
    assert joined.segments_BM.tolist() == [[1, 2, 3, 4, 5]] and joined.states_BMD[0, :, 0].tolist() == [1, 2, 3, 4, 5]
    for segment, left in (((6, 7), [3, 4]), ((6, 7, 8), [3, 4, 5]), ((6, 7, 8, 9), [3, 4, 5, 6])):
        new = memory_of(*segment)
        leaving = memory.evicted_tokens(new.states_BMD, new.segments_BM)
        assert leaving.segments_BM.tolist() == [left] and leaving.states_BMD[0, :, 0].tolist() == left
