"""Computes the FLOPs, memory traffic and estimated cycles of one call of a compiled program on one device."""

import dataclasses
import math
import re

import numpy as np

from efficient_attention.attention.kernel_work import KernelWork, stated_work
from efficient_attention.planning.hlo_program import (
    STILL,
    Computation,
    ExecutedInstruction,
    HloInstruction,
    HloProgram,
    Shape,
)

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONTRACTED = re.compile(r'lhs_contracting_dims=\{([\d,]*)\}')
_LABELS = re.compile(r'dim_labels=(\w+)_(\w+)->(\w+)')
_WINDOW = re.compile(r'window=\{([^}]*)\}')
# How many products of all queries with all keys, over the head width, each call of cuDNN's fused attention computes.
CUDNN_PRODUCTS = {'__cudnn$fmhaSoftmax': 2, '__cudnn$fmhaSoftmaxBackward': 5}
# The same for the kernels of JAX's splash attention on TPUs, by the end of their names.
SPLASH_PRODUCTS = {'fwd': 2, 'dq': 3, 'dkv': 4}
_SPLASH_KERNEL = re.compile(r'splash_m[hq]a_(fwd|dq|dkv)')
_CUSTOM_CALL = re.compile(r'custom_call_target="([^"]*)"')
# Targets of custom calls without products that XLA's compilers for CPUs, GPUs and TPUs write.
WITHOUT_PRODUCTS = frozenset(
    (
        # memory, layouts and asynchronous collectives
        *('AllocateBuffer', 'ConcatBitcast', 'X64Combine', 'AsyncCollectiveStart', 'AsyncCollectiveDone'),
        # sharding and indices
        *('Sharding', 'SPMDFullToShardShape', 'SPMDShardToFullShape'),
        *('AssumeGatherIndicesInBound', 'GatherScatterIndicesBitpacked'),
        # comparisons
        *('TopK', '__gpu$TopK', 'PartialReduce', '__cub$DeviceRadixSort'),
    )
)
_CUDNN_SHAPE = re.compile(r'"intermediate_tensor_shape":.*?"dimensions":\["?(\d+)"?,"?(\d+)"?,"?(\d+)"?,"?(\d+)"?\]')
_CUDNN_MASK = re.compile(r'"mask_type":"(\w+)"')
_CUDNN_WINDOW = re.compile(r'"sliding_window_length":(\d+)')
SLICES = frozenset(('dynamic-slice', 'slice', 'gather'))


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one call of a compiled program on one device: FLOPs, memory traffic and cycles."""

    flops: float  # FLOPs of matrix products only; a multiply-add counts as two
    bytes: float  # bytes read and written in the device's main memory, without the padding of arrays
    cycles: float  # clock cycles that the compiler estimates, without collectives; 0 if it gives no estimate
    kernel_flops: float = 0.0  # of `flops`, those of TPU kernels, which the compiler's cycles leave out
    # for each name of the project's GPU kernels, the work of all its calls; `flops` and `bytes` contain it
    kernels: dict[str, KernelWork] = dataclasses.field(default_factory=dict)
    uncounted_calls: tuple[str, ...] = ()  # sorted targets of custom calls whose products are not in `flops`


def cost_of(program: HloProgram) -> Cost:
    """Returns the cost of one call of a compiled program; an instruction in a loop counts as often as it runs."""
    flops = kernel_flops = traffic = cycles = 0.0
    kernels: dict[str, KernelWork] = {}
    uncounted = set()
    for run in program.executed_instructions():
        found, target = flops_of(run), custom_call_target(run.instruction)
        flops += run.times * found
        kernel_flops += run.times * splash_kernel_flops(run)
        if work := kernel_work(run.instruction):
            kernels[work.name] = kernels.get(work.name, KernelWork(work.name, 0, 0)).plus(work, run.times)
        if target and not found and target not in WITHOUT_PRODUCTS:
            uncounted.add(target)
        if not run.is_fused:
            traffic += run.times * instruction_memory_traffic(run, program)
            estimate = _CYCLES.search(run.instruction.attributes)
            cycles += run.times * int(estimate[1]) if estimate else 0.0
    return Cost(flops, traffic, cycles, kernel_flops, kernels, tuple(sorted(uncounted)))


def kernel_work(instruction: HloInstruction) -> KernelWork | None:
    """Returns the work that a call of one of the project's GPU kernels states; None for other instructions."""
    return stated_work(instruction.attributes) if instruction.opcode == 'custom-call' else None


