"""Parses the text of a compiled program (HLO) into instructions, and counts how often each instruction runs.

XLA's own cost analysis counts the body of a loop once. The layers of a model are such a loop body. Therefore the cost
of a step is computed here, with all turns of each loop.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

# Bytes per element of the HLO types whose names do not contain the width in bits.
_WIDTHS = {'pred': 1, 'token': 0, 'opaque': 0, 'c64': 8, 'c128': 16, 's4': 0.5, 'u4': 0.5}
_SHAPE = re.compile(r'\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?')
_NAME = re.compile(r'%([\w.\-]+)')
_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$')
_LINE = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_CALLED = re.compile(r'\b(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# These instructions neither compute nor move data themselves, so they cost no time.
STILL = frozenset(('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'conditional', 'call'))
STILL |= {'after-all', 'partition-id', 'replica-id'}


@dataclasses.dataclass(frozen=True)
class Shape:
    """The dtype, shape and memory space of an array in a compiled program; space 0 is the device's main memory."""

    dtype: str
    sizes: tuple[int, ...]
    space: int = 0

    @property
    def unpadded_bytes(self) -> float:
        """The size of the array in bytes, without padding."""
        return math.prod(self.sizes) * dtype_bytes(self.dtype)


@dataclasses.dataclass(frozen=True)
class HloInstruction:
    """One instruction of a compiled program, parsed from one line of its HLO text."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # shapes of the result; several if the result is a tuple
    operands: tuple[str, ...]
    attributes: str  # the text after the operands; for a constant or parameter, this text begins with the value

    @functools.cached_property
    def called_computations(self) -> tuple[str, ...]:
        """The names of the computations that the instruction runs, such as a loop body or a fusion.

        The function that a reduction applies to elements is not included.
        """
        branches = _BRANCHES.search(self.attributes)
        if branches:
            return tuple(_NAME.findall(branches[1]))
        if self.opcode in ('while', 'fusion', 'call', 'conditional', 'async-start'):
            return tuple(_CALLED.findall(self.attributes))
        return ()


Computation = dict[str, HloInstruction]


@dataclasses.dataclass(frozen=True)
class ExecutedInstruction:
    """An HLO instruction with its computation, and how often it runs in one call of the program."""

    instruction: HloInstruction
    computation: Computation
    times: int
    name: str  # name of the computation that contains the instruction
    scope: str  # name of the main computation, loop body or branch that contains the instruction or its fusion

    @property
    def is_fused(self) -> bool:
        """Whether the instruction is inside a fusion, which runs as one unit."""
        return self.name != self.scope

    def operand_shapes(self) -> tuple[Shape, ...]:
        """Returns the shapes of the instruction's operands."""
        found = (self.computation.get(name) for name in self.instruction.operands)
        return tuple(shape for operand in found if operand for shape in operand.shapes)


