"""A plan as text."""

import dataclasses
import functools
from collections.abc import Iterator

from efficient_attention.models.device_memory import in_units
from efficient_attention.planning.chips import TERA
from efficient_attention.planning.plan import Plan

NAMES = {
    'parameters': 'parameters',
    'optimizer': 'optimizer',
    'others': 'counters, what is carried on',
    'batch': 'batch',
    'temporary': 'temporary',
    'program': 'program and padding',
}
in_bytes = functools.partial(in_units, decimals=2)


def report(plan: Plan) -> str:
    """The plan in lines for a terminal."""
    run, length = plan.step.run, plan.step.run.config.data.length
    title = f'{run.describe()}, a batch of {plan.batch_size} rows of {length} tokens'
    return '\n'.join([title, *memory_lines(plan), *cost_lines(plan), *time_lines(plan), *largest_lines(plan)])


def memory_lines(plan: Plan) -> Iterator[str]:
    """What a device holds."""
    memory, activations = plan.step.memory, plan.activation_bytes
    yield f'memory of a device, of {in_bytes(plan.topology.memory)}:'
    for field in dataclasses.fields(memory):
        yield f'  {NAMES[field.name]:<30}{in_bytes(getattr(memory, field.name)):>12}'
        if field.name == 'temporary' and activations is not None:
            yield f'    {"grows with the rows: activations":<33}{in_bytes(activations):>12}'
            yield f'    {"the rest: gradients and copies":<33}{in_bytes(memory.temporary - activations):>12}'
    yield f'  {"together":<30}{in_bytes(memory.total):>12}'


def cost_lines(plan: Plan) -> Iterator[str]:
    """Operations, memory traffic and collectives of a step."""
    if plan.cost is None:
        yield 'the compiler refuses this program, because no device can hold it'
        return
    share = plan.step.run.task.training_flops() / plan.step.run.mesh.size / max(plan.cost.flops, 1)
    yield 'of a device in a step:'
    yield f'  matrix products {plan.cost.flops / TERA:.3g} TFLOP, of which the model needs {share:.0%}'
    yield f'  memory traffic {in_bytes(round(plan.cost.bytes))}'
    if not plan.collectives:
        yield '  no collectives'
    for one in plan.collectives:
        yield f'  {one.kind} over {one.axes}: {one.count}, {in_bytes(round(one.sent_bytes))} sent'
    if plan.uncounted_loops:
        yield f'  {plan.uncounted_loops} loops count once: how often they run is not in the program'


def time_lines(plan: Plan) -> Iterator[str]:
    """The estimated seconds, and what they follow from."""
    estimate = plan.estimate
    if plan.cost is None:
        return
    if estimate.products is None or estimate.traffic is None or estimate.collectives is None:
        yield 'time: no estimate, no peak and bandwidth are published for these devices'
        return
    source = 'a roofline of published peaks' if estimate.compiler is None else "the compiler's cycles"
    yield f'time of a step: at most {1e3 * (estimate.step or 0):.3g} ms by {source}, with collectives that hide nowhere'
    if estimate.compiler is not None:
        yield f"  the compiler's cycles {1e3 * estimate.compiler:.3g} ms"
    yield f'  matrix products at the peak {1e3 * estimate.products:.3g} ms'
    yield f'  memory traffic at the bandwidth {1e3 * estimate.traffic:.3g} ms'
    yield f'  collectives at the rate of a ring {1e3 * estimate.collectives:.3g} ms'


def largest_lines(plan: Plan) -> Iterator[str]:
    """The largest batch, where it was searched for."""
    if plan.largest is None:
        return
    tried = ', '.join(f'{rows} rows {in_bytes(needed)}' for rows, needed in sorted(plan.largest.points.items()))
    found = f'largest batch that fits: {plan.largest.rows} rows' if plan.largest.rows else 'no batch fits'
    yield f'{found} (compiled: {tried})'