def flops_of(run: ExecutedInstruction) -> float:
    """Returns the FLOPs of an HLO instruction; instructions that are no matrix product or convolution count as 0.

    On TPUs, the compiler writes matrix products as convolutions. A kernel of fused attention is one custom call.
    """
    instruction = run.instruction
    target = custom_call_target(instruction)
    if target in CUDNN_PRODUCTS:
        return CUDNN_PRODUCTS[target] * cudnn_product_flops(instruction, run.operand_shapes()[0].sizes[-1])
    if work := kernel_work(instruction):
        return float(work.flops)
    if instruction.opcode not in ('dot', 'convolution'):
        return splash_kernel_flops(run)
    result, operands = instruction.shapes[0], run.operand_shapes()
    if instruction.opcode == 'convolution':
        return convolution_flops(instruction, result, operands[0], operands[1])
    contracted = _CONTRACTED.search(instruction.attributes)
    summed = [operands[0].sizes[int(place)] for place in contracted[1].split(',') if place] if contracted else []
    return 2.0 * math.prod(result.sizes) * math.prod(summed)


def custom_call_target(instruction: HloInstruction) -> str:
    """Returns the target of a custom call; '' for any other instruction."""
    target = _CUSTOM_CALL.search(instruction.attributes) if instruction.opcode == 'custom-call' else None
    return target[1] if target else ''


def cudnn_product_flops(instruction: HloInstruction, width: int) -> float:
    """Returns the FLOPs of one product of queries and keys in cuDNN's fused attention, two per multiply-add.

    Pairs that a causal mask or a window excludes do not count. Padding counts, because lengths are known only at run
    time.
    """
    text = instruction.attributes.replace(' ', '')
    shape, mask, window = _CUDNN_SHAPE.search(text), _CUDNN_MASK.search(text), _CUDNN_WINDOW.search(text)
    assert shape and mask, instruction
    rows, heads, queries, keys = (int(size) for size in shape.groups())
    pairs = float(queries * keys)
    if 'CAUSAL' in mask[1]:
        span = int(window[1]) if window and int(window[1]) else keys  # 0 = no window
        pairs = float(np.minimum(np.arange(1, queries + 1), min(span, keys)).sum())
    return 2.0 * rows * heads * pairs * width


def splash_kernel_flops(run: ExecutedInstruction) -> float:
    """Returns the FLOPs of a kernel of splash attention, two per multiply-add; 0 for other instructions.

    The first operand lists the tiles of each row of tiles. Shorter rows of this list count like the longest, so the
    result is an upper bound.
    """
    kernel = _SPLASH_KERNEL.match(run.instruction.name) if run.instruction.opcode == 'custom-call' else None
    if not kernel:
        return 0.0
    operands = run.operand_shapes()
    query = next(shape.sizes for shape in operands if shape.dtype in ('bf16', 'f32'))
    tile = run.instruction.shapes[0].sizes[-2]  # the first scratch array has one row for each position of a tile
    tiles = math.prod(query[:-2]) * math.prod(operands[0].sizes[-2:])
    return SPLASH_PRODUCTS[kernel[1]] * 2.0 * tiles * tile**2 * query[-1]


def convolution_flops(instruction: HloInstruction, result: Shape, left: Shape, kernel: Shape) -> float:
    """Returns the FLOPs of a convolution, two per multiply-add; products with padding or dilation gaps do not count."""
    labels = _LABELS.search(instruction.attributes)
    assert labels, instruction
    window = _WINDOW.search(instruction.attributes)
    fields = dict(field.split('=') for field in window[1].split()) if window else {}
    total = 2.0 * math.prod(result.sizes[labels[3].index(letter)] for letter in 'bf')
    total *= kernel.sizes[labels[2].index('i')]
    spatial = sorted(letter for letter in labels[3] if letter.isdigit())
    for axis, letter in enumerate(spatial):
        chosen = {name: value.split('x')[axis] for name, value in fields.items()}
        total *= convolution_pair_count(
            chosen, result.sizes[labels[3].index(letter)], left.sizes[labels[1].index(letter)]
        )
    return total


