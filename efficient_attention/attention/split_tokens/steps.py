"""The steps in which keys go round the devices: who computes what, and from whom its keys come.

Rows are cut into as many equal shares as there are devices. In a step of shift r each device computes its queries with
the keys of the device r places before it. A block of a query share and a key share that holds no allowed pair is
neither sent nor computed, and a step without any block does not take place.
"""

import dataclasses
from collections.abc import Callable, Hashable

Block = tuple[int, int]  # numbers of a query share and of a key share
Kind = Callable[[int, int], Hashable | None]  # what has to be computed for a block; None = nothing


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What the devices do in one step.

    Args:
        sends: (from, to) for each device that gets keys.
        is_relayed: whether they send what they got in the step before; else their own keys.
        returns: (reader, owner) of the keys, along which their gradients go back.
        blocks: one for each program; devices whose blocks are of one kind share it.
        programs: of each device, the number of its program; as many as there are `blocks` = nothing to compute.
    """

    sends: tuple[tuple[int, int], ...]
    is_relayed: bool
    returns: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    programs: tuple[int, ...]


def ring_steps(count: int, kind: Kind) -> tuple[Step, ...]:
    """The steps of `count` devices, each with a share of the queries and one of the keys.

    Keys go half of the way round forwards and the other half backwards, from neighbour to neighbour; a device whose
    neighbour did not get the keys gets them from their owner.
    """
    steps: list[Step] = []
    before = 0, frozenset(range(count))  # the shift of the step before, and who has keys of it
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
        steps.append(Step(sends if shift else (), is_relayed, returns if shift else (), *programs_of(blocks, kind)))
        before = shift, readers
    return tuple(steps)


def still_step(blocks: dict[int, Block], kind: Kind) -> Step:
    """The one step of devices, by their numbers, that have all keys that they need."""
    return Step((), False, (), *programs_of(blocks, kind))


def programs_of(blocks: dict[int, Block], kind: Kind) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The block that stands for each kind among those of the devices, and the number of each device's kind."""
    kinds = {device: kind(*block) for device, block in blocks.items()}
    different = list(dict.fromkeys(one for one in kinds.values() if one is not None))
    stand_ins = tuple(next(blocks[device] for device in blocks if kinds[device] == one) for one in different)
    numbers = {one: number for number, one in enumerate(different)}
    return stand_ins, tuple(len(different) if one is None else numbers[one] for one in kinds.values())
