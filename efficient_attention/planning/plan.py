"""Plans a config's training step on a topology: memory, cost, estimated time, and the largest batch that fits."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from efficient_attention.config.run import RunConfig
from efficient_attention.planning.collectives import Collective, collectives_of
from efficient_attention.planning.cost import Cost, cost_of
from efficient_attention.planning.step import PlannedStep, compile_step
from efficient_attention.planning.topology import Topology, devices_of
from efficient_attention.training.throughput import peak_flops

MOST_COMPILED = 3  # most batches compiled in the search for the largest batch
ENOUGH = 0.9  # share of the memory; the search stops at a batch that uses this much


class LinearMemoryModel(NamedTuple):
    """A linear model of a device's bytes as a function of the rows of the global batch."""

    fixed: float
    per_row: float

    @classmethod
    def fit_two_points(cls, points: dict[int, int]) -> 'LinearMemoryModel':
        """Returns the line through the two largest sizes; `points`: rows -> bytes."""
        (rows, needed), (before, needed_before) = sorted(points.items(), reverse=True)[:2]
        per_row = max((needed - needed_before) / (rows - before), 0.0)
        return cls(needed - per_row * rows, per_row)

    def max_rows(self, limit: int, step: int) -> int:
        """Returns the most rows, a multiple of `step`, that stay within `limit` bytes; 0 if rows cost nothing."""
        return max(int((limit - self.fixed) / self.per_row) // step, 0) * step if self.per_row else 0


class LargestBatch(NamedTuple):
    """The result of the search for the largest batch."""

    rows: int  # 0 = no batch fits
    points: dict[int, int]  # rows of each compiled batch -> bytes of a device


@dataclasses.dataclass(frozen=True)
class StepTimeEstimate:
    """Estimated seconds of a step; None if a needed figure is not known."""

    products: float | None  # matrix products at the published peak
    traffic: float | None  # reads and writes at the published bandwidth
    compiler: float | None  # the compiler's estimated cycles, without collectives
    collectives: float | None  # if each axis sends at the published rate of a ring, without overlap

    @property
    def step_seconds(self) -> float | None:
        """An upper estimate of the whole step's seconds, without overlap of collectives and computation."""
        roofline = None if self.products is None or self.traffic is None else max(self.products, self.traffic)
        compute = self.compiler if self.compiler is not None else roofline
        return None if compute is None or self.collectives is None else compute + self.collectives


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of one config on one topology."""

    topology: Topology
    step: PlannedStep
    batch_size: int  # batch size for which the step was compiled
    cost: Cost | None  # None if the step fits on no device
    collectives: list[Collective]
    uncounted_loops: int  # loops counted as one turn, because their number of turns is not known
    estimate: StepTimeEstimate
    largest: LargestBatch | None  # None if it was not searched for

    @property
    def activation_bytes(self) -> int | None:
        """The part of the temporary memory that grows with the rows; None if only one batch was compiled."""
        if self.largest is None or len(self.largest.points) < 2:
            return None
        growing = LinearMemoryModel.fit_two_points(self.largest.points).per_row * self.batch_size
        return min(round(growing), self.step.memory.temporary)


def make_plan(config: RunConfig, topology: Topology, *, is_searched: bool = True) -> Plan:
    """Compiles the step for the config's batch, optionally searches for the largest batch, and returns the plan.

    If the config's batch does not fit, the plan describes the largest batch that fits.

    Raises:
        InputError: the environment cannot compile for the topology, or the config does not fit its devices.
    """
    devices = devices_of(topology)
    steps: dict[int, PlannedStep] = {}

    def needed(rows: int) -> int:
        train = dataclasses.replace(config.train, batch_size=rows)
        steps[rows] = compile_step(dataclasses.replace(config, train=train), devices)
        return steps[rows].memory.total_bytes

    rows, largest = config.train.batch_size, None
    first = needed(rows)
    if is_searched:
        start = {0: steps[rows].memory.minimum_bytes, rows: first}
        largest = largest_batch(needed, start, step=batch_size_multiple(steps[rows]), limit=topology.memory_per_device)
    if largest and largest.rows and steps[rows].memory.total_bytes > topology.memory_per_device:
        rows = largest.rows
    return plan_of(topology, steps[rows], rows, largest)


def batch_size_multiple(step: PlannedStep) -> int:
    """Returns the factor of which batch rows must be a multiple: the devices that share rows times micro-batches."""
    shape = step.run.mesh.shape
    return shape['data'] * shape['fsdp'] * step.run.config.train.micro_batches


def largest_batch(needed: Callable[[int], int], start: dict[int, int], *, step: int, limit: int) -> LargestBatch:
    """Returns the largest compiled batch within `limit` bytes, searched with a linear model of bytes per row.

    The first guess assumes that all bytes beyond those of 0 rows grow with the rows. Each next guess uses the line
    through the last two batches.

    Args:
        needed: compiles a batch of this many rows and returns the bytes of a device.
        start: known bytes of 0 rows, and bytes of the first, already compiled batch.
        step: the number of rows must be a multiple of it.
        limit: bytes of a device.
    """
    points = dict(start)

    def best() -> int:
        return max(rows for rows, bytes_ in points.items() if bytes_ <= limit or not rows)

    while len(points) <= MOST_COMPILED and (not best() or points[best()] < ENOUGH * limit):
        refused = [rows for rows, bytes_ in points.items() if bytes_ > limit]
        guess = min(
            [LinearMemoryModel.fit_two_points(points).max_rows(limit, step), *(rows - step for rows in refused)]
        )
        if guess <= best():
            break
        points[guess] = needed(guess)
    return LargestBatch(best(), {rows: bytes_ for rows, bytes_ in points.items() if rows})


def plan_of(topology: Topology, step: PlannedStep, rows: int, largest: LargestBatch | None) -> Plan:
    """Returns the plan of a compiled step."""
    program = step.program
    cost = cost_of(program) if program else None
    collectives = collectives_of(program, step.run.mesh.shape) if program else []
    estimate = estimate_step_time(topology, step, cost, collectives)
    loops = len(program.loops_of_unknown_length()) if program else 0
    return Plan(topology, step, rows, cost, collectives, loops, estimate, largest)


def estimate_step_time(
    topology: Topology, step: PlannedStep, cost: Cost | None, collectives: list[Collective]
) -> StepTimeEstimate:
    """Returns the estimated seconds of a step; all None for a CPU, for which no figures are published."""
    chip, peak = topology.chip, peak_flops(step.run.mesh.devices.flat[0].device_kind)
    if chip is None or peak is None or cost is None:
        return StepTimeEstimate(None, None, None, None)
    sent = sum(collective.sent_bytes for collective in collectives)
    compiler = cost.cycles / chip.clock if chip.clock and cost.cycles else None
    return StepTimeEstimate(cost.flops / peak, cost.bytes / chip.bandwidth, compiler, sent / chip.link)


def as_dict(plan: Plan) -> dict[str, Any]:
    """Returns the plan's figures as a dict for a JSON file."""
    memory = dataclasses.asdict(plan.step.memory)
    return {
        'topology': dataclasses.asdict(plan.topology),
        'mesh': dict(plan.step.run.mesh.shape),
        'jax': jax.__version__,
        'batch_size': plan.batch_size,
        'parameters': plan.step.run.parameter_count(),
        'memory_bytes': memory | {'activations': plan.activation_bytes, 'limit': plan.topology.memory_per_device},
        'model_flops': plan.step.run.task.training_flops(),
        'cost': dataclasses.asdict(plan.cost) if plan.cost else None,
        'collectives': [dataclasses.asdict(collective) for collective in plan.collectives],
        'seconds': dataclasses.asdict(plan.estimate) | {'step': plan.estimate.step_seconds},
        'largest_batch': plan.largest.rows if plan.largest else None,
        'compiled_batches': plan.largest.points if plan.largest else {},
    }
