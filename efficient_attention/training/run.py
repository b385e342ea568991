"""A run built from its config: task, mesh, model graph, the sharded shape of the state, evaluation."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from efficient_attention.config.run import RunConfig
from efficient_attention.distillation.teacher import Teacher, checked_teachers, open_teacher
from efficient_attention.inference.evaluate import Evaluation, Joined, make_evaluation
from efficient_attention.models.device_memory import check_fits, layer_input_bytes, state_bytes
from efficient_attention.models.quantized import check_float_layers, check_some_rounded, quantized_layers
from efficient_attention.models.sharding import abstract_arrays, check_divisible, make_mesh, path_name
from efficient_attention.objectives.objective import Objective, joined
from efficient_attention.pruning.pruner import Pruner, make_pruner
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.tasks.registry import make_task, task_type
from efficient_attention.tasks.task import HostBatch, Task
from efficient_attention.training.optimizer import (
    STACKED_LAYERS,
    check_frozen,
    make_optimizer,
    with_scores_as_they_are,
)
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.workdir.fingerprint import TEACHER

BESIDE_STREAM = 0x6265  # folded into the run's seed for what an objective trains beside the model
SCORES_STREAM = 0x7363  # likewise for the scores of pruning


@dataclasses.dataclass(frozen=True)
class Run:
    """The training of one config's task on one mesh."""

    config: RunConfig
    task: Task
    mesh: Mesh
    graph: nnx.GraphDef
    abstract_state: TrainState  # of jax.ShapeDtypeStruct with shardings
    evaluation: Evaluation
    teacher: Teacher | None = None
    pruner: Pruner | None = None

    @property
    def fingerprint(self) -> dict[str, str]:
        """What a checkpoint of this run is only valid with."""
        return self.task.fingerprint | ({} if self.teacher is None else {TEACHER: self.teacher.digest})

    @property
    def objective(self) -> Objective:
        """What is trained: the task's objective, with the terms of a teacher where there is one."""
        return objective_of(self.task, self.teacher)

    @property
    def held_out_metrics(self) -> frozenset[str]:
        """The names of the metrics of an evaluation."""
        return self.evaluation.metric_names

    @property
    def shardings(self) -> TrainState:
        """How each array of the state lies on the mesh."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    def parameter_count(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params))

    def drawn_state(self) -> TrainState:
        """The state at step 0 with parameters drawn from the seed, made on its devices."""
        make = functools.partial(make_state, self.task, self.config, self.objective, self.pruner)
        return jax.jit(make, out_shardings=self.shardings)()

    @functools.cached_property
    def evaluated(self) -> Callable[[TrainState], Any]:
        """The jitted function from a state to all that an evaluation reads, its parameters masked where they are."""
        pruner = self.pruner
        if pruner is None:
            return lambda state: state.trained

        def masked(state: TrainState) -> Any:
            return joined(pruner.pruned(state.params, state.scores, state.step), state.beside)

        shardings = self.shardings
        return jax.jit(masked, out_shardings=joined(shardings.params, shardings.beside))

    @functools.cached_property
    def weights_kept(self) -> Callable[[TrainState], dict[str, jax.Array]]:
        """The jitted function from a state to the share of weights that are left of each kernel of each layer."""
        assert self.pruner is not None
        pruner = self.pruner
        return jax.jit(lambda state: pruner.kept(state.params, state.scores, state.step))

    def describe(self) -> str:
        """The run's size in one line."""
        shape = ' x '.join(f'{axis} {size}' for axis, size in self.mesh.shape.items())
        kind = self.mesh.devices.flat[0].device_kind
        return f'{self.parameter_count():,} parameters on {self.mesh.size} {kind} device(s) ({shape})'

    def on_devices(self, batch: HostBatch) -> dict[str, jax.Array]:
        """The global batch of this process's rows, as evaluations lay theirs out (inference/evaluate.py).

        Raises:
            InputError: an id is not of the vocabulary.
        """
        return self.evaluation.on_devices(batch)


