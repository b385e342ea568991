"""One optimizer step as a pure function of arrays.

The loss of a step is (sum over all devices and micro-batches) / (sum of weights): under `jax.jit` with a sharded
batch the sums are global, and micro-batches are divided by the weights of the whole batch, which are known before the
model runs.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.models.sharding import path_name
from efficient_attention.objectives.beside import BESIDE, SCORES, separate
from efficient_attention.objectives.objective import Batch, Objective, Sums, mean_metrics, total_loss
from efficient_attention.pruning.pruner import PENALTY, Pruner
from efficient_attention.training.finite import StepArrays, is_finite, is_state_finite, place_of_cause
from efficient_attention.training.run import Run, optimizer_of
from efficient_attention.training.running_means import running_means_alone, without_running_means
from efficient_attention.training.state import TrainState

GATES_STREAM = 0x67617465  # folded into a step's key for the gates that pruning draws; rows have numbers far below

StepFn = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]


def jit_train_step(run: Run) -> StepFn:
    """The run's training step as a program; it takes its state's memory over."""
    config = run.config
    options: dict[str, Any] = {'micro_batches': config.train.micro_batches, 'frozen': config.optimizer.frozen}
    options['pruner'] = run.pruner
    step = make_train_step(run.graph, run.objective, optimizer_of(config), **options)
    return jax.jit(using_mesh(run.mesh)(step), donate_argnums=0, out_shardings=(run.shardings, None))


def make_train_step(
    graph: nnx.GraphDef,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    micro_batches: int = 1,
    frozen: tuple[str, ...] = (),
    pruner: Pruner | None = None,
) -> StepFn:
    """A function from (state, batch) to (next state, metrics of this step), to be jitted by the caller.

    Parameters in whose paths a regex of `frozen` is found get zeros for gradients, which cost nothing. With a `pruner`
    the model computes with the parameters that it masks; its choice is made once a step, for all micro-batches.

    Metrics: 'loss', the objective's means, 'gradient_norm' (before clipping), 'skipped' (all skipped steps so far). A
    step whose loss, gradient, sums for running means or carry is not finite changes nothing but the counters, and hands
    nothing on to the next.
    'cause' is then the place of the first array among `StepArrays` that is not, -1 where there is none; 'is_spoiled'
    tells whether the next state holds a value that is not finite.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        weights = objective.weights(batch)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        choice = None
        if pruner is not None:
            choice = pruner.choice(state.params, state.scores, state.step, jax.random.fold_in(key, GATES_STREAM))

        def sums_of(params: Any, rows: KeyedRows) -> tuple[Sums, Any]:
            params, beside, scores = separate(held(params, frozen))
            if pruner is not None and choice is not None:
                params = pruner.masked(params, scores, choice)
            given = objective.with_beside(beside)
            return given.sums(nnx.merge(graph, params), rows.batch, rows.carry, rows.keys_B, state.step)

        whole = KeyedRows(batch, row_keys(key, batch), state.carry)
        parts = micro_batches, objective.factor
        (loss, sums), gradients, carry = accumulate(sums_of, state.trained, whole, weights, *parts)
        more = {}
        if pruner is not None and pruner.has_penalty:  # once for the batch, whatever its parts
            penalty, to_scores = jax.value_and_grad(pruner.penalty)(state.scores, state.step)
            gradients[SCORES] = jax.tree.map(jnp.add, gradients[SCORES], to_scores)
            loss, more[PENALTY] = loss + penalty, penalty
        gradient_norm = optax.tree.norm(without_running_means(gradients))
        others = carry, running_means_alone(gradients)
        is_good = jnp.isfinite(loss) & jnp.isfinite(gradient_norm) & is_finite(others)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.trained)
        trained = optax.apply_updates(state.trained, updates)
        trained, opt_state = select(is_good, (trained, opt_state), (state.trained, state.opt_state))
        params, beside, scores = separate(trained)
        skip = 1 - is_good.astype(jnp.int32)
        next_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped=state.skipped + skip,
            skipped_in_row=(state.skipped_in_row + skip) * skip,
            key=state.key,
            carry=jax.tree.map(lambda leaf: jnp.where(is_good, leaf, jnp.zeros_like(leaf)), carry),
            beside=beside,
            scores=scores,
        )
        counters = {'skipped': next_state.skipped, 'skipped_in_row': next_state.skipped_in_row}
        findings = {
            'cause': place_of_cause(is_good, StepArrays(batch, state.carry, carry, gradients)),
            'is_spoiled': ~is_state_finite(trained, opt_state),  # the carry is finite: it is, or it is zeros
        }
        metrics = {'loss': loss, 'gradient_norm': gradient_norm} | more | counters | findings
        return next_state, mean_metrics(sums, weights) | metrics

    return train_step


