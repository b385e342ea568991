"""Tests that softmax over rows split over devices equals one device to 1e-5, with equal dropout bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Causal, Full, Window
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import QueryKeyPair
from efficient_attention.attention.sequence_parallel.sequence_split import SequenceSplit
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.softmax.sequence_parallel import (
    digest_kept_tiles,
    merge_float_leaves,
    plan_ring_steps,
    split_float_leaves,
)
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from tests.attention.split import assert_split_equals_whole, numbers, packed, vectors

DROPOUT = {'dropout_rate': 0.3, 'dropout_rng': jax.random.key(3)}
SEGMENTS = {'query_segments': packed(16), 'key_segments': packed(16)}


def test_causal_rows_over_four_devices_by_tiles():
    options = DROPOUT | SEGMENTS | {'backend': 'blocked'}
    assert_split_equals_whole(MeshConfig(1, sequence=4), Softmax(Causal(), tile=2), vectors(16, groups=1), **options)


def test_rows_and_heads_are_split_as_well_and_a_function_adds_to_the_logits():
    slopes = numbers(np.random.default_rng(1), 2)

    def by_head(slopes: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
        return slopes[None, :, None, None] * (query - 2 * key).astype(jnp.float32)

    options, mesh = DROPOUT | SEGMENTS | {'backend': 'dense'}, MeshConfig(data=2, sequence=2, tensor=2)
    assert_split_equals_whole(mesh, Softmax(Window(5)), vectors(16), (Partial(by_head, slopes), None), **options)


def test_a_window_with_memory_and_distances():
    """As in Transformer-XL, 12 keys come before 8 queries; each of two devices has four queries and ten keys."""
    rng, memory = np.random.default_rng(2), 12
    places = np.arange(memory + 8, dtype=np.int32)[None]
    relative = Relative(numbers(rng, 2, 8, 2, 4), numbers(rng, 7, 2, 4))
    options = DROPOUT | {'query_positions': places[:, memory:], 'key_positions': places}
    assert_split_equals_whole(
        MeshConfig(1, sequence=2), Softmax(Causal() & Window(11)), vectors(8, memory), (None, relative), **options
    )


def test_global_tokens_and_a_bias_for_each_pair():
    pattern = parse_pattern('window(2) | global_tokens(1, 1)')
    bias = numbers(np.random.default_rng(3), 1, 2, 16, 16)
    assert_split_equals_whole(
        MeshConfig(1, sequence=2), Softmax(pattern, tile=2), vectors(16), (bias, None), backend='dense', **SEGMENTS
    )


@pytest.mark.parametrize('devices', [2, 4, 8, 16])
@pytest.mark.parametrize('width', [15, 64, 100, 10_000])
def test_a_causal_window_takes_as_many_steps_as_it_reaches_shares(width: int, devices: int):
    share = 1024 // devices
    steps = plan_ring_steps(
        (Causal() & Window(width),), QueryKeyPair(0, 0), SequenceSplit(devices, 1024, 1024), 64, False
    )
    assert len(steps) == min(devices, -(-width // share) + 1)


def test_devices_whose_blocks_keep_the_same_tiles_share_a_program():
    split = SequenceSplit(4, 256, 256)
    assert [len(step.blocks) for step in plan_ring_steps((Causal(),), QueryKeyPair(0, 0), split, 16, True)] == [
        1,
        1,
        1,
        1,
    ]
    assert [len(step.blocks) for step in plan_ring_steps((Full(),), QueryKeyPair(0, 0), split, 16, False)] == [
        1,
        1,
        1,
        1,
    ]
    # Where a relative term depends on the distance, blocks before a device differ from blocks after it.
    assert [len(step.blocks) for step in plan_ring_steps((Full(),), QueryKeyPair(0, 0), split, 16, True)] == [
        1,
        2,
        2,
        2,
    ]


def test_kept_tiles_tell_blocks_apart_by_what_they_keep():
    first = digest_kept_tiles(Causal(), 32, 32, 16, 16, 4)
    assert first == digest_kept_tiles(Causal(), 64, 64, 16, 16, 4)
    assert first[0] and first != digest_kept_tiles(Causal(), 64, 32, 16, 16, 4)
    assert not digest_kept_tiles(Causal(), 0, 16, 16, 16, 4)[0]


def test_whole_numbers_are_kept_apart_and_put_back():
    leaves = [jnp.ones(2), jnp.arange(3), jnp.zeros(())]
    floats, others = split_float_leaves(leaves)
    assert [leaf is None for leaf in floats] == [False, True, False]
    assert all(left is right for left, right in zip(merge_float_leaves(floats, others), leaves, strict=True))


def test_memory_of_a_device_falls_with_their_number():
    """At 2,048 tokens a device keeps its share, and the keys of at most two other devices."""

    def both(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple:
        out, pull = jax.vjp(lambda *x: attend(*x, Softmax(Causal() & Window(64)), backend='blocked'), query, key, value)
        return out, pull(out)

    def temporary(devices: int) -> int:
        mesh = make_mesh(MeshConfig(sequence=devices), jax.devices()[:devices])
        tokens = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, 'sequence'))
        x = jax.ShapeDtypeStruct((1, 2048, 2, 16), jnp.float32, sharding=tokens)
        return jax.jit(using_mesh(mesh)(both)).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    assert temporary(8) < 0.5 * temporary(2)
