"""Finds the collectives in a compiled program: their number, their mesh axes, and the bytes that a device sends."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from efficient_attention.planning.hlo_program import ExecutedInstruction, HloProgram, Shape

_LISTED = re.compile(r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}')
_IOTA = r'\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?'
_IOTA_GROUPS = re.compile(rf'replica_groups={_IOTA}')
_MESH_GROUPS = re.compile(rf'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}')

KINDS = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute', 'collective-broadcast')
# The TPU compiler represents a reduce-scatter as a fusion of an all-reduce and the slice that a device keeps.
SCATTER = 'all-reduce-scatter'


@dataclasses.dataclass(frozen=True)
class CollectiveTotal:
    """The total of all collectives of one kind, such as all-reduce, over the same mesh axes in one training step."""

    kind: str
    axes: str  # names of the mesh axes, joined by '+'
    count: int
    sent_bytes: float  # bytes that one device sends


@dataclasses.dataclass(frozen=True)
class CollectiveInstruction:
    """One collective instruction, such as an all-reduce, of a compiled program; several devices execute it together.

    Its `members` exchange data along `axes` of the mesh. Each member contributes `operands` and receives `results`,
    `times` times per call of the program.
    """

    kind: str
    axes: str  # names of the mesh axes, joined by '+'
    members: int
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    times: int

    @property
    def sent_bytes(self) -> float:
        """The bytes that one device sends for this collective in one call of the program."""
        return self.times * sent_bytes(self.kind, sum(shape.unpadded_bytes for shape in self.operands), self.members)


def collectives_of(program: HloProgram, mesh_shape: Mapping[str, int]) -> list[CollectiveTotal]:
    """Returns the totals of a program's collectives per kind and mesh axes, sorted by sent bytes, largest first."""
    found: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for one in find_collectives(program.executed_instructions(), mesh_shape):
        count, sent = found[one.kind, one.axes]
        found[one.kind, one.axes] = count + one.times, sent + one.sent_bytes
    collectives = [CollectiveTotal(*key, *value) for key, value in found.items()]
    return sorted(collectives, key=lambda collective: -collective.sent_bytes)


def find_collectives(
    runs: Iterable[ExecutedInstruction], mesh_shape: Mapping[str, int]
) -> Iterator[CollectiveInstruction]:
    """Yields each collective instruction of a program once, with the mesh axes along which it communicates.

    The compiler may split one collective over several computations, to overlap it with others. It is then yielded once.
    """
    seen: set[tuple[str, str]] = set()
    for run in runs:
        kind = collective_kind(run)
        if kind is None or is_duplicate_collective(run, seen):
            continue
        groups = communication_groups(run.instruction.attributes, math.prod(mesh_shape.values()))
        if groups.shape[1] > 1:
            operands = run.operand_shapes()
            yield CollectiveInstruction(
                kind,
                mesh_axes_of_groups(groups, mesh_shape),
                groups.shape[1],
                operands,
                collective_result_shapes(run),
                run.times,
            )


def collective_result_shapes(run: ExecutedInstruction) -> tuple[Shape, ...]:
    """Returns the shapes of a collective's results, without the operands that a '-start' instruction lists first."""
    shapes, operands = run.instruction.shapes, len(run.operand_shapes())
    has_operands = run.instruction.opcode.endswith('-start') and len(shapes) > operands
    return shapes[operands:] if has_operands else shapes


def collective_kind(run: ExecutedInstruction) -> str | None:
    """Returns the kind of a collective, such as 'all-gather'; None if the instruction does not start a collective.

    The end of an asynchronous collective does not count, because its '-start' instruction is already counted.
    """
    kind = run.instruction.opcode.removesuffix('-start')
    if kind not in KINDS:
        return None
    return 'reduce-scatter' if kind == 'all-reduce' and SCATTER in run.name else kind


def is_duplicate_collective(run: ExecutedInstruction, seen: set[tuple[str, str]]) -> bool:
    """Returns whether a fused instruction belongs to a collective that was already counted; if not, records the
    collective as counted.

    The compiler may split a collective over several fusions; these instructions have the same channel id. Outside of
    fusions, different collectives may have the same channel id, as all collectives inside `jax.shard_map` do.
    """
    channel = re.search(r'channel_id=(\d+)', run.instruction.attributes)
    if channel is None or not run.is_fused:
        return False
    key = run.scope, channel[1]
    if key in seen:
        return True
    seen.add(key)
    return False


