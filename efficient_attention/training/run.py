"""From a config to what the loops need: task, mesh, model graph, optimizer, and the sharded shape of the state."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from efficient_attention.attention.device_kind import compiled_for
from efficient_attention.errors import InputError
from efficient_attention.evaluation.evaluate import evaluate, evaluate_outputs
from efficient_attention.interop.lengthen import lengthen
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.tasks.registry import make_task
from efficient_attention.tasks.task import HostBatch, Task
from efficient_attention.training.config import RunConfig
from efficient_attention.training.optimizer import STACKED_LAYERS, check_frozen, make_optimizer
from efficient_attention.training.sharding import (
    batch_sharding,
    check_divisible,
    make_mesh,
    state_shardings,
    to_devices,
)
from efficient_attention.training.start import check_same_vocabulary, started_params
from efficient_attention.training.state import TrainState, initial_state
from efficient_attention.training.step import StepFn, make_eval_step, make_train_step


@dataclasses.dataclass(frozen=True)
class Run:
    """One config's task on one mesh."""

    config: RunConfig
    task: Task
    mesh: Mesh
    graph: nnx.GraphDef
    abstract_state: TrainState  # of jax.ShapeDtypeStruct with shardings

    @property
    def fingerprint(self) -> dict[str, str]:
        """What a checkpoint of this run is only valid with."""
        return self.task.fingerprint

    def parameter_count(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state.params))

    def fresh_state(self) -> TrainState:
        """The state at step 0, made on its devices: parameters of `train.start_from`, or drawn.

        Raises:
            InputError: the checkpoint to start from does not fit the model, or has another tokenizer.
        """
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        state = jax.jit(lambda: make_state(self.task, self.config), out_shardings=shardings)()
        if not self.config.train.start_from or self.config.train.start_random:
            return state
        start = Path(self.config.train.start_from)
        pretrained, places = open_pretrained(start), self.config.model.global_tokens
        check_same_vocabulary(self.task.vocabulary, pretrained.tokenizer, start)
        if places and not pretrained.model.global_tokens:
            pretrained = lengthen(pretrained, global_tokens=places)  # projections of global tokens begin as copies
        params = pretrained.params()
        if not has_same_outputs(pretrained, self.config):
            if params.pop('head', None) is not None:  # numbers for other labels, even if they are as many
                logging.getLogger(__name__).warning('%s: its head is for other labels and is not used', start)
        return dataclasses.replace(state, params=started_params(state.params, params, start))

    def origin(self) -> str:
        """Where the parameters of step 0 come from, in a few words."""
        start, drawn = self.config.train.start_from, f'parameters drawn from seed {self.config.train.seed}'
        if not start:
            return drawn
        if self.config.train.start_random:
            return f'{drawn}, sizes and tokenizer from {start}'
        return f'parameters from {open_pretrained(Path(start)).origin()}'

    def train_step(self) -> StepFn:
        """The jitted training step; it takes its state's memory over."""
        step = make_train_step(
            self.graph, self.task.objective, optimizer_of(self.config), micro_batches=self.config.train.micro_batches
        )
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        step = compiled_for(self.mesh.devices.flat[0].platform)(step)
        return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))

    def describe(self) -> str:
        """The run's size in one line."""
        shape = ' x '.join(f'{axis} {size}' for axis, size in self.mesh.shape.items())
        kind = self.mesh.devices.flat[0].device_kind
        return f'{self.parameter_count():,} parameters on {self.mesh.size} {kind} device(s) ({shape})'

    def eval_step(self) -> Any:
        """The jitted evaluation step, from parameters and a batch to sums and weights (`make_eval_step`)."""
        graph, _ = nnx.split(nnx.eval_shape(lambda: self.task.make_evaluation_model(nnx.Rngs(0))))
        step = make_eval_step(graph, self.task.evaluation_objective)
        return jax.jit(compiled_for(self.mesh.devices.flat[0].platform)(step))

    def evaluate(self, eval_step: Any, params: Any) -> dict[str, float]:
        """The held-out metrics of these parameters by the task's protocol."""
        batches = self.task.evaluation_batches(jax.process_index(), jax.process_count())
        if self.task.evaluation_objective.has_outputs:
            token_outputs = self.task.evaluation_objective.token_outputs
            means, outputs = evaluate_outputs(eval_step, params, batches, self.on_devices, token_outputs)
            return self.task.finish_metrics(means) | self.task.scores(outputs)
        shapes = jax.eval_shape(lambda: self.task.evaluation_objective.initial_carry(self.config.eval.batch_size))
        carry = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=batch_sharding(self.mesh)), shapes)
        return self.task.finish_metrics(evaluate(eval_step, params, batches, self.on_devices, carry))

    def on_devices(self, batch: HostBatch) -> dict[str, jax.Array]:
        """The global batch of this process's rows."""
        return to_devices(batch, self.mesh)


