"""Builds the objects that training needs from a config: task, device mesh, model graph, sharded state shapes, and
evaluation.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from efficient_attention.config.run import RunConfig
from efficient_attention.distillation.teacher import Teacher, checked_teachers, open_teacher
from efficient_attention.inference.evaluate import Evaluation, ObjectiveWithExtraArrays, make_evaluation
from efficient_attention.models.device_memory import check_fits, layer_input_bytes, state_bytes
from efficient_attention.models.quantized import check_float_layers, check_some_rounded, quantized_layers
from efficient_attention.models.sharding import abstract_arrays, check_divisible, make_mesh, path_name
from efficient_attention.objectives.objective import Objective, combine_trainable_parts
from efficient_attention.pruning.pruner import Pruner, make_pruner
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.tasks.registry import make_task, task_type
from efficient_attention.tasks.task import HostBatch, Task
from efficient_attention.training.optimizer import build_optimizer, check_frozen, stacked_param_pattern
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.workdir.fingerprint import TEACHER

BESIDE_STREAM = 0x6265  # folded into the run's seed, to initialise arrays that an objective trains besides the model
SCORES_STREAM = 0x7363  # folded into the run's seed, to initialise the scores of pruning


@dataclasses.dataclass(frozen=True)
class Run:
    """A config's training setup on one device mesh: task, model graph, shapes of the training state, and evaluation."""

    config: RunConfig
    task: Task
    mesh: Mesh
    graph: nnx.GraphDef
    abstract_state: TrainState  # shapes of the training state: jax.ShapeDtypeStruct leaves with shardings
    evaluation: Evaluation
    teacher: Teacher | None = None
    pruner: Pruner | None = None

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digests of the run's data and teacher. A checkpoint may only be resumed by a run with equal digests."""
        return self.task.fingerprint | ({} if self.teacher is None else {TEACHER: self.teacher.digest})

    @property
    def objective(self) -> Objective:
        """The training objective: the objective of the task, plus distillation losses if the run has a teacher."""
        return build_objective(self.task, self.teacher)

    @property
    def evaluation_metric_names(self) -> frozenset[str]:
        """The names of the metrics that an evaluation of the run computes."""
        return self.evaluation.metric_names

    @property
    def shardings(self) -> TrainState:
        """The sharding of each array of the training state on the device mesh."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

    def parameter_count(self) -> int:
        """Returns the number of parameters in the model."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params))

    def init_random_state(self) -> TrainState:
        """Returns the training state at step 0, with parameters initialised from the run's seed, created on its
        devices.
        """
        make = functools.partial(make_state, self.task, self.config, self.objective, self.pruner)
        return jax.jit(make, out_shardings=self.shardings)()

    @functools.cached_property
    def evaluation_params_fn(self) -> Callable[[TrainState], Any]:
        """A jitted function from the training state to the arrays that an evaluation uses. In a run that prunes, these
        arrays are masked.
        """
        pruner = self.pruner
        if pruner is None:
            return lambda state: state.trainable_arrays

        def masked(state: TrainState) -> Any:
            return combine_trainable_parts(pruner.pruned(state.params, state.scores, state.step), state.beside)

        shardings = self.shardings
        return jax.jit(masked, out_shardings=combine_trainable_parts(shardings.params, shardings.beside))

    @functools.cached_property
    def kept_weight_share_fn(self) -> Callable[[TrainState], dict[str, jax.Array]]:
        """A jitted function from the training state to the share of weights that pruning has left, per kernel and
        layer.
        """
        assert self.pruner is not None
        pruner = self.pruner
        return jax.jit(lambda state: pruner.kept_share_per_kernel(state.params, state.scores, state.step))

    def describe_run(self) -> str:
        """Returns one line of text about the size of the run: its number of parameters, its devices and its mesh."""
        shape = ' x '.join(f'{axis} {size}' for axis, size in self.mesh.shape.items())
        kind = self.mesh.devices.flat[0].device_kind
        return f'{self.parameter_count():,} parameters on {self.mesh.size} {kind} device(s) ({shape})'

    def put_batch_on_devices(self, batch: HostBatch) -> dict[str, jax.Array]:
        """Puts this process's rows of a batch on the devices, and returns the global batch, as evaluations do
        (inference/evaluate.py).

        Raises:
            InputError: a token id is outside the vocabulary, or a length contradicts the segments of its row.
        """
        return self.evaluation.put_batch_on_devices(batch)