def convolution_pair_count(window: dict[str, str], outputs: int, inputs: int) -> int:
    """Returns the number of multiply-adds of a one-dimensional convolution, except on padding and dilation gaps."""
    stride, dilation, between = (int(window.get(name, 1)) for name in ('stride', 'rhs_dilate', 'lhs_dilate'))
    before = int(window.get('pad', '0_0').split('_')[0])
    places = np.arange(int(window.get('size', 1))) * dilation - before
    read = np.arange(outputs)[:, None] * stride + places
    return int(((read >= 0) & (read <= (inputs - 1) * between) & (read % between == 0)).sum())


def instruction_memory_traffic(run: ExecutedInstruction, program: HloProgram) -> float:
    """Returns the bytes that an instruction reads and writes in main memory.

    For an instruction that reads only a slice of an operand, only the slice counts. For a kernel that states its work,
    each load of a tile counts, which is an upper bound: a GPU's cache may keep a tile for the next load.
    """
    instruction = run.instruction
    if work := kernel_work(instruction):
        return float(work.loaded_bytes)
    # A '-done' instruction moves no data; it only waits for the asynchronous '-start' instruction, which is counted.
    if instruction.opcode in STILL or instruction.opcode.endswith('-done'):
        return 0.0
    inner = program.computations.get(instruction.called_computations[0], {}) if instruction.opcode == 'fusion' else {}
    if inner:
        return fusion_bytes(inner)
    if instruction.opcode in SLICES:
        return 2 * main_memory_bytes(instruction.shapes)
    if instruction.opcode == 'dynamic-update-slice':
        return 2 * main_memory_bytes(run.operand_shapes()[1:2])
    if instruction.opcode.endswith('-start'):
        return main_memory_bytes(run.operand_shapes()) + main_memory_bytes(instruction.shapes[-1:])
    return main_memory_bytes(run.operand_shapes()) + main_memory_bytes(instruction.shapes)


def fusion_bytes(inner: Computation) -> float:
    """Returns the bytes that a fusion reads and writes in main memory; its last instruction is the result."""
    parameters = [line for line in inner.values() if line.opcode == 'parameter']
    root = list(inner.values())[-1]
    results = [inner[name] for name in root.operands if name in inner] if root.opcode == 'tuple' else [root]
    read = sum(parameter_read_bytes(parameter, inner) for parameter in parameters)
    return read + sum(result_written_bytes(result, inner) for result in results)


def parameter_read_bytes(parameter: HloInstruction, inner: Computation) -> float:
    """Returns the bytes that a fusion reads of one parameter; if the fusion only slices it, only the slice counts."""
    total, waiting = 0.0, [parameter]
    while waiting:
        source = waiting.pop()
        for user in (line for line in inner.values() if source.name in line.operands):
            is_whole = user.operands[0] == source.name
            if user.opcode == 'bitcast':
                waiting.append(user)
            elif user.opcode in SLICES and is_whole:
                total += main_memory_bytes(parameter.shapes) and sum(shape.unpadded_bytes for shape in user.shapes)
            elif not (user.opcode == 'dynamic-update-slice' and is_whole):
                return main_memory_bytes(parameter.shapes)
    return total


def result_written_bytes(result: HloInstruction, inner: Computation) -> float:
    """Returns the bytes that a fusion writes for one result; for an in-place update, only the updated part counts."""
    source = result
    while source.opcode == 'bitcast' and source.operands[0] in inner:
        source = inner[source.operands[0]]
    if source.opcode == 'dynamic-update-slice' and source.operands[1] in inner:
        return main_memory_bytes(result.shapes) and sum(
            shape.unpadded_bytes for shape in inner[source.operands[1]].shapes
        )
    return main_memory_bytes(result.shapes)


def main_memory_bytes(shapes: tuple[Shape, ...]) -> float:
    """Returns the total bytes of the arrays that are in the device's main memory."""
    return sum(shape.unpadded_bytes for shape in shapes if shape.space == 0)