def build_run(config: RunConfig, devices: list[jax.Device] | None = None) -> Run:
    """Checks the config against the devices, prepares the data and lays out the state.

    Raises:
        InputError: mesh, batch or heads do not fit the devices, or the data or model do not serve.
    """
    mesh = make_mesh(config.mesh, devices)
    check_divisible(
        mesh, batch_size=config.eval.batch_size, micro_batches=1, heads=config.model.heads, field='eval.batch_size'
    )
    check_divisible(
        mesh, batch_size=config.train.batch_size, micro_batches=config.train.micro_batches, heads=config.model.heads
    )
    task = first_process_first(
        make_task,
        config.task,
        config.data,
        config.model,
        batch_size=config.train.batch_size,
        evaluation=config.eval,
        seed=config.train.seed,
        fine_tuning=(config.examples, config.head),
    )
    graph, _ = nnx.split(nnx.eval_shape(lambda: task.make_model(nnx.Rngs(0))))
    shapes = jax.eval_shape(lambda: make_state(task, config))
    check_frozen(config.optimizer, shapes.params, stacked_of(config))
    shardings = state_shardings(shapes, mesh)
    abstract = jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, shardings
    )
    return Run(config, task, mesh, graph, abstract)


def has_same_outputs(pretrained: Pretrained, config: RunConfig) -> bool:
    """Whether a checkpoint's head means what the config's examples mean; both kinds of spans mean the same."""
    problems = {pretrained.problem, config.examples.problem}
    is_one = len(problems) == 1 or problems == {'question_answering', 'multi_hop'}
    return is_one and pretrained.labels == config.examples.labels


def first_process_first(make: Callable[..., Task], *arguments: Any, **options: Any) -> Task:
    """`make(...)` in the first process, then in all others, so that a shared cache is filled once; all must agree.

    Raises:
        InputError: the processes have different corpora or tokenizers.
    """
    if jax.process_count() == 1:
        return make(*arguments, **options)
    task = make(*arguments, **options) if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices('prepared')
    task = task or make(*arguments, **options)
    digest = hashlib.sha256(json.dumps(task.fingerprint, sort_keys=True).encode()).digest()
    digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
    if (digests != digests[0]).any():
        raise InputError('the processes of this run have different corpora or tokenizers; let them see the same data')
    return task


def make_state(task: Task, config: RunConfig) -> TrainState:
    """Initial parameters from the seed, and the optimizer's state for them."""
    params = nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(config.train.seed))))
    carry = task.objective.initial_carry(config.train.batch_size)
    return initial_state(params, optimizer_of(config), config.train.seed, carry)


def optimizer_of(config: RunConfig) -> Any:
    """The config's optimizer, over the whole length of the run."""
    return make_optimizer(config.optimizer, config.train.steps, stacked=stacked_of(config))


def stacked_of(config: RunConfig) -> str | None:
    """What the paths of parameters have in them that hold an array for each layer; None where all layers share one."""
    return STACKED_LAYERS if config.model.is_stacked else None
