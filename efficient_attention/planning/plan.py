"""Plans a training step on given devices: memory, FLOPs, estimated time, and the largest batch that fits."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from efficient_attention.config.model import REMAT_POLICIES
from efficient_attention.config.run import RunConfig
from efficient_attention.planning.chips import Chip
from efficient_attention.planning.collectives import CollectiveTotal, collectives_of
from efficient_attention.planning.cost import Cost, cost_of
from efficient_attention.planning.step_compilation import PlannedStep, compile_step
from efficient_attention.planning.topology import Topology, make_topology_devices
from efficient_attention.training.remat_choice import policies_to_try
from efficient_attention.training.throughput import peak_flops

MOST_COMPILED = 3  # maximum number of batch sizes that the search for the largest batch compiles
ENOUGH = 0.9  # the search stops at a batch that uses this share of a device's memory


class LinearMemoryModel(NamedTuple):
    """A linear model of a device's memory in bytes: a constant, plus a term per row of the global batch."""

    fixed: float
    per_row: float

    @classmethod
    def fit_two_points(cls, points: dict[int, int]) -> 'LinearMemoryModel':
        """Returns the linear model that is exact for the two largest compiled batch sizes; `points` maps batch rows to
        bytes.
        """
        (rows, needed), (before, needed_before) = sorted(points.items(), reverse=True)[:2]
        per_row = max((needed - needed_before) / (rows - before), 0.0)
        return cls(needed - per_row * rows, per_row)

    def max_rows(self, limit: int, step: int) -> int:
        """Returns the largest batch size, a multiple of `step`, that stays within `limit` bytes.

        Returns 0 if the memory does not grow with the rows.
        """
        return max(int((limit - self.fixed) / self.per_row) // step, 0) * step if self.per_row else 0


class LargestBatch(NamedTuple):
    """The result of the search for the largest batch that fits into a device's memory."""

    rows: int  # rows of the largest batch; 0 if no batch fits
    points: dict[int, int]  # {rows of a compiled batch: bytes that a device needs}


@dataclasses.dataclass(frozen=True)
class StepTimeEstimate:
    """Estimates of a training step's seconds and their parts; None where a specification of the chip is not known."""

    products: float | None  # seconds of matrix products at the published peak FLOP/s
    traffic: float | None  # seconds of memory reads and writes at the published bandwidth
    # seconds by the compiler's estimated cycles, without collectives, and of products in kernels at the published peak
    compiler: float | None
    collectives: float | None  # seconds to send all bytes of the collectives at the published rate of a ring
    # for each of the project's GPU kernels, its seconds of products and of traffic, which are also part of the above
    kernels: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    @property
    def step_seconds(self) -> float | None:
        """An estimate of a step's seconds, which assumes that collectives do not overlap with computation.

        A kernel overlaps its own products with its own traffic, but not with those of other operations.
        """
        roofline = None
        if self.products is not None and self.traffic is not None:
            in_kernels = [sum(seconds) for seconds in zip(*self.kernels.values(), strict=True)] or [0.0, 0.0]
            roofline = max(self.products - in_kernels[0], self.traffic - in_kernels[1]) + self.kernel_seconds
        compute = self.compiler if self.compiler is not None else roofline
        return None if compute is None or self.collectives is None else compute + self.collectives

    @property
    def kernel_seconds(self) -> float:
        """The seconds of the project's GPU kernels: for each, the longer of its products and its traffic."""
        return sum(map(max, self.kernels.values()))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The estimated memory, cost and time of a config's training step on one topology."""

    topology: Topology
    step: PlannedStep
    batch_size: int  # rows of the batch for which the step was compiled
    cost: Cost | None  # None if the compiler refused the step, because no device can hold it
    collectives: list[CollectiveTotal]
    uncounted_loops: int  # number of loops whose iterations are not known; the plan counts one iteration for each
    estimate: StepTimeEstimate
    largest: LargestBatch | None  # None if the largest batch was not searched for

    @property
    def is_fitting(self) -> bool:
        """Whether the step fits into the memory of one device."""
        return self.step.memory.total_bytes <= self.topology.memory_per_device

    @property
    def activation_bytes(self) -> int | None:
        """The bytes of temporary memory that grow with the batch size; None if only one batch size was compiled."""
        if self.largest is None or len(self.largest.points) < 2:
            return None
        growing = LinearMemoryModel.fit_two_points(self.largest.points).per_row * self.batch_size
        return min(round(growing), self.step.memory.temporary)


def with_remat(config: RunConfig, policy: str) -> RunConfig:
    """Returns the config with another `model.remat`; raises InputError if the model does not allow it."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=policy))


def compile_fitting_step(config: RunConfig, devices: list[jax.Device], limit: int) -> PlannedStep:
    """Compiles a config's training step.

    With `model.remat='auto'`, it takes the first of `policies_to_try` that fits `limit` bytes, or else the last policy.
    """
    if config.model.remat != 'auto':
        return compile_step(config, devices)
    *policies, last = policies_to_try(devices[0].platform)
    for policy in policies:
        step = compile_step(with_remat(config, policy), devices)
        if step.memory.total_bytes <= limit:
            return step
    return compile_step(with_remat(config, last), devices)


def make_plan(config: RunConfig, topology: Topology, *, is_searched: bool = True) -> Plan:
    """Compiles a config's training step for a topology, and returns the plan: memory, cost and estimated time.

    If `is_searched`, this also searches for the largest batch that fits. If the config's batch does not fit, the plan
    then describes the largest batch that fits.

    Raises:
        InputError: the environment cannot compile for the topology, or the config does not fit its devices.
    """
    devices = make_topology_devices(topology)
    rows, largest = config.train.batch_size, None
    steps = {rows: compile_fitting_step(config, devices, topology.memory_per_device)}
    # The largest batch of 'auto' is the largest batch of the policy that stores least.
    least = with_remat(config, REMAT_POLICIES[-1]) if config.model.remat == 'auto' else config

    def needed(rows: int) -> int:
        train = dataclasses.replace(least.train, batch_size=rows)
        steps[rows] = compile_step(dataclasses.replace(least, train=train), devices)
        return steps[rows].memory.total_bytes

    if is_searched:
        is_least = steps[rows].run.config.model.remat == least.model.remat
        first = steps[rows] if is_least else compile_step(least, devices)
        start = {0: first.memory.bytes_without_rows, rows: first.memory.total_bytes}
        largest = largest_batch(needed, start, step=batch_size_multiple(steps[rows]), limit=topology.memory_per_device)
    if largest and largest.rows and steps[rows].memory.total_bytes > topology.memory_per_device:
        rows = largest.rows
    return plan_of_compiled_step(topology, steps[rows], rows, largest)


def batch_size_multiple(step: PlannedStep) -> int:
    """Returns the number of which the batch size must be a multiple: data-parallel devices times micro-batches."""
    shape = step.run.mesh.shape
    return shape['data'] * shape['fsdp'] * step.run.config.train.micro_batches


def largest_batch(needed: Callable[[int], int], start: dict[int, int], *, step: int, limit: int) -> LargestBatch:
    """Returns the largest batch that fits into a device's memory, found by compiling a few batch sizes.

    Each batch size to compile is predicted by a linear model of bytes per row. The first model assumes that all bytes
    beyond the bytes of 0 rows grow with the rows. Each later model is the line through the two largest batches.

    Args:
        needed: compiles a batch of this many rows and returns the bytes that a device needs.
        start: known bytes of 0 rows, and bytes of the first, already compiled batch.
        step: the number of rows must be a multiple of this number.
        limit: bytes of memory of a device.
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


def plan_of_compiled_step(topology: Topology, step: PlannedStep, rows: int, largest: LargestBatch | None) -> Plan:
    """Returns the plan of a compiled training step: its memory, cost, collectives and estimated time."""
    program = step.program
    cost = cost_of(program) if program else None
    collectives = collectives_of(program, step.run.mesh.shape) if program else []
    estimate = estimate_step_time(topology, step, cost, collectives)
    loops = len(program.loops_of_unknown_length()) if program else 0
    return Plan(topology, step, rows, cost, collectives, loops, estimate, largest)


def estimate_step_time(
    topology: Topology, step: PlannedStep, cost: Cost | None, collectives: list[CollectiveTotal]
) -> StepTimeEstimate:
    """Returns the estimated seconds of a training step; all None for a CPU, whose peak and bandwidth are not known."""
    chip, peak = topology.chip, peak_flops(step.run.mesh.devices.flat[0].device_kind)
    if chip is None or peak is None or cost is None:
        return StepTimeEstimate(None, None, None, None)
    sent = sum(collective.sent_bytes for collective in collectives)
    return estimate_times(chip, peak, cost, sent / chip.link)


def estimate_times(chip: Chip, peak: float, cost: Cost, collectives: float = 0.0) -> StepTimeEstimate:
    """Returns the estimated seconds of a program with this cost on a chip of this peak FLOP/s; `collectives` are its
    seconds for sending.
    """
    compiler = cost.cycles / chip.clock + cost.kernel_flops / peak if chip.clock and cost.cycles else None
    kernels = {name: (work.flops / peak, work.loaded_bytes / chip.bandwidth) for name, work in cost.kernels.items()}
    return StepTimeEstimate(cost.flops / peak, cost.bytes / chip.bandwidth, compiler, collectives, kernels)


def as_dict(plan: Plan) -> dict[str, Any]:
    """Returns all numbers of a plan as a dict for a JSON file."""
    memory = dataclasses.asdict(plan.step.memory)
    return {
        'topology': dataclasses.asdict(plan.topology),
        'mesh': dict(plan.step.run.mesh.shape),
        'jax': jax.__version__,
        'batch_size': plan.batch_size,
        'remat': plan.step.run.config.model.remat,
        'parameters': plan.step.run.parameter_count(),
        'memory_bytes': memory | {'activations': plan.activation_bytes, 'limit': plan.topology.memory_per_device},
        'model_flops': plan.step.run.task.training_flops(),
        'cost': dataclasses.asdict(plan.cost) if plan.cost else None,
        'collectives': [dataclasses.asdict(collective) for collective in plan.collectives],
        'seconds': dataclasses.asdict(plan.estimate) | {'step': plan.estimate.step_seconds},
        'largest_batch': plan.largest.rows if plan.largest else None,
        'compiled_batches': plan.largest.points if plan.largest else {},
    }
