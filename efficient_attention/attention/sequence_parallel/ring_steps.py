"""Plans the steps of ring attention: which block of queries and keys each device computes,
and which device sends its keys to which.

Rows are cut into as many equal shares as there are devices. In a step of shift r, each device computes its queries with
the keys of the device r places before it. A block of a query share and a key share without any allowed pair is neither
sent nor computed. A step without any block is left out.
"""

import dataclasses
from collections.abc import Callable, Hashable

Block = tuple[int, int]  # index of a share of the queries, index of a share of the keys
# A `Kind` returns the label of a block's program, or None if the block has nothing to compute.
Kind = Callable[[int, int], Hashable | None]


@dataclasses.dataclass(frozen=True, eq=False)
class RingStep:
    """One step of ring attention: the block that each device computes, and the keys that devices send.

    Args:
        sends: (from, to) for each device that receives keys.
        is_relayed: whether devices send the keys that they received in the step before; else their own keys.
        returns: (reader, owner) of the keys, along which the keys' gradients go back.
        blocks: one block for each program; devices with blocks of one kind share a program.
        programs: for each device, the index of its program; len(blocks) means nothing to compute.
    """

    sends: tuple[tuple[int, int], ...]
    is_relayed: bool
    returns: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    programs: tuple[int, ...]


def make_ring_steps(count: int, kind: Kind) -> tuple[RingStep, ...]:
    """Returns the steps of ring attention on `count` devices; each device holds one share
    of the queries and one share of the keys.

    Keys travel from neighbour to neighbour, half of the way around forwards and the other half backwards. If a device's
    neighbour did not receive the keys, the owner sends them.
    """
    steps: list[RingStep] = []
    # the shift of the previous step, and the devices that received keys in that step
    before = 0, frozenset(range(count))
    for shift in [*range(count // 2 + 1), *range(count - 1, count // 2, -1)]:
        blocks = {query: (query, (query - shift) % count) for query in range(count)}
        readers = frozenset(query for query, block in blocks.items() if kind(*block) is not None)
        if not readers:
            continue
        way = 1 if shift <= count // 2 else -1
        is_next = before[0] == (shift - way) % count and abs(shift - way) % count != 0
        is_relayed = is_next and all((reader - way) % count in before[1] for reader in readers)
        sends = tuple(((reader - way if is_relayed else reader - shift) % count, reader) for reader in sorted(readers))
        returns = tuple((reader, (reader - shift) % count) for reader in sorted(readers))
        steps.append(
            RingStep(sends if shift else (), is_relayed, returns if shift else (), *group_devices_by_kind(blocks, kind))
        )
        before = shift, readers
    return tuple(steps)


def make_local_step(blocks: dict[int, Block], kind: Kind) -> RingStep:
    """Returns the single step of ring attention for devices that already hold all keys that their queries read, so that
    no keys are sent. `blocks` maps each device to the block that it computes.
    """
    return RingStep((), False, (), *group_devices_by_kind(blocks, kind))


def group_devices_by_kind(blocks: dict[int, Block], kind: Kind) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Returns one representative block per kind of block, and for each device the index of its block's kind."""
    kinds = {device: kind(*block) for device, block in blocks.items()}
    different = list(dict.fromkeys(one for one in kinds.values() if one is not None))
    stand_ins = tuple(next(blocks[device] for device in blocks if kinds[device] == one) for one in different)
    numbers = {one: number for number, one in enumerate(different)}
    return stand_ins, tuple(len(different) if one is None else numbers[one] for one in kinds.values())
