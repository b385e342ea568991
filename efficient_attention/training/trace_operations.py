"""Finds the operations that took the longest in a trace of JAX's profiler, and the layers that they belong to."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

# The part of the trace's format with the names of layers: message -> {field: (number, 'string', 'bytes' or message)}.
# Source: xplane.proto of openxla/xprof, and hlo.proto and xla_data.proto of openxla/xla. jax.profiler.ProfileData has
# no access to these fields.
FORMAT = {
    'Space': {'planes': (1, 'Plane')},
    'Plane': {'name': (2, 'string'), 'event_metadata': (4, 'Entry')},
    'Entry': {'value': (2, 'EventMetadata')},
    'EventMetadata': {'stats': (5, 'Stat')},
    'Stat': {'bytes_value': (6, 'bytes')},
    'Program': {'module': (1, 'Module')},
    'Module': {'name': (1, 'string'), 'computations': (3, 'Computation')},
    'Computation': {'instructions': (2, 'Instruction')},
    'Instruction': {'name': (1, 'string'), 'metadata': (7, 'Metadata')},
    'Metadata': {'op_name': (2, 'string')},
}
REPEATED = ('planes', 'event_metadata', 'stats', 'computations', 'instructions')
PROGRAMS = '/host:metadata'  # name of the plane that has the compiled programs
TPU_LINE = 'XLA Ops'  # name of a TPU's line of operations; each event has the text of an HLO instruction as its name


class Operation(NamedTuple):
    """An operation of a compiled program, with its time in a trace.

    Args:
        name: name of the operation in the compiled program, such as 'fusion.3'.
        scope: the layer and primitive that it computes, such as 'jvp()/while/body/attention/dot_general'; '' = unknown.
        seconds: its time without operations inside it, over all calls and devices.
        share: this time as a share of the time of all operations.
    """

    name: str
    scope: str
    seconds: float
    share: float


class TimedEvent(NamedTuple):
    """An event of a trace: the key of its operation, its start and its duration, in nanoseconds."""

    key: tuple[str, str]
    start: float
    duration: float


def longest_operations(trace: bytes, program: str, count: int) -> list[Operation]:
    """Returns the operations of a program with the longest total time in a trace, the longest first.

    Args:
        trace: content of a file *.xplane.pb.
        program: name of the compiled program, such as 'jit_train_step'. A TPU's trace does not name the program of an
            operation, so the operations of all programs count there.
        count: the largest number of operations.
    """
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for plane in jax.profiler.ProfileData.from_serialized_xspace(trace).planes:
        for line in plane.lines:
            for key, duration in self_durations(operation_events(line)):
                if key[0] in ('', program):
                    totals[key] += duration
    scopes, whole = operation_scopes(trace), sum(totals.values())
    longest = sorted(totals.items(), key=lambda item: -item[1])[:count]
    return [Operation(key[1], scopes.get(key, ''), total * 1e-9, total / whole) for key, total in longest]


def operation_events(line: Any) -> Iterator[TimedEvent]:
    """Yields the events of a line of the trace that are operations of compiled programs."""
    for event in line.events:
        if line.name == TPU_LINE:
            name = event.name.partition(' = ')[0].removeprefix('%')
            yield TimedEvent(('', name), event.start_ns, event.duration_ns)
            continue
        stats = dict(event.stats)
        if 'hlo_op' in stats:
            key = str(stats.get('hlo_module', '')), str(stats['hlo_op'])
            yield TimedEvent(key, event.start_ns, event.duration_ns)


def self_durations(events: Iterable[TimedEvent]) -> list[tuple[tuple[str, str], float]]:
    """Returns the duration of each event without the events inside it, such as a loop without its body."""
    found: list[list[Any]] = []
    open_events: list[tuple[float, int]] = []  # (end, index in `found`) of the events around the current one
    for event in sorted(events, key=lambda event: (event.start, -event.duration)):
        while open_events and open_events[-1][0] <= event.start:
            open_events.pop()
        if open_events:
            found[open_events[-1][1]][1] -= event.duration
        open_events.append((event.start + event.duration, len(found)))
        found.append([event.key, event.duration])
    return [(key, max(duration, 0.0)) for key, duration in found]


def operation_scopes(trace: bytes) -> dict[tuple[str, str], str]:
    """Returns {(program, operation): scope} for all operations of the programs in a trace. The program '' stands for
    any.
    """
    found: dict[tuple[str, str], str] = {}
    for plane in message_class('Space').FromString(trace).planes:
        for entry in plane.event_metadata if plane.name == PROGRAMS else ():
            for stat in entry.value.stats:
                program = message_class('Program').FromString(stat.bytes_value)
                found |= module_scopes(program.module.name, program.module.computations)
    return found


def module_scopes(module: str, computations: Sequence[Any]) -> dict[tuple[str, str], str]:
    """Returns the scopes of the operations of one program, without the name of the jitted function in front."""
    found: dict[tuple[str, str], str] = {}
    for computation in computations:
        for instruction in computation.instructions:
            scope = instruction.metadata.op_name
            scope = scope.partition('/')[2] if scope.startswith('jit(') else scope
            found[module, instruction.name] = found['', instruction.name] = scope
    return found


@functools.cache
def message_class(name: str) -> Any:
    """Returns the protobuf class of a message type in `FORMAT`, which parses a trace file (*.xplane.pb)."""
    file = descriptor_pb2.FileDescriptorProto(name='efficient_attention_trace.proto', package='trace', syntax='proto3')
    types = {
        'string': descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
        'bytes': descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    }
    for message, fields in FORMAT.items():
        defined = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            label = 3 if field in REPEATED else 1
            if kind in types:
                defined.field.add(name=field, number=number, label=label, type=types[kind])
            else:
                defined.field.add(name=field, number=number, label=label, type=11, type_name=f'.trace.{kind}')
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f'trace.{name}'))