def sent_bytes(kind: str, operand_bytes: float, members: int) -> float:
    """Returns the bytes that each of several devices sends for a collective over a ring.

    Args:
        kind: the kind of the collective.
        operand_bytes: size of one device's operands.
        members: number of devices in the ring.
    """
    share = (members - 1) / members
    factors = {'all-gather': members - 1, 'all-reduce': 2 * share, 'reduce-scatter': share, 'all-to-all': share}
    return operand_bytes * factors.get(kind, 1)


def communication_groups(attributes: str, devices: int) -> np.ndarray:
    """Returns the groups of devices that communicate in a collective, int [groups, members].

    For a permutation, each group is a pair (sender, receiver). XLA writes groups as a list, as a reshaped and
    transposed range, or as axes of a mesh.
    """
    if listed := _LISTED.search(attributes):
        groups = [[int(device) for device in group.split(',')] for group in re.findall(r'\{([\d,]+)\}', listed[1])]
        return np.array([group for group in groups if len(set(group)) > 1] or [[0]])
    if ranged := _IOTA_GROUPS.search(attributes):
        return parse_iota_groups(*ranged.groups())
    if named := _MESH_GROUPS.search(attributes):
        return parse_mesh_groups(*named.groups())
    return np.arange(devices)[None]


def parse_iota_groups(sizes: str, reshaped: str | None, transposed: str | None) -> np.ndarray:
    """Returns the device ids that XLA writes as a reshaped and transposed range, such as [4,2]<=[2,4]T(1,0).

    The general forms are [sizes]<=[reshaped]T(transposed) and [reshaped]T(transposed).
    """
    shape = parse_integers(sizes)
    if reshaped is None:
        array = np.arange(int(np.prod(shape))).reshape(shape)
        return array.transpose(parse_integers(transposed)) if transposed else array
    array = np.arange(int(np.prod(shape))).reshape(parse_integers(reshaped))
    return (array.transpose(parse_integers(transposed)) if transposed else array).reshape(shape)


def parse_mesh_groups(
    mesh: str, sizes: str | None, reshaped: str | None, transposed: str | None, axes: str
) -> np.ndarray:
    """Returns the device groups of a collective that XLA describes by the axes of a mesh.

    XLA writes the mesh as 'name'=size, .... Without device ids, the ids are a range. A group may extend over a part
    of a mesh axis, written as 'name':(before)size, where `before` is the size of the parts of that axis before this
    part.
    """
    shape = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    total = int(np.prod(list(shape.values())))
    ids = (np.arange(total) if sizes is None else parse_iota_groups(sizes, reshaped, transposed)).reshape(
        list(shape.values())
    )
    parts: list[int] = []
    chosen: list[int] = []
    wanted = {
        name: (int(before or 1), int(size or 0))
        for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", axes)
    }
    for name, size in shape.items():
        before, length = wanted.get(name, (size, 1))
        length = length or size
        chosen += [len(parts) + 1] if name in wanted else []
        parts += [before, length, size // (before * length)]
    split = ids.reshape(parts)
    rest = [place for place in range(len(parts)) if place not in chosen]
    return split.transpose([*rest, *chosen]).reshape(-1, int(np.prod([parts[place] for place in chosen])))


def mesh_axes_of_groups(groups: np.ndarray, mesh_shape: Mapping[str, int]) -> str:
    """Returns the names of the mesh axes along which the devices of a group differ, such as 'data+fsdp'."""
    # The mesh coordinates of each device have the shape [groups, members, axes].
    places = np.stack(np.unravel_index(groups, list(mesh_shape.values())), axis=-1)
    differs = (places != places[:, :1]).any(axis=(0, 1))
    return '+'.join(name for name, is_axis in zip(mesh_shape, differs, strict=True) if is_axis)


def parse_integers(text: str) -> tuple[int, ...]:
    """Returns the integers of a comma-separated text."""
    return tuple(int(number) for number in text.split(',') if number)
