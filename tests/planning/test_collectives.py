"""Tests that collectives are counted by kind and mesh axes, however the compiler writes their groups."""

import numpy as np
import pytest

from efficient_attention.planning.collectives import (
    CollectiveTotal,
    collectives_of,
    communication_groups,
    find_collectives,
    mesh_axes_of_groups,
    sent_bytes,
)
from efficient_attention.planning.hlo_program import Shape, parse_program
from tests.planning.small_program import MESH, TEXT


def test_collectives_of_a_program():
    """On devices 0 to 7 the axis tensor varies fastest. The loop runs three times; the asynchronous gather counts
    once.
    """
    found = {one.kind: one for one in collectives_of(parse_program(TEXT), MESH)}
    assert found['all-reduce'] == CollectiveTotal('all-reduce', 'data', 3, 3 * 2 * 2 * 0.5 * 4 * 16 * 4)
    assert found['all-gather'] == CollectiveTotal('all-gather', 'data+fsdp', 1, 3 * 2 * 8 * 2)
    assert found['reduce-scatter'] == CollectiveTotal('reduce-scatter', 'tensor', 1, 0.5 * 8 * 16 * 4)
    assert found['collective-permute'] == CollectiveTotal('collective-permute', 'data', 1, 2 * 8 * 2)


def test_collectives_that_stand_alone_count_each_though_they_share_a_channel():
    """Collectives traced inside `jax.shard_map`, such as the turns of a ring, all share a channel."""
    (line,) = (line for line in TEXT.splitlines() if '%shifted' in line)
    twice = TEXT.replace(line, line + '\n' + line.replace('%shifted', '%shifted.1').replace('(%b)', '(%shifted)'))
    found = {one.kind: one for one in collectives_of(parse_program(twice), MESH)}
    assert found['collective-permute'] == CollectiveTotal('collective-permute', 'data', 2, 2 * 2 * 8 * 2)


def test_results_are_those_of_the_whole_collective():
    """An instruction that only starts a collective also lists its operands and internal numbers as results."""
    result = 'bf16[2,8]{1,0}'
    begins = TEXT.replace(
        f'{result} collective-permute(%b)', f'({result}, {result}, u32[]) collective-permute-start(%b)'
    )
    for text in (TEXT, begins):
        (one,) = (
            one
            for one in find_collectives(parse_program(text).executed_instructions(), MESH)
            if one.kind == 'collective-permute'
        )
        assert (one.members, one.operands, one.results[0]) == (2, (Shape('bf16', (2, 8)),), Shape('bf16', (2, 8)))
    assert 'collective-permute-start' in begins and [shape.dtype for shape in one.results] == ['bf16', 'u32']


@pytest.mark.parametrize(
    'attributes, groups',
    [
        ('replica_groups={{0,2},{1,3}}, use_global_device_ids=true', [[0, 2], [1, 3]]),
        ('replica_groups=[2,2]<=[4]', [[0, 1], [2, 3]]),
        ('replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}', [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, dimensions={1}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2], device_ids=([2,2]T(1,0)) {'axis_0'}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
        ('source_target_pairs={{0,1},{1,0},{2,2}}', [[0, 1], [1, 0]]),
        ('replica_groups={}, channel_id=1', [[0, 1, 2, 3]]),
    ],
)
def test_groups(attributes, groups):
    np.testing.assert_array_equal(communication_groups(attributes, 4), groups)


def test_axes_are_those_along_which_members_differ():
    assert mesh_axes_of_groups(np.array([[0, 4], [1, 5]]), MESH) == 'data'
    assert mesh_axes_of_groups(np.array([[0, 3], [1, 2]]), MESH) == 'fsdp+tensor'


def test_a_ring_sends_each_part_once():
    """In rings of 4 with 12 bytes each, a gather sends 3 x 12 bytes; a reduction is a scatter of 4 parts and a
    gather.
    """
    kinds = ('all-gather', 'reduce-scatter', 'all-reduce', 'all-to-all', 'collective-permute')
    assert [sent_bytes(kind, 12, 4) for kind in kinds] == [36, 9, 18, 9, 12]
