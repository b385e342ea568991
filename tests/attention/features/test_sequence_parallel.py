"""Tests that attention through features gives the same result, to 1e-5, with rows split over devices as on one
device.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.features.key_sums import KeySums, combine_sums, zero_key_sums
from efficient_attention.attention.features.sequence_parallel import may_share_segment, preceding_device_sums
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.attention.sequence_parallel.sequence_split import SequenceSplit
from efficient_attention.config.mesh import MeshConfig
from tests.attention.split import assert_split_equals_whole, packed, vectors
from tests.tolerances import assert_close

RNG = jax.random.key(5)


@pytest.mark.parametrize('mechanism', [FAVOR(8, chunk=4), Linear(causal=True, chunk=2)], ids=['favor', 'causal linear'])
def test_rows_of_one_text(mechanism):
    options = {'rng': RNG} if mechanism.randomness.always else {}
    assert_split_equals_whole(MeshConfig(1, sequence=4), mechanism, vectors(16, groups=1), **options)


def test_rows_of_several_texts():
    segments = {'query_segments': packed(16), 'key_segments': packed(16)}
    assert_split_equals_whole(MeshConfig(1, sequence=2), Linear(chunk=4), vectors(16), **segments)


@pytest.mark.slow
@pytest.mark.parametrize('mechanism', [FAVOR(8, causal=True, chunk=4), Linear(causal=True, chunk=4)], ids=str)
@pytest.mark.parametrize('several', [False, True])
def test_causal_rows_with_segments(mechanism, several: bool):
    segments_BL = packed(16) if several else (packed(16) > 0).astype(jnp.int32)
    options = {'query_segments': segments_BL, 'key_segments': segments_BL}
    options |= {'rng': RNG} if mechanism.randomness.always else {}
    assert_split_equals_whole(MeshConfig(1, sequence=4), mechanism, vectors(16), **options)


def test_a_device_begins_with_the_sums_of_those_before_it():
    rng = np.random.default_rng(0)
    own = [
        KeySums(
            *(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((2, 1, 3, 4), (2, 1, 3), (2, 1, 3)))
        )
        for _ in range(4)
    ]
    mesh = jax.make_mesh((4,), ('sequence',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    stacked = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *own)
    rows = PartitionSpec('sequence')
    before = jax.jit(
        jax.shard_map(
            lambda sums: preceding_device_sums(sums, SequenceSplit(4, 8, 8)),
            mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False,
        )
    )(stacked)  # fmt: skip
    expected, total = [], zero_key_sums(2, 1, 3, 4)
    for sums in own:
        expected.append(total)
        total = combine_sums(total, sums)
    assert_close(before, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *expected))


@pytest.mark.parametrize(
    'query, key, may',
    [([1, 2], [2, 3], True), ([1, 2], [3, 0], False), ([0, 0], [0, 0], False), ([0, 3], [3, 0], True)],
)
def test_keys_of_other_segments_are_left_out(query: list[int], key: list[int], may: bool):
    assert bool(may_share_segment(jnp.asarray([query]), jnp.asarray([key]))) is may
