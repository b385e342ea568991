"""Defines one training step as a pure function: gradients over micro-batches, optimizer update, and skipping of
non-finite steps.

The loss of a step is (sum over all devices and micro-batches) / (sum of weights). Under `jax.jit` with a sharded batch
the sums are global. Micro-batches are divided by the weights of the whole batch, which are known before the model runs.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.models.layer_stack import using_remat
from efficient_attention.objectives.objective import Batch, Objective, Sums, mean_metrics, total_loss
from efficient_attention.training.optimizer import build_optimizer
from efficient_attention.training.state import (
    StepArraysForNanCheck,
    TrainState,
    is_finite,
    is_state_finite,
    nonfinite_cause_index,
)
from efficient_attention.training.step_extensions import (
    StepExtension,
    build_step_extensions,
    check_extensions_cover_state,
)

if TYPE_CHECKING:  # A step from a model and an objective needs none of the data libraries that `Run` imports.
    from efficient_attention.training.run import Run

StepFn = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]
# A gradient function: (trained arrays, rows) -> ((loss, (sums, new carry)), gradients).
GradientFn = Callable[[Any, 'RowsWithRandomKeys'], tuple[tuple[Array, tuple[Sums, Any]], Any]]


def jit_train_step(run: 'Run', remat: str = 'none', *, compiler_options: dict[str, str] | None = None) -> StepFn:
    """Returns the jitted training step of a run, compiled with extra options of XLA. It donates the training state, so
    callers must not use the old state again.

    `remat` is the policy of rematerialisation if the config's `model.remat` is 'auto'; otherwise it has no effect.
    """
    optimizer = build_optimizer(run.config)
    parts = build_step_extensions(run.abstract_state, frozen=run.config.optimizer.frozen, pruner=run.pruner)
    micro_batches = run.config.train.micro_batches
    step = make_train_step(run.graph, run.objective, optimizer, micro_batches=micro_batches, parts=parts)
    return jax.jit(
        using_mesh(run.mesh)(using_remat(remat)(step)),
        donate_argnums=0,
        out_shardings=(run.shardings, None),
        compiler_options=compiler_options,
    )


def make_train_step(
    graph: nnx.GraphDef,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    micro_batches: int = 1,
    parts: Sequence[StepExtension] = (),
) -> StepFn:
    """Returns the training step, a function from (state, batch) to (next state, metrics of this step). The caller
    should jit it.

    Metrics: 'loss', the objective's means, 'gradient_norm' (before clipping), 'skipped' (all skipped steps so far),
    'skipped_in_row' (since the last good step), 'cause', 'is_spoiled', and the metrics of the parts.

    A step is skipped if its loss, its gradient norm, its carry, or an array that a part splits from the gradients is
    not finite. Then parameters and optimizer state stay, the counters advance, and the next step gets a carry of zeros.
    'cause' is the index in `step_array_names` of the first array that is not finite, -1 if there is none.
    'is_spoiled' is true if the next state holds a value that is not finite.

    Args:
        graph: the Flax graph of the model.
        objective: computes the loss.
        optimizer: computes updates from gradients.
        micro_batches: parts of the batch whose gradients are computed one after another.
        parts: the optional parts of the step, as `build_step_extensions` returns them; a plain run has none.

    While it is traced, the returned function raises ValueError if the state holds arrays that no part handles.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        check_extensions_cover_state(state, parts)
        weights, before = objective.weights(batch), state.trainable_arrays
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        begun = [part.begin_step(state, key) for part in parts]

        def loss_of(trained: Any, rows: RowsWithRandomKeys) -> tuple[Array, tuple[Sums, Any]]:
            params, bound = trained, objective
            for part, choice in zip(parts, begun, strict=True):
                params, bound = part.transform_params(params, bound, choice)
            sums, carry = bound.sums(nnx.merge(graph, params), rows.batch, rows.carry, rows.keys_B, state.step)
            return total_loss(sums, weights, objective.loss_factor), (sums, carry)

        gradient = jax.value_and_grad(loss_of, has_aux=True)
        gradient = gradient if micro_batches == 1 else accumulate_micro_batches(gradient, micro_batches)
        (loss, (sums, carry)), gradients = gradient(
            before, RowsWithRandomKeys(batch, row_keys(key, batch), state.carry)
        )
        metrics: dict[str, Array] = {}
        for part in parts:  # Each extension may add a loss here, such as a pruning penalty.
            loss, gradients, own = part.add_auxiliary_loss(state, loss, gradients)
            metrics |= own
        counted, others = gradients, [carry]
        # Each extension may take out arrays that are not gradients, such as the statistics of running means.
        for part in parts:
            counted, apart = part.split_gradients(counted)
            others.append(apart)
        gradient_norm = optax.tree.norm(counted)
        is_good = jnp.isfinite(loss) & jnp.isfinite(gradient_norm) & is_finite(others)

        with jax.named_scope('optimizer'):
            updates, opt_state = optimizer.update(gradients, state.opt_state, before)
            trained = optax.apply_updates(before, updates)
        trained, opt_state = tree_where(is_good, (trained, opt_state), (before, state.opt_state))
        skip = 1 - is_good.astype(jnp.int32)
        next_state = dataclasses.replace(
            state.with_trainable_arrays(trained),
            step=state.step + 1,
            opt_state=opt_state,
            skipped=state.skipped + skip,
            skipped_in_row=(state.skipped_in_row + skip) * skip,
            carry=jax.tree.map(lambda leaf: jnp.where(is_good, leaf, jnp.zeros_like(leaf)), carry),
        )
        metrics |= {'loss': loss, 'gradient_norm': gradient_norm}
        metrics |= {'skipped': next_state.skipped, 'skipped_in_row': next_state.skipped_in_row}
        metrics['cause'] = nonfinite_cause_index(is_good, StepArraysForNanCheck(batch, state.carry, carry, gradients))
        # The carry of the next state needs no check, because it is either finite or set to zeros.
        metrics['is_spoiled'] = ~is_state_finite(trained, opt_state)
        return next_state, mean_metrics(sums, weights) | metrics

    return train_step


