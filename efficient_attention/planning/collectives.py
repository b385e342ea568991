"""The collectives of a compiled program: how many, over which axes of the mesh, and the bytes that a device sends."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from efficient_attention.planning.program import Executed, Program, Shape

_LISTED = re.compile(r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}')
_IOTA = r'\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?'
_IOTA_GROUPS = re.compile(rf'replica_groups={_IOTA}')
_MESH_GROUPS = re.compile(rf'replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}')

KINDS = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute', 'collective-broadcast')
# The TPU compiler keeps a reduce-scatter as a fusion of an all-reduce and the slice that a device keeps.
SCATTER = 'all-reduce-scatter'


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind over the same axes of the mesh, in one step."""

    kind: str
    axes: str  # names joined by '+'
    count: int
    sent_bytes: float  # by one device


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One collective instruction of a program, in which several devices take part.

    `members` exchange with one another along `axes` of the mesh, of which each brings `operands` along and gets
    `results`, `times` in one call of the program.
    """

    kind: str
    axes: str  # names joined by '+'
    members: int
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    times: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sends in one call of the program."""
        return self.times * sent_bytes(self.kind, sum(shape.bytes for shape in self.operands), self.members)


def collectives_of(program: Program, mesh_shape: Mapping[str, int]) -> list[Collective]:
    """The collectives of one call of the program on a mesh, those that send most first."""
    found: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for one in exchanges(program.executed(), mesh_shape):
        count, sent = found[one.kind, one.axes]
        found[one.kind, one.axes] = count + one.times, sent + one.sent_bytes
    collectives = [Collective(*key, *value) for key, value in found.items()]
    return sorted(collectives, key=lambda collective: -collective.sent_bytes)


def exchanges(runs: Iterable[Executed], mesh_shape: Mapping[str, int]) -> Iterator[Exchange]:
    """The collectives of a mesh among the instructions of a program.

    An instruction that the compiler split over several computations, to run beside others, counts once.
    """
    seen: set[tuple[str, str]] = set()
    for run in runs:
        kind = kind_of(run)
        if kind is None or is_seen(run, seen):
            continue
        groups = groups_of(run.instruction.attributes, math.prod(mesh_shape.values()))
        if groups.shape[1] > 1:
            operands = run.operand_shapes()
            yield Exchange(kind, axes_of(groups, mesh_shape), groups.shape[1], operands, results_of(run), run.times)


def results_of(run: Executed) -> tuple[Shape, ...]:
    """The shapes of a collective's results; one that only begins lists its operands before them."""
    shapes, operands = run.instruction.shapes, len(run.operand_shapes())
    has_operands = run.instruction.opcode.endswith('-start') and len(shapes) > operands
    return shapes[operands:] if has_operands else shapes


def kind_of(run: Executed) -> str | None:
    """The kind of a collective; None for another instruction, and for the end of a collective that began before."""
    kind = run.instruction.opcode.removesuffix('-start')
    if kind not in KINDS:
        return None
    return 'reduce-scatter' if kind == 'all-reduce' and SCATTER in run.name else kind


def is_seen(run: Executed, seen: set[tuple[str, str]]) -> bool:
    """Whether a part of the same collective was met in the same loop or the main program; remembers it.

    Only fusions hold parts of one collective, which then share a channel. Instructions that stand alone may share it,
    too: all that are traced inside `jax.shard_map` do.
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
    """Bytes that one of `members` devices sends round a ring; `operand_bytes` is what each brings along."""
    share = (members - 1) / members
    factors = {'all-gather': members - 1, 'all-reduce': 2 * share, 'reduce-scatter': share, 'all-to-all': share}
    return operand_bytes * factors.get(kind, 1)


def groups_of(attributes: str, devices: int) -> np.ndarray:
    """int [groups, members]: the devices that exchange with one another; pairs (from, to) of a permutation.

    XLA writes groups as a list, as a reshaped and transposed range, or as axes of a mesh of its own.
    """
    if listed := _LISTED.search(attributes):
        groups = [[int(device) for device in group.split(',')] for group in re.findall(r'\{([\d,]+)\}', listed[1])]
        return np.array([group for group in groups if len(set(group)) > 1] or [[0]])
    if ranged := _IOTA_GROUPS.search(attributes):
        return iota(*ranged.groups())
    if named := _MESH_GROUPS.search(attributes):
        return mesh_groups(*named.groups())
    return np.arange(devices)[None]


def iota(sizes: str, reshaped: str | None, transposed: str | None) -> np.ndarray:
    """The array that XLA writes as [sizes]<=[reshaped]T(transposed), or as [reshaped]T(transposed)."""
    shape = integers(sizes)
    if reshaped is None:
        array = np.arange(int(np.prod(shape))).reshape(shape)
        return array.transpose(integers(transposed)) if transposed else array
    array = np.arange(int(np.prod(shape))).reshape(integers(reshaped))
    return (array.transpose(integers(transposed)) if transposed else array).reshape(shape)


def mesh_groups(mesh: str, sizes: str | None, reshaped: str | None, transposed: str | None, axes: str) -> np.ndarray:
    """The groups over some axes of the mesh that XLA writes as 'name'=size, ...; ids are a range where none are given.

    An axis may be a part of one, 'name':(before)size, where `before` positions of the axis lie before it.
    """
    shape = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh)}
    total = int(np.prod(list(shape.values())))
    ids = (np.arange(total) if sizes is None else iota(sizes, reshaped, transposed)).reshape(list(shape.values()))
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


def axes_of(groups: np.ndarray, mesh_shape: Mapping[str, int]) -> str:
    """The axes of the mesh along which the members of a group lie apart, such as 'data+fsdp'."""
    places = np.stack(np.unravel_index(groups, list(mesh_shape.values())), axis=-1)  # [groups, members, axes]
    differs = (places != places[:, :1]).any(axis=(0, 1))
    return '+'.join(name for name, is_axis in zip(mesh_shape, differs, strict=True) if is_axis)


def integers(text: str) -> tuple[int, ...]:
    """The numbers of a list with commas."""
    return tuple(int(number) for number in text.split(',') if number)