def held(params: Any, frozen: tuple[str, ...]) -> Any:
    """The parameters, without a gradient to those in whose paths one of the regexes is found."""

    def leaf_of(path: tuple[Any, ...], leaf: Array) -> Array:
        name = path_name(path)  # scores have those of their kernels behind their own
        is_frozen = not name.startswith((f'{SCORES}/', f'{BESIDE}/')) and any(
            re.search(pattern, name) for pattern in frozen
        )
        return jax.lax.stop_gradient(leaf) if is_frozen else leaf

    return jax.tree_util.tree_map_with_path(leaf_of, params)


class KeyedRows(NamedTuple):
    """Rows that are computed together: a batch, a key for each row, and what the rows before handed on."""

    batch: Batch
    keys_B: Array
    carry: Any


def row_keys(key: Array, batch: Batch) -> Array:
    """One key for each row of a batch."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def accumulate(
    sums_of: Callable[[Any, KeyedRows], tuple[Sums, Any]],
    params: Any,
    whole: KeyedRows,
    weights: dict[str, Array],
    micro_batches: int,
    factor: Callable[[str], float] = lambda _: 1.0,
) -> tuple[tuple[Array, Sums], Any, Any]:
    """(Loss, sums), gradients and carry of the whole batch, computed over `micro_batches` parts one after another.

    sums_of: an objective's sums, and what it hands on, from parameters and rows of the batch; factor: of its terms.
    """

    def loss_and_sums(params: Any, rows: KeyedRows) -> tuple[Array, tuple[Sums, Any]]:
        sums, carry = sums_of(params, rows)
        return total_loss(sums, weights, factor), (sums, carry)

    def gradient(params: Any, rows: KeyedRows) -> tuple[tuple[Any, Any], Any]:
        (loss, (sums, carry)), gradients = jax.value_and_grad(loss_and_sums, has_aux=True)(params, rows)
        return ((loss, sums), gradients), carry

    if micro_batches == 1:
        result, carry = gradient(params, whole)
        return *result, carry

    def add_part(total: Any, rows: KeyedRows) -> tuple[Any, Any]:
        result, carry = gradient(params, rows)
        return jax.tree.map(jnp.add, total, result), carry

    parts = jax.tree.map(lambda x: split_rows(x, micro_batches), whole)
    shapes, _ = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, carries = jax.lax.scan(add_part, zeros, parts)
    return *total, jax.tree.map(join_rows, carries)


def split_rows(x: Array, parts: int) -> Array:
    """[B, ...] to [parts, B / parts, ...]; part i takes rows i, i + parts, ..., so that devices keep their rows."""
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def join_rows(x: Array) -> Array:
    """[parts, B / parts, ...] to [B, ...], the inverse of `split_rows`."""
    return jax.lax.collapse(x.swapaxes(0, 1), 0, 2)


def select(condition: Array, chosen: Any, other: Any) -> Any:
    """`chosen` where the scalar condition holds, else `other`, leaf by leaf."""
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), chosen, other)