class RowsWithRandomKeys(NamedTuple):
    """Rows that are computed together, with a random key per row and the carry that these rows got from the previous
    step.
    """

    batch: Batch
    keys_B: Array
    carry: Any


def row_keys(key: Array, batch: Batch) -> Array:
    """Returns one random key per row of a batch."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def accumulate_micro_batches(gradient: GradientFn, parts: int) -> GradientFn:
    """Returns a gradient function for a whole batch, which computes the batch in `parts` micro-batches, one after
    another.

    Losses, sums and gradients are added over micro-batches; the new carries are joined in the order of the rows.
    """

    def micro_batch_gradient(trained: Any, rows: RowsWithRandomKeys) -> tuple[tuple[Any, Any], Any]:
        (loss, (sums, carry)), gradients = gradient(trained, rows)
        return ((loss, sums), gradients), carry

    def whole_batch_gradient(trained: Any, whole: RowsWithRandomKeys) -> tuple[tuple[Array, tuple[Sums, Any]], Any]:
        def add_micro_batch(total: Any, rows: RowsWithRandomKeys) -> tuple[Any, Any]:
            result, carry = micro_batch_gradient(trained, rows)
            return jax.tree.map(jnp.add, total, result), carry

        each = jax.tree.map(lambda x: split_into_micro_batches(x, parts), whole)
        shapes, _ = jax.eval_shape(micro_batch_gradient, trained, jax.tree.map(lambda x: x[0], each))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        ((loss, sums), gradients), carries = jax.lax.scan(add_micro_batch, zeros, each)
        return (loss, (sums, jax.tree.map(merge_micro_batches, carries))), gradients

    return whole_batch_gradient


def split_into_micro_batches(x: Array, parts: int) -> Array:
    """Splits an array [B, ...] into micro-batches [parts, B / parts, ...]. Micro-batch i takes the rows i, i + parts,
    ...

    This order keeps the rows on their devices.
    """
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def merge_micro_batches(x: Array) -> Array:
    """Joins micro-batches [parts, B / parts, ...] into one batch [B, ...]: the inverse of
    `split_into_micro_batches`.
    """
    return jax.lax.collapse(x.swapaxes(0, 1), 0, 2)


def tree_where(condition: Array, chosen: Any, other: Any) -> Any:
    """Returns the tree `chosen` if the scalar condition is true, otherwise the tree `other`."""
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), chosen, other)
