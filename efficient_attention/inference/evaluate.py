"""Computes metrics over a whole held-out set: sums of all batches are added in float64 and divided once at the end."""

import dataclasses
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.request import check_lengths
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.models.device_memory import check_fits, layer_input_bytes
from efficient_attention.models.sharding import carry_sharding, check_divisible, path_name, to_devices
from efficient_attention.objectives.objective import Batch, Objective, OutputObjective, Sums, split_trainable_parts
from efficient_attention.tasks.task import HostBatch, Task

RUN_AHEAD = 2  # number of batches that the devices compute while the host builds the next batch
EvalStep = Callable[..., tuple]  # maps parameters and a batch to metric sums and weights, see `make_eval_step`
ID_ARRAYS = ('tokens', 'targets', 'masked_tokens', 'source')  # batch arrays with token ids


class ObjectiveWithExtraArrays(NamedTuple):
    """An objective, and a function that adds to each batch on the devices the arrays that only this objective needs."""

    objective: Objective
    add: Callable[[Batch], Batch]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluation of a task on a mesh: computes metrics over all held-out examples, each counted exactly once."""

    task: Task
    mesh: Mesh
    batch_size: int  # rows per batch, over all devices
    model: ModelConfig
    joined: ObjectiveWithExtraArrays | None = None  # the distillation objective; None = the task's objective

    @property
    def objective(self) -> Objective:
        """The objective whose losses and metrics are summed over the batches."""
        return self.task.evaluation_objective if self.joined is None else self.joined.objective

    def step(self) -> EvalStep:
        """Returns the jitted evaluation step: a function from parameters and a batch to metric sums, weights and the
        task's outputs.
        """
        return self.make_jitted_step(self.graph())

    def graph(self) -> nnx.GraphDef:
        """Returns the NNX graph definition of the evaluated model."""
        return nnx.split(nnx.eval_shape(lambda: self.task.make_evaluation_model(nnx.Rngs(0))))[0]

    def make_jitted_step(self, graph: nnx.GraphDef) -> EvalStep:
        """Returns the jitted evaluation step for a model with this NNX graph definition."""
        objective = self.objective
        if self.task.token_outputs is not None:
            assert isinstance(objective, OutputObjective)
            step = make_output_step(graph, objective)
        else:
            step = make_eval_step(graph, objective)
        return jax.jit(using_mesh(self.mesh)(step))

    def metrics(self, step: EvalStep, params: Any, on_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Returns the held-out metrics of a model with these parameters; calls `on_batch` before each batch and after
        the last batch.
        """
        batches = with_batch_callback(self.task.evaluation_batches(jax.process_index(), jax.process_count()), on_batch)
        if self.task.token_outputs is not None:
            means, outputs = evaluate_outputs(step, params, batches, self.put_batch_on_devices, self.task.token_outputs)
            return self.metrics_from_means(means) | self.task.scores(outputs)
        return self.metrics_from_means(evaluate(step, params, batches, self.put_batch_on_devices, self.initial_carry()))

    @property
    def metric_names(self) -> frozenset[str]:
        """The names of the evaluation's metrics."""
        names = self.task.held_out_metrics
        return names if self.joined is None else self.joined.objective.metric_names(names) | {'loss'}

    def metrics_from_means(self, means: dict[str, float]) -> dict[str, float]:
        """Returns the reported metrics, computed from the mean of each loss term; with a teacher, 'loss' is the
        weighted sum of the terms.
        """
        metrics = self.task.finish_metrics(means)
        if self.joined is None:
            return metrics
        ending = '_weight'
        terms = [name.removesuffix(ending) for name in means if name.endswith(ending)]
        return metrics | {'loss': sum(self.objective.loss_factor(term) * means[f'{term}_loss'] for term in terms)}

    def initial_carry(self) -> Any:
        """Returns the arrays that the first batch receives, such as an empty memory; None if the objective carries
        nothing between batches.
        """
        shapes = jax.eval_shape(lambda: self.objective.initial_carry(self.batch_size))

        def empty(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.zeros(leaf.shape, leaf.dtype, device=carry_sharding(path_name(path), leaf.shape, self.mesh))

        return jax.tree_util.tree_map_with_path(empty, shapes)

    def put_batch_on_devices(self, batch: HostBatch) -> Batch:
        """Returns the global batch on the devices, built from each process's rows.

        Raises:
            InputError: a token id is outside the vocabulary, or a length contradicts the segments of its row.
        """
        rows = self.task_batch(batch)
        return rows if self.joined is None else self.joined.add(rows)

    def task_batch(self, batch: HostBatch) -> Batch:
        """Returns the global batch on the devices with only the task's arrays, without the arrays that a distillation
        objective adds.
        """
        check_ids(batch, self.model)
        for side in ('', 'source_'):
            try:
                check_lengths(batch, side)
            except ValueError as error:
                raise InputError(f'a batch contradicts itself: {error}') from None
        return to_devices(batch, self.mesh)


def make_evaluation(
    config: RunConfig, task: Task, mesh: Mesh, joined: ObjectiveWithExtraArrays | None = None
) -> Evaluation:
    """Returns the evaluation of a task; raises InputError if the evaluation batch does not fit the mesh or its device
    memory.
    """
    size, heads = config.eval.batch_size, config.model.heads
    check_divisible(mesh, batch_size=size, micro_batches=1, heads=heads, field='eval.batch_size')
    check_fits(mesh, {"the inputs of an evaluation's layers": layer_input_bytes(config, size, mesh, is_kept=False)})
    return Evaluation(task, mesh, size, config.model, joined)


def evaluate(
    eval_step: EvalStep,
    params: Any,
    batches: Iterable[HostBatch],
    to_devices: Callable[[HostBatch], Batch],
    carry: Any = None,
) -> dict[str, float]:
    """Returns the mean of each metric over all batches, named '<term>_<metric>', and each loss term's total weight,
    '<term>_weight'.

    The result does not depend on batch size, device count or process count: each example has its own weight, and rows
    that fill up a batch have weight 0. Steps that carry state from batch to batch are an exception.

    Args:
        eval_step: function from parameters and a global batch to its sums and weights.
        params: the parameters, sharded as the step expects.
        batches: this process's rows of each batch.
        to_devices: makes the global batch from these rows.
        carry: the state before the first batch, for steps that pass state on; None = no state.
    """
    totals = MetricTotals()
    for batch_sums, batch_weights in results_to_host(
        run_eval_steps(eval_step, params, map(to_devices, batches), carry)
    ):
        totals.add_batch(batch_sums, batch_weights)
    return totals.weighted_means()


def evaluate_outputs(
    eval_step: EvalStep,
    params: Any,
    batches: Iterable[HostBatch],
    to_devices: Callable[[HostBatch], Batch],
    token_outputs: frozenset[str],
) -> tuple[dict[str, float], list[dict[str, np.ndarray]]]:
    """Returns the mean metrics over all batches, and the model's outputs for each row, ordered by the rows' 'index'.

    All processes get all rows.

    Args:
        eval_step: function from parameters and a global batch to its sums, weights and outputs.
        params: the parameters, sharded as the step expects.
        batches: this process's rows of each batch.
        to_devices: makes the global batch from these rows.
        token_outputs: names of outputs [B, L, ...], which are cut to each row's number of tokens.
    """
    totals = MetricTotals()
    found: dict[int, dict[str, np.ndarray]] = {}

    def results() -> Iterator[tuple]:
        for batch in batches:
            rows = to_devices(batch)
            yield *eval_step(params, rows), rows['index'], rows['segments']

    for sums, weights, outputs, index, segments in map(to_host_arrays, keep_results_in_flight(results())):
        totals.add_batch(sums, weights)
        lengths = (segments > 0).reshape(len(index), -1).sum(axis=1)
        for place in np.flatnonzero(index >= 0):
            found[int(index[place])] = {
                name: output[place][: lengths[place]] if name in token_outputs else output[place]
                for name, output in outputs.items()
            }
    return totals.weighted_means(), [found[number] for number in sorted(found)]


class MetricTotals:
    """Running totals of metric sums and weights over batches, in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)

    def add_batch(self, sums: Sums, weights: dict[str, Any]) -> None:
        """Adds the metric sums and the weights of one batch to the totals."""
        for term, metrics in sums.items():
            self._weights[term] += float(np.asarray(weights[term], np.float64))
            for metric, value in metrics.items():
                self._sums[f'{term}_{metric}'] += float(np.asarray(value, np.float64))

    def weighted_means(self) -> dict[str, float]:
        """Returns each metric's total divided by the total weight of its loss term, and the total weights."""
        weights = self._weights
        means = {
            name: value / (weights[_loss_term_of_metric(name, weights)] or 1.0) for name, value in self._sums.items()
        }
        return means | {f'{term}_weight': weight for term, weight in weights.items()}


def to_host_arrays(result: Any) -> Any:
    """Returns the global arrays of a batch's result as NumPy arrays, gathered from all processes."""
    if jax.process_count() > 1:
        return multihost_utils.process_allgather(result, tiled=True)
    return jax.device_get(result)


def run_eval_steps(
    eval_step: EvalStep, params: Any, batches: Iterable[Batch], carry: Any
) -> Iterator[tuple[Sums, Any]]:
    """Runs the evaluation step on each batch and yields its metric sums and weights; carried state goes from each batch
    to the next.
    """
    for batch in batches:
        if carry is None:
            yield eval_step(params, batch)
        else:
            sums, weights, carry = eval_step(params, batch, carry)
            yield sums, weights


def with_batch_callback(batches: Iterator[HostBatch], on_batch: Callable[[], None]) -> Iterator[HostBatch]:
    """Yields the batches in order; calls `on_batch` before each batch and after the last batch."""
    on_batch()
    for batch in batches:
        yield batch
        on_batch()


def results_to_host(results: Iterable[Any]) -> Iterator[Any]:
    """Returns an iterator over the results of the batches in order, copied from the devices to the host."""
    return map(jax.device_get, keep_results_in_flight(results))


def keep_results_in_flight(results: Iterable[Any]) -> Iterator[Any]:
    """Yields the results of batches in order, while the devices already compute up to `RUN_AHEAD` later batches."""
    running: deque[Any] = deque()
    for result in results:
        running.append(result)
        if len(running) > RUN_AHEAD:
            yield running.popleft()
    yield from running


def _loss_term_of_metric(name: str, terms: Iterable[str]) -> str:
    return max((term for term in terms if name.startswith(f'{term}_')), key=len)


def make_eval_step(graph: nnx.GraphDef, objective: Objective) -> Callable[..., tuple]:
    """Returns an evaluation step without dropout: a function from (parameters, batch) to the metric sums and weights of
    the batch.

    With the previous batch's state as a third argument, the function also returns the state for the next batch.
    """

    def eval_step(params: Any, batch: Batch, carry: Any = None) -> tuple:
        params, beside, _ = split_trainable_parts(params)
        sums, carry = objective.with_auxiliary_params(beside).sums(nnx.merge(graph, params), batch, carry, None)
        result = sums, objective.weights(batch)
        return result if carry is None else (*result, carry)

    return eval_step


def make_output_step(graph: nnx.GraphDef, objective: OutputObjective | None = None) -> Callable[..., tuple]:
    """Returns an evaluation step without dropout: a function from (parameters, batch) to metric sums, weights and the
    model's outputs.

    `graph` is a model with `outputs`. Without an objective, the sums and weights are empty.
    """

    def output_step(params: Any, batch: Batch) -> tuple:
        params, beside, _ = split_trainable_parts(params)
        model = nnx.merge(graph, params)
        if objective is None:
            return {}, {}, model.outputs(batch)
        outputs, sums = objective.with_auxiliary_params(beside).outputs_and_sums(model, batch)
        return sums, objective.weights(batch), outputs

    return output_step


def check_ids(batch: HostBatch, model: ModelConfig) -> None:
    """Raises InputError if a token id of a batch is outside the model's vocabulary; the message names the array, the
    row and the id.

    On a device a bad id raises no error: it is read as another token, or makes the loss NaN.
    """
    for name in ID_ARRAYS:
        ids, field = batch.get(name), 'vocab_size'
        if name != 'source' and model.target_vocab_size:
            field = 'target_vocab_size'
        size = getattr(model, field)
        if ids is not None and ids.size and (ids.min() < 0 or ids.max() >= size):
            wrong = (ids < 0) | (ids >= size)
            row = int(wrong.reshape(len(ids), -1).any(axis=1).argmax())
            raise InputError(
                f'row {row} of a batch has the token id {ids[wrong][0]} in {name!r}; ids must be from 0 to {size - 1} '
                f'(model.{field})'
            )
