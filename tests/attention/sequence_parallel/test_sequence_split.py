"""Tests whether the queries and the keys of a call are split over devices, and into which shares."""

import jax
import pytest

from efficient_attention.attention.sequence_parallel.sequence_split import SequenceSplit, make_sequence_split
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh


@pytest.mark.parametrize(
    'queries, keys, has_query_shares, has_key_shares',
    [(64, 64, True, True), (64, 96, True, True), (64, 3, True, False), (64, 4, True, False), (4, 64, False, True),
     (63, 63, False, False)],
)  # fmt: skip
def test_long_sides_that_divide_are_split(queries: int, keys: int, has_query_shares: bool, has_key_shares: bool):
    split = SequenceSplit(4, queries, keys)
    assert (split.has_query_shares, split.has_key_shares) == (has_query_shares, has_key_shares)
    assert split.queries_per_device == (queries // 4 if has_query_shares else queries)
    assert split.keys_per_device == (keys // 4 if has_key_shares else keys)


def test_the_mesh_has_the_number_of_devices():
    mesh = make_mesh(MeshConfig(sequence=2, tensor=2), jax.devices()[:4])
    assert make_sequence_split(mesh, 8, 8, heads=2) == SequenceSplit(2, 8, 8, 2)
    numbers = jax.shard_map(
        lambda: (SequenceSplit(2, 8, 8, 2).device()[None], SequenceSplit(2, 8, 8, 2).head_device_index()[None]),
        mesh=mesh, in_specs=(), out_specs=jax.sharding.PartitionSpec(('sequence', 'tensor')), check_vma=False,
    )()  # fmt: skip
    assert [x.tolist() for x in numbers] == [[0, 0, 1, 1], [0, 1, 0, 1]]