@dataclasses.dataclass(frozen=True)
class HloProgram:
    """A compiled program: its HLO computations by name, and the name of the computation that runs first."""

    computations: dict[str, Computation]
    entry: str
    takes_shortest_branch: bool = False  # whether the shortest branch of a conditional counts instead of the longest

    def executed_instructions(self) -> Iterator[ExecutedInstruction]:
        """Yields every instruction that runs, also inside fusions and loops, with the number of its executions.

        Of a conditional's branches, only the longest one counts, or the shortest one if `takes_shortest_branch`.
        """
        return self._executed_in_computation(self.entry, 1, self.entry)

    def _executed_in_computation(self, name: str, times: int, scope: str) -> Iterator[ExecutedInstruction]:
        computation = self.computations.get(name, {})
        for instruction in computation.values():
            yield ExecutedInstruction(instruction, computation, times, name, scope)
            inner = (
                times * (self.loop_trip_count(instruction, computation) or 1)
                if instruction.opcode == 'while'
                else times
            )
            is_part = name != scope or instruction.opcode == 'fusion'
            for called in self.running_computations(instruction):
                yield from self._executed_in_computation(called, inner, scope if is_part else called)

    def running_computations(self, instruction: HloInstruction) -> tuple[str, ...]:
        """Returns the names of the computations that an instruction runs; of a conditional, only one branch."""
        called = instruction.called_computations
        if instruction.opcode != 'conditional' or not called:
            return called
        choose = min if self.takes_shortest_branch else max
        return (choose(called, key=self.result_element_count),)

    def result_element_count(self, name: str) -> int:
        """Returns the number of elements in all results of a computation, a rough measure of its run time."""
        return sum(
            run.times * sum(math.prod(shape.sizes) for shape in run.instruction.shapes)
            for run in self._executed_in_computation(name, 1, name)
            if run.instruction.opcode not in STILL
        )

    def loop_trip_count(self, loop: HloInstruction, computation: Computation) -> int | None:
        """Returns how many iterations a loop of the program has; None if the program's text does not give this number.

        Usually the compiler states the number. Otherwise the number follows from the loop condition `counter < limit`,
        the counter's first value and its increment. In loops that the compiler has unrolled, the increment exceeds 1.
        """
        known = _TRIPS.search(loop.attributes)
        if known:
            return int(known[1])
        names = re.search(r'condition=%?([\w.\-]+), body=%?([\w.\-]+)', loop.attributes)
        condition, body = (self.computations.get(name, {}) for name in names.groups()) if names else ({}, {})
        compared = parse_loop_condition(condition)
        if compared is None or loop.operands[0] not in computation or not body:
            return None
        place, limit = compared
        start = constant_value(
            tuple_element_instruction(computation[loop.operands[0]], place, computation), computation
        )
        counter = tuple_element_instruction(list(body.values())[-1], place, body)
        added = [constant_value(body.get(name), body) for name in counter.operands] if counter else []
        steps = [step for step in added if step]
        is_sum = counter is not None and counter.opcode == 'add' and len(steps) == 1 and start is not None
        return -(-(limit - (start or 0)) // steps[0]) if is_sum else None

    def loops_of_unknown_length(self) -> list[str]:
        """Returns the names of the loops whose number of iterations is not known; the cost counts one iteration."""
        loops = {run.instruction.name: run for run in self.executed_instructions() if run.instruction.opcode == 'while'}
        return [name for name, run in loops.items() if self.loop_trip_count(run.instruction, run.computation) is None]


def parse_loop_condition(condition: Computation) -> tuple[int, int] | None:
    """Parses a loop condition `counter < limit`; returns the counter's index in the loop state, and the limit.

    Returns None for a condition of another form.
    """
    compares = [line for line in condition.values() if line.opcode == 'compare' and 'direction=LT' in line.attributes]
    if len(compares) != 1:
        return None
    counter, limit = (condition.get(name) for name in compares[0].operands)
    place = re.search(r'index=(\d+)', counter.attributes) if counter else None
    value = constant_value(limit, condition)
    return (int(place[1]), value) if place and value is not None else None


def tuple_element_instruction(made: HloInstruction, place: int, computation: Computation) -> HloInstruction | None:
    """Returns the instruction that computes one element of a tuple; None if no `tuple` instruction builds the tuple."""
    found = computation.get(made.operands[place]) if made.opcode == 'tuple' else None
    while found is not None and found.opcode in ('copy', 'bitcast'):
        found = computation.get(found.operands[0])
    return found


def constant_value(instruction: HloInstruction | None, computation: Computation) -> int | None:
    """Returns the value of an integer constant or of a copy of such a constant; None for any other instruction."""
    while instruction is not None and instruction.opcode in ('copy', 'bitcast'):
        instruction = computation.get(instruction.operands[0])
    value = re.match(r'(-?\d+)\)', instruction.attributes) if instruction and instruction.opcode == 'constant' else None
    return int(value[1]) if value else None


def parse_program(text: str) -> HloProgram:
    """Parses the HLO text of a compiled program, as `jax.stages.Compiled.as_text` returns it."""
    computations: dict[str, Computation] = {}
    entry, current = '', {}
    for line in text.splitlines():
        header = _HEADER.match(line)
        found = None if header else _LINE.match(line)
        if header:
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif found:
            current[found[1]] = parse_instruction(found[1], found[2])
    return HloProgram(computations, entry)


def parse_instruction(name: str, text: str) -> HloInstruction:
    """Parses one HLO instruction from its name and the text after '=': shape, opcode, operands, attributes."""
    end = closing_bracket(text) if text.startswith('(') else text.index(' ')
    kind, _, rest = text[end:].lstrip().partition('(')
    stop = closing_bracket('(' + rest) - 1
    is_value = kind in ('constant', 'parameter')
    attributes = rest if is_value else rest[stop:]
    operands = () if is_value else tuple(_NAME.findall(rest[:stop]))
    return HloInstruction(name, kind, parse_shapes(text[:end]), operands, attributes)


def closing_bracket(text: str) -> int:
    """Returns the index just after the bracket that closes the first bracket of a text."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if not depth:
            return place + 1
    return len(text)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Parses an HLO shape, such as 'bf16[2,3]{1,0}', or a tuple of shapes, such as '(f32[], s32[4])'."""
    return tuple(
        Shape(
            dtype,
            tuple(int(size.lstrip('<=')) for size in sizes.split(',') if size),
            int(found[1]) if (found := re.search(r'S\((\d+)\)', layout)) else 0,
        )
        for dtype, sizes, layout in _SHAPE.findall(text)
    )


def dtype_bytes(dtype: str) -> float:
    """Returns the bytes per element of an HLO type, such as 'bf16' or 'f8e4m3fn'."""
    if dtype in _WIDTHS:
        return _WIDTHS[dtype]
    bits = re.match(r'[a-z]+(\d+)', dtype)
    return int(bits[1]) / 8 if bits else 0