def build_run(
    config: RunConfig, devices: list[jax.Device] | None = None, *, examples: EncodedExamples | None = None
) -> Run:
    """Checks a config against the devices, prepares the data, and returns the run with the shapes of its sharded state.

    Args:
        config: the complete config of the run.
        devices: the devices of the mesh; None = all devices.
        examples: the encoded examples of a fine-tuning run, if already read.

    Raises:
        InputError: mesh, batch or heads do not fit the devices, or the data or the model cannot be used.
    """
    mesh = checked_mesh(config, devices)
    rows = config.train.batch_size // config.train.micro_batches
    needed = {"its layers' inputs": layer_input_bytes(config, rows, mesh, is_kept=True)}
    # Memory is checked before the data are prepared, so that a run that does not fit fails early.
    check_fits(mesh, needed)
    if config.distill.is_enabled and examples is None:
        checked_teachers(config)  # The teachers are also checked early, before the data are prepared.
    run = build_run_on_mesh(config, mesh, make_task(config, examples))
    if run.teacher is not None:
        needed = {'the parameters of the teacher': run.teacher.parameter_bytes_per_device(), **needed}
    check_fits(mesh, {'parameters and optimizer': state_bytes(run.abstract_state), **needed})
    return run


def build_run_without_data(config: RunConfig, devices: list[jax.Device]) -> Run:
    """Returns a run without data, to estimate memory and time. Its training step compiles for devices that do not exist
    on this machine.

    Raises:
        InputError: as `build_run`, or the task's sizes depend on data.
    """
    mesh = checked_mesh(config, devices)
    return build_run_on_mesh(config, mesh, task_type(config).without_data(config))


def checked_mesh(config: RunConfig, devices: list[jax.Device] | None) -> Mesh:
    """Returns the device mesh of a config; raises InputError if the mesh, batch size or number of heads does not fit
    the devices.
    """
    mesh = make_mesh(config.mesh, devices)
    check_divisible(
        mesh, batch_size=config.train.batch_size, micro_batches=config.train.micro_batches, heads=config.model.heads
    )
    return mesh


def build_run_on_mesh(config: RunConfig, mesh: Mesh, task: Task) -> Run:
    """Builds the run of a task on a device mesh: model graph, evaluation and the shapes of the sharded state."""
    teacher = open_teacher(config, task, mesh) if task.has_data else None
    objective = build_objective(task, teacher)
    join = None if teacher is None else teacher.add_teacher_outputs
    evaluation = make_evaluation(config, task, mesh, ObjectiveWithExtraArrays(objective, join) if join else None)
    model = nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0)))
    graph, _ = nnx.split(model)
    pruner = build_pruner(config, task)
    shapes = jax.eval_shape(lambda: make_state(task, config, objective, pruner))
    check_frozen(config.optimizer, shapes.params, stacked_param_pattern(config))
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes.params)]
    check_float_layers(config.model.float_layers, paths)
    if config.model.quantization != 'none':
        check_some_rounded(config.model.float_layers, quantized_layers(model))
    abstract_state = abstract_arrays(shapes, mesh)
    return Run(config, task, mesh, graph, abstract_state, evaluation, teacher, pruner)


def build_objective(task: Task, teacher: Teacher | None) -> Objective:
    """Returns the training objective of a run: the objective of the task, with distillation losses if there is a
    teacher.
    """
    return task.objective if teacher is None else teacher.objective(task)


def build_pruner(config: RunConfig, task: Task) -> Pruner | None:
    """Returns the pruner of a run, or None if nothing is pruned; raises InputError if the model has nothing to
    prune.
    """
    if not config.prune.is_enabled:
        return None
    shapes = jax.eval_shape(lambda: nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(0)))))
    return make_pruner(config.prune, shapes, head_width=config.model.head_width, steps=config.train.steps)


def make_state(task: Task, config: RunConfig, objective: Objective, pruner: Pruner | None = None) -> TrainState:
    """Makes the training state at step 0: parameters, extra trained arrays and pruning scores from the seed, and the
    optimizer's state.
    """
    params = nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(config.train.seed))))
    carry = objective.initial_carry(config.train.batch_size)
    beside = objective.initial_auxiliary_params(jax.random.fold_in(jax.random.key(config.train.seed), BESIDE_STREAM))
    key = jax.random.fold_in(jax.random.key(config.train.seed), SCORES_STREAM)
    scores = None if pruner is None else pruner.initial_scores(key)
    optimizer = build_optimizer(config)
    return initial_state(params, optimizer, config.train.seed, carry=carry, beside=beside, scores=scores)