def build_run(
    config: RunConfig, devices: list[jax.Device] | None = None, *, examples: EncodedExamples | None = None
) -> Run:
    """Checks the config against the devices, prepares the data and lays out the state.

    Args:
        config: complete.
        devices: of the mesh; None = all.
        examples: of a fine-tuning run, where they are read already.

    Raises:
        InputError: mesh, batch or heads do not fit the devices, or the data or model do not serve.
    """
    mesh = checked_mesh(config, devices)
    rows = config.train.batch_size // config.train.micro_batches
    needed = {"its layers' inputs": layer_input_bytes(config, rows, mesh, is_kept=True)}
    check_fits(mesh, needed)  # before data are prepared
    if config.distill.is_on and examples is None:
        checked_teachers(config)  # likewise
    run = lay_out(config, mesh, make_task(config, examples))
    if run.teacher is not None:
        needed = {'the parameters of the teacher': run.teacher.bytes_on_a_device(), **needed}
    check_fits(mesh, {'parameters and optimizer': state_bytes(run.abstract_state), **needed})
    return run


def build_run_without_data(config: RunConfig, devices: list[jax.Device]) -> Run:
    """The same run for a plan: its step can be compiled, for devices that are not there, but no batch can be read.

    Raises:
        InputError: as `build_run`, or the task's sizes follow from data.
    """
    mesh = checked_mesh(config, devices)
    return lay_out(config, mesh, task_type(config).without_data(config))


def checked_mesh(config: RunConfig, devices: list[jax.Device] | None) -> Mesh:
    """The config's mesh; raises InputError where it, the batch or the heads do not fit the devices."""
    mesh = make_mesh(config.mesh, devices)
    check_divisible(
        mesh, batch_size=config.train.batch_size, micro_batches=config.train.micro_batches, heads=config.model.heads
    )
    return mesh


def lay_out(config: RunConfig, mesh: Mesh, task: Task) -> Run:
    """The run of a config's task on its mesh."""
    teacher = open_teacher(config, task, mesh) if task.has_data else None
    objective = objective_of(task, teacher)
    join = None if teacher is None else teacher.join
    evaluation = make_evaluation(config, task, mesh, Joined(objective, join) if join else None)
    model = nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0)))
    graph, _ = nnx.split(model)
    pruner = pruner_of(config, task)
    shapes = jax.eval_shape(lambda: make_state(task, config, objective, pruner))
    check_frozen(config.optimizer, shapes.params, stacked_of(config))
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes.params)]
    check_float_layers(config.model.float_layers, paths)
    if config.model.quantization != 'none':
        check_some_rounded(config.model.float_layers, quantized_layers(model))
    abstract_state = abstract_arrays(shapes, mesh)
    return Run(config, task, mesh, graph, abstract_state, evaluation, teacher, pruner)


def objective_of(task: Task, teacher: Teacher | None) -> Objective:
    """The objective of a task's run."""
    return task.objective if teacher is None else teacher.objective(task)


def pruner_of(config: RunConfig, task: Task) -> Pruner | None:
    """How a run's parameters are masked, None where they are not; raises InputError where there is nothing to prune."""
    if not config.prune.is_on:
        return None
    shapes = jax.eval_shape(lambda: nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(0)))))
    return make_pruner(config.prune, shapes, head_width=config.model.head_width, steps=config.train.steps)


def make_state(task: Task, config: RunConfig, objective: Objective, pruner: Pruner | None = None) -> TrainState:
    """Initial parameters from the seed, and the optimizer's state for them."""
    params = nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(config.train.seed))))
    carry = objective.initial_carry(config.train.batch_size)
    beside = objective.initial_beside(jax.random.fold_in(jax.random.key(config.train.seed), BESIDE_STREAM))
    key = jax.random.fold_in(jax.random.key(config.train.seed), SCORES_STREAM)
    scores = None if pruner is None else pruner.initial_scores(key)
    optimizer = optimizer_of(config)
    return initial_state(params, optimizer, config.train.seed, carry=carry, beside=beside, scores=scores)


def optimizer_of(config: RunConfig) -> Any:
    """The config's optimizer over the whole length of the run."""
    prune, stacked = config.prune, stacked_of(config)
    scores_rate = prune.learning_rate if prune.has_trained_scores else 0.0
    rule = make_optimizer(config.optimizer, config.train.steps, stacked=stacked, scores_rate=scores_rate)
    return with_scores_as_they_are(rule) if prune.has_still_scores else rule


def stacked_of(config: RunConfig) -> str | None:
    """What the paths of parameters have in them that hold an array for each layer; None where all layers share one."""
    return STACKED_LAYERS if config.model.is_stacked else None
