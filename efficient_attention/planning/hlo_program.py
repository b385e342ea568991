"""Parses the text of a compiled program (HLO) into instructions, and counts how often each instruction runs.

XLA's own cost analysis counts the body of a loop once. The layers of a model are such a loop body. Therefore the cost
of a step is computed here, with all turns of each loop.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

# Bytes per element, for types whose names do not contain the width.
_WIDTHS = {'pred': 1, 'token': 0, 'opaque': 0, 'c64': 8, 'c128': 16, 's4': 0.5, 'u4': 0.5}
_SHAPE = re.compile(r'\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?')
_NAME = re.compile(r'%([\w.\-]+)')
_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$')
_LINE = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$')
_CALLED = re.compile(r'\b(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.\-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
# Instructions that neither compute nor move data themselves.
STILL = frozenset(('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'conditional', 'call'))
STILL |= {'after-all', 'partition-id', 'replica-id'}


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array in a program; `space` 0 is the device's main memory."""

    dtype: str
    sizes: tuple[int, ...]
    space: int = 0

    @property
    def unpadded_bytes(self) -> float:
        """The array's bytes, without padding."""
        return math.prod(self.sizes) * dtype_bytes(self.dtype)


@dataclasses.dataclass(frozen=True)
class HloInstruction:
    """One line of a computation."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # shapes of the result; several if it is a tuple
    operands: tuple[str, ...]
    attributes: str  # the text after the operands; for a constant or parameter, it begins with the value in brackets

    @functools.cached_property
    def called_computations(self) -> tuple[str, ...]:
        """The computations that the instruction runs, without the function that a reduction applies to elements."""
        branches = _BRANCHES.search(self.attributes)
        if branches:
            return tuple(_NAME.findall(branches[1]))
        if self.opcode in ('while', 'fusion', 'call', 'conditional', 'async-start'):
            return tuple(_CALLED.findall(self.attributes))
        return ()


Computation = dict[str, HloInstruction]


@dataclasses.dataclass(frozen=True)
class ExecutedInstruction:
    """An instruction with its computation, and how often it runs in one call of the program."""

    instruction: HloInstruction
    computation: Computation
    times: int
    name: str  # name of the computation
    scope: str  # the main computation, loop body or branch that contains the instruction, directly or within a fusion

    @property
    def is_fused(self) -> bool:
        """Whether the instruction is part of a fusion, which runs as one unit."""
        return self.name != self.scope

    def operand_shapes(self) -> tuple[Shape, ...]:
        """Returns the shapes of the instruction's operands."""
        found = (self.computation.get(name) for name in self.instruction.operands)
        return tuple(shape for operand in found if operand for shape in operand.shapes)


@dataclasses.dataclass(frozen=True)
class HloProgram:
    """The computations of a program by name, and the name of the first one."""

    computations: dict[str, Computation]
    entry: str

    def executed_instructions(self) -> Iterator[ExecutedInstruction]:
        """Yields every executed instruction, also inside fusions and loops; of a condition, only the longest branch."""
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
        """Returns the computations that an instruction runs; of a condition's branches, only the longest."""
        called = instruction.called_computations
        return (
            (max(called, key=self.result_element_count),) if instruction.opcode == 'conditional' and called else called
        )

    def result_element_count(self, name: str) -> int:
        """Returns the number of elements in all results of a computation, as a measure of its run time."""
        return sum(
            run.times * sum(math.prod(shape.sizes) for shape in run.instruction.shapes)
            for run in self._executed_in_computation(name, 1, name)
            if run.instruction.opcode not in STILL
        )

    def loop_trip_count(self, loop: HloInstruction, computation: Computation) -> int | None:
        """Returns how often the body of a loop in this computation runs; None if the program does not tell.

        The number is stated by the compiler. Otherwise it follows from a condition `counter < limit`, the counter's
        first value and its increment in the body. The increment exceeds 1 in loops that the compiler has unrolled.
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
        """Returns the names of loops with an unknown number of turns; they count as one turn."""
        loops = {run.instruction.name: run for run in self.executed_instructions() if run.instruction.opcode == 'while'}
        return [name for name, run in loops.items() if self.loop_trip_count(run.instruction, run.computation) is None]


def parse_loop_condition(condition: Computation) -> tuple[int, int] | None:
    """Returns, for a loop condition `element < limit`, the element's index in the loop's tuple, and the limit."""
    compares = [line for line in condition.values() if line.opcode == 'compare' and 'direction=LT' in line.attributes]
    if len(compares) != 1:
        return None
    counter, limit = (condition.get(name) for name in compares[0].operands)
    place = re.search(r'index=(\d+)', counter.attributes) if counter else None
    value = constant_value(limit, condition)
    return (int(place[1]), value) if place and value is not None else None


def tuple_element_instruction(made: HloInstruction, place: int, computation: Computation) -> HloInstruction | None:
    """Returns the instruction that computes an element of a tuple; None if the tuple is not built from elements."""
    found = computation.get(made.operands[place]) if made.opcode == 'tuple' else None
    while found is not None and found.opcode in ('copy', 'bitcast'):
        found = computation.get(found.operands[0])
    return found


def constant_value(instruction: HloInstruction | None, computation: Computation) -> int | None:
    """Returns the value of an integer constant, possibly copied; None for any other instruction."""
    while instruction is not None and instruction.opcode in ('copy', 'bitcast'):
        instruction = computation.get(instruction.operands[0])
    value = re.match(r'(-?\d+)\)', instruction.attributes) if instruction and instruction.opcode == 'constant' else None
    return int(value[1]) if value else None


def parse_program(text: str) -> HloProgram:
    """Returns the program parsed from a compiled module's text (`jax.stages.Compiled.as_text`)."""
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
    """Returns the instruction `name`, parsed from the text after '=': shape, opcode, operands, attributes."""
    end = closing_bracket(text) if text.startswith('(') else text.index(' ')
    kind, _, rest = text[end:].lstrip().partition('(')
    stop = closing_bracket('(' + rest) - 1
    is_value = kind in ('constant', 'parameter')
    attributes = rest if is_value else rest[stop:]
    operands = () if is_value else tuple(_NAME.findall(rest[:stop]))
    return HloInstruction(name, kind, parse_shapes(text[:end]), operands, attributes)


def closing_bracket(text: str) -> int:
    """Returns the index after the bracket that closes the first bracket of `text`."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == '(') - (letter == ')')
        if not depth:
            return place + 1
    return len(text)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Returns the arrays in the text of a shape, such as 'bf16[2,3]{1,0}' or '(f32[], s32[4])'."""
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
