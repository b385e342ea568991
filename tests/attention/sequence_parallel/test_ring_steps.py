"""Tests that each block with allowed pairs is computed once, and that other blocks are neither sent nor computed."""

import pytest

from efficient_attention.attention.sequence_parallel.ring_steps import Kind, RingStep, make_local_step, make_ring_steps


def met(steps: tuple[RingStep, ...], count: int, kind: Kind) -> list[tuple[int, int]]:
    """Returns the blocks that devices compute, found by following the keys from device to device."""
    found, held = [], {device: device for device in range(count)}
    for number, step in enumerate(steps):
        own = {device: device for device in range(count)}
        source = held if step.is_relayed else own
        held = {to: source[sender] for sender, to in step.sends} if step.sends else own
        assert not step.sends or {reader: owner for reader, owner in step.returns} == held
        for device, program in enumerate(step.programs):
            if program < len(step.blocks):
                found.append((device, held[device]))
                assert kind(*step.blocks[program]) == kind(device, held[device]), number
    return found


KINDS = {
    'all': lambda *_: 'all',
    'causal': lambda query, key: ('diagonal' if query == key else 'earlier') if key <= query else None,
    'window': lambda query, key: query - key if abs(query - key) <= 1 else None,
    'global': lambda query, key: (query, key) if 0 in (query, key) or query == key else None,
    'nothing of its own': lambda query, key: 'before' if query - key == 2 else None,
}


@pytest.mark.parametrize('count', [1, 2, 5, 8])
@pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)
def test_each_block_that_holds_something_is_computed_once(kind: Kind, count: int):
    blocks = met(make_ring_steps(count, kind), count, kind)
    every = [(query, key) for query in range(count) for key in range(count)]
    assert sorted(blocks) == [block for block in every if kind(*block) is not None]


def test_keys_go_from_neighbour_to_neighbour_half_of_the_way_round_each_way():
    steps = make_ring_steps(8, KINDS['all'])
    ways = [{(to - sender) % 8 for sender, to in step.sends} for step in steps]
    assert ways == [set(), {1}, {1}, {1}, {1}, {7}, {7}, {7}]
    assert [step.is_relayed for step in steps] == [False, False, True, True, True, False, True, True]
    assert all(len(step.blocks) == 1 for step in steps)


def test_a_causal_row_sends_nothing_backwards_and_a_window_reaches_its_neighbours_alone():
    sends = [step.sends for step in make_ring_steps(4, KINDS['causal'])]
    assert sends == [(), ((0, 1), (1, 2), (2, 3)), ((1, 2), (2, 3)), ((0, 3),)]
    assert [len(step.sends) for step in make_ring_steps(8, KINDS['window'])] == [0, 7, 7]


def test_a_device_that_its_neighbour_cannot_serve_is_served_by_the_owner():
    (_, *steps) = make_ring_steps(5, KINDS['global'])
    assert all(
        sender == owner for step in steps for (sender, _), (_, owner) in zip(step.sends, step.returns, strict=True)
    )


def test_devices_that_have_all_keys_take_one_step():
    step = make_local_step({0: (0, 0), 1: (1, 0)}, lambda query, _: query or None)
    assert (step.sends, step.blocks, step.programs) == ((), ((1, 0),), (1, 0))
