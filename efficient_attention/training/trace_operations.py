"""Finds the operations that took the longest in a trace of JAX's profiler, and the layers that they belong to."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

# The part of the trace's format that is read: message -> {field: (number, type of TYPES or message)}.
# Source: xplane.proto of openxla/xprof, and hlo.proto and xla_data.proto of openxla/xla. jax.profiler.ProfileData does
# not give the scopes, and JAX 0.12 ends the process when it reads the statistics of some events.
FORMAT = {
    'Space': {'planes': (1, 'Plane')},
    'Plane': {
        'name': (2, 'string'),
        'lines': (3, 'Line'),
        'event_metadata': (4, 'Entry'),
        'stat_metadata': (5, 'StatEntry'),
    },
    'Line': {'name': (2, 'string'), 'timestamp_ns': (3, 'int64'), 'events': (4, 'Event')},
    'Event': {
        'metadata_id': (1, 'int64'),
        'offset_ps': (2, 'int64'),
        'duration_ps': (3, 'int64'),
        'stats': (4, 'Stat'),
    },
    'Entry': {'key': (1, 'int64'), 'value': (2, 'EventMetadata')},
    'EventMetadata': {'name': (2, 'bytes'), 'stats': (5, 'Stat')},
    'StatEntry': {'key': (1, 'int64'), 'value': (2, 'StatMetadata')},
    'StatMetadata': {'name': (2, 'bytes')},
    'Stat': {
        'metadata_id': (1, 'int64'),
        'int64_value': (4, 'int64'),
        'str_value': (5, 'bytes'),
        'bytes_value': (6, 'bytes'),
        'ref_value': (7, 'int64'),
    },
    'Program': {'module': (1, 'Module')},
    'Module': {'name': (1, 'string'), 'computations': (3, 'Computation')},
    'Computation': {'instructions': (2, 'Instruction')},
    'Instruction': {'name': (1, 'string'), 'metadata': (7, 'Metadata')},
    'Metadata': {'op_name': (2, 'string')},
}
TYPES = {
    'string': descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    'bytes': descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    'int64': descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
}
REPEATED = ('planes', 'lines', 'events', 'event_metadata', 'stat_metadata', 'stats', 'computations', 'instructions')
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


class TraceEvent(NamedTuple):
    """An event of a trace, with its start and its duration in nanoseconds, and its statistics as texts."""

    name: str
    start_ns: float
    duration_ns: float
    stats: Iterable[tuple[str, str]]


class TraceLine(NamedTuple):
    """A line of a trace, such as a thread of the host or a stream of a GPU."""

    name: str
    events: Iterable[TraceEvent]


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
    for plane in message_class('Space').FromString(trace).planes:
        for line in trace_lines(plane):
            for key, duration in self_durations(operation_events(line)):
                if key[0].partition('(')[0] in ('', program):
                    totals[key] += duration
    scopes, whole = operation_scopes(trace), sum(totals.values())
    longest = sorted(totals.items(), key=lambda item: -item[1])[:count]

    def scope(key: tuple[str, str]) -> str:
        # The events of a program that JAX loaded from its cache have the number of the process that compiled it.
        return scopes[key] if key in scopes else scopes.get((key[0].partition('(')[0], key[1]), '')

    return [Operation(key[1], scope(key), total * 1e-9, total / whole) for key, total in longest]


def trace_lines(plane: Any) -> Iterator[TraceLine]:
    """Yields the lines of a plane of the trace, such as a device, with names in place of numbers."""
    metadata = {entry.key: entry.value for entry in plane.event_metadata}
    names = {entry.key: as_text(entry.value.name) for entry in plane.stat_metadata}

    def texts(stats: Iterable[Any]) -> Iterator[tuple[str, str]]:
        for stat in stats:
            text = names.get(stat.ref_value, '') if stat.ref_value else as_text(stat.str_value) or str(stat.int64_value)
            yield names.get(stat.metadata_id, ''), text

    for line in plane.lines:
        events = (
            TraceEvent(
                as_text(metadata[event.metadata_id].name),
                line.timestamp_ns + event.offset_ps / 1000,
                event.duration_ps / 1000,
                [*texts(metadata[event.metadata_id].stats), *texts(event.stats)],
            )
            for event in line.events
        )
        yield TraceLine(line.name, events)


def as_text(data: bytes) -> str:
    """Returns a text of the trace; a byte that is not UTF-8 becomes a replacement character."""
    return data.decode('utf-8', errors='replace')


def operation_events(line: TraceLine) -> Iterator[TimedEvent]:
    """Yields the events of a line of the trace that are operations of compiled programs."""
    for event in line.events:
        if line.name == TPU_LINE:
            name = event.name.partition(' = ')[0].removeprefix('%')
            yield TimedEvent(('', name), event.start_ns, event.duration_ns)
            continue
        stats = dict(event.stats)
        if 'hlo_op' in stats:
            key = numbered_program(stats), stats['hlo_op']
            yield TimedEvent(key, event.start_ns, event.duration_ns)


def numbered_program(stats: dict[str, str]) -> str:
    """Returns the name of an event's program with its number, as the trace lists it, such as 'jit_train_step(4)'.

    Several programs of a process may have one name, and their operations too. Without a number, the name alone.
    """
    name = stats.get('hlo_module', '')
    return f'{name}({stats["program_id"]})' if name and 'program_id' in stats else name


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
    """Returns {(program, operation): scope} for all operations of the programs in a trace. Programs have their names
    both with the number and without it; the program '' stands for any.
    """
    found: dict[tuple[str, str], str] = {}
    for plane in message_class('Space').FromString(trace).planes:
        for entry in plane.event_metadata if plane.name == PROGRAMS else ():
            for stat in entry.value.stats:
                program = message_class('Program').FromString(stat.bytes_value)
                names = as_text(entry.value.name), program.module.name, ''
                found |= module_scopes(names, program.module.computations)
    return found


def module_scopes(names: Sequence[str], computations: Sequence[Any]) -> dict[tuple[str, str], str]:
    """Returns the scopes of the operations of one program under each of its names, without the name of the jitted
    function in front.
    """
    found: dict[tuple[str, str], str] = {}
    for computation in computations:
        for instruction in computation.instructions:
            scope = instruction.metadata.op_name
            scope = scope.partition('/')[2] if scope.startswith('jit(') else scope
            found |= {(name, instruction.name): scope for name in names}
    return found


@functools.cache
def message_class(name: str) -> Any:
    """Returns the protobuf class of a message type in `FORMAT`, which parses a trace file (*.xplane.pb)."""
    file = descriptor_pb2.FileDescriptorProto(name='efficient_attention_trace.proto', package='trace', syntax='proto3')
    for message, fields in FORMAT.items():
        defined = file.message_type.add(name=message)
        for field, (number, kind) in fields.items():
            label = 3 if field in REPEATED else 1
            if kind in TYPES:
                defined.field.add(name=field, number=number, label=label, type=TYPES[kind])
            else:
                defined.field.add(name=field, number=number, label=label, type=11, type_name=f'.trace.{kind}')
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f'trace.{name}'))
