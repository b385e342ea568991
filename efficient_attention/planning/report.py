"""Formats a training plan as text for a terminal."""

import dataclasses
import functools
from collections.abc import Iterator

from efficient_attention.models.device_memory import format_bytes
from efficient_attention.planning.chips import GIGA, TERA
from efficient_attention.planning.plan import Plan

NAMES = {
    'parameters': 'parameters',
    'optimizer': 'optimizer',
    'others': 'step counter, segment memory',
    'batch': 'rows of the batch',
    'temporary': 'temporary, within the step',
    'program': 'program code and padding',
}
in_bytes = functools.partial(format_bytes, decimals=2)


def format_plan(plan: Plan) -> str:
    """Returns the plan as lines of text for a terminal."""
    title = f'{plan.step.run.describe_run()}, a batch of {plan.batch_size} rows of {row_length(plan)}'
    remat = plan.step.run.config.model.remat
    title += '' if remat == 'none' else f', model.remat={remat}'
    return '\n'.join(
        [
            title,
            *missing_teacher_lines(plan),
            *memory_lines(plan),
            *cost_lines(plan),
            *time_lines(plan),
            *largest_batch_lines(plan),
        ]
    )


def row_length(plan: Plan) -> str:
    """Returns the row length of a planned batch as text; for text-to-text tasks, the lengths of source and target."""
    source, target = (plan.step.run.task.batch_shapes().get(name) for name in ('source', 'tokens'))
    if source is None or target is None:
        return f'{plan.step.run.config.data.length} tokens'
    return f'{source.shape[1]} tokens and targets of {target.shape[1]}'


def missing_teacher_lines(plan: Plan) -> Iterator[str]:
    """Yields a notice, if the run distils from a teacher, that the plan does not include the teacher's cost.

    A plan opens no model folder, so the size of the teacher is not known.
    """
    if plan.step.run.config.distill.is_enabled:
        yield 'without distill.teacher, whose parameters and forward pass on each device are not in these figures'


def memory_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines of a plan about the memory that one device needs."""
    memory, activations = plan.step.memory, plan.activation_bytes
    yield 'memory of one device during a step:'
    for field in dataclasses.fields(memory):
        yield f'  {NAMES[field.name]:<30}{in_bytes(getattr(memory, field.name)):>12}'
        if field.name == 'temporary' and activations is not None:
            yield f'    {"activations: grow with rows":<28}{in_bytes(activations):>12}'
            yield f'    {"gradients, updates, copies":<28}{in_bytes(memory.temporary - activations):>12}'
    room, fits = in_bytes(plan.topology.memory_per_device), 'fits' if plan.is_fitting else 'does not fit'
    yield f'  {"total":<30}{in_bytes(memory.total_bytes):>12} of {room}: {fits}'


def cost_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines of a plan about the FLOPs, memory traffic and collectives of a step."""
    if plan.cost is None:
        yield 'the compiler refuses this program, because no device can hold it: no figures of operations or time'
        return
    share = plan.step.run.task.training_flops() / plan.step.run.mesh.size / max(plan.cost.flops, 1)
    yield 'what one device does in a step:'
    is_large = plan.cost.flops >= TERA / 100
    products = f'{plan.cost.flops / TERA:.3g} TFLOP' if is_large else f'{plan.cost.flops / GIGA:.3g} GFLOP'
    yield f'  matrix products {products}, of which the model needs {share:.0%}'
    if plan.cost.kernel_flops:
        kernels = plan.cost.kernel_flops / plan.cost.flops
        yield f'    at most {kernels:.0%} in splash attention, whose time is taken at the published peak'
    for kernel in plan.cost.kernels.values():
        loaded = in_bytes(kernel.loaded_bytes)
        yield f'    {kernel.flops / plan.cost.flops:.0%} in the kernel {kernel.name} of mosaic, which loads {loaded}'
    if plan.cost.uncounted_calls:
        yield f'  not counted: what is inside calls of {", ".join(plan.cost.uncounted_calls)}'
    yield f'  reads and writes {in_bytes(round(plan.cost.bytes))} of its memory'
    sent = sum(one.sent_bytes for one in plan.collectives)
    yield f'  sends {in_bytes(round(sent))} to other devices' + (':' if plan.collectives else '')
    for one in plan.collectives:
        yield f'    {one.count} x {one.kind} over {one.axes}: {in_bytes(round(one.sent_bytes))}'
    if plan.uncounted_loops:
        yield f'  {plan.uncounted_loops} loops count once: how often they run is not in the program'


def time_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines of a plan about the estimated seconds of a step and their parts."""
    estimate = plan.estimate
    if plan.cost is None:
        return
    if estimate.products is None or estimate.traffic is None or estimate.collectives is None:
        yield 'time of a step: no estimate, as no peak and no bandwidth are published for these devices'
        return
    lines = {
        "the compiler's estimate, without sending": estimate.compiler,
        'matrix products, at the published peak': estimate.products,
        'memory traffic, at the published bandwidth': estimate.traffic,
        'of both, in kernels of mosaic': estimate.kernel_seconds or None,
        'sending, at the published rate of links': estimate.collectives,
    }
    how = "the compiler's estimate" if estimate.compiler is not None else 'the longer of products and memory traffic'
    how += ', separately for each kernel' if estimate.kernels else ''
    yield f'estimated time of a step: {1e3 * (estimate.step_seconds or 0):.3g} ms: {how}, plus sending'
    for name, seconds in lines.items():
        if seconds is not None:
            yield f'  {name:<45}{1e3 * seconds:>8.3g} ms'


def largest_batch_lines(plan: Plan) -> Iterator[str]:
    """Yields the line of a plan about the largest batch that fits, if the planner searched for it."""
    if plan.largest is None:
        return
    tried = ', '.join(f'{rows} rows {in_bytes(needed)}' for rows, needed in sorted(plan.largest.points.items()))
    found = f'largest batch that fits: {plan.largest.rows} rows' if plan.largest.rows else 'no batch fits'
    yield f'{found} (compiled: {tried})'
