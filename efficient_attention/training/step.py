"""One optimizer step, and one evaluation step, as pure functions of arrays.

The loss of a step is (sum over all devices and micro-batches) / (sum of weights): under `jax.jit` with a sharded
batch the sums are global, and micro-batches are divided by the weights of the whole batch, which are known before the
model runs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from efficient_attention.objectives.objective import Batch, Objective, Sums, mean_metrics, total_loss
from efficient_attention.training.state import TrainState

StepFn = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]


def make_train_step(
    graph: nnx.GraphDef, objective: Objective, optimizer: optax.GradientTransformation, *, micro_batches: int = 1
) -> StepFn:
    """A function from (state, batch) to (next state, metrics of this step), to be jitted by the caller.

    Metrics: 'loss', the objective's means, 'gradient_norm' (before clipping), 'skipped' (all skipped steps so far). A
    step whose loss or gradient is not finite changes nothing but the counters.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        weights = objective.weights(batch)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)

        def sums_of(params: Any, part: Batch, keys: Array) -> Sums:
            return objective.sums(nnx.merge(graph, params), part, keys, state.step)

        (loss, sums), gradients = accumulate(sums_of, state.params, batch, weights, key, micro_batches)
        gradient_norm = optax.tree.norm(gradients)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        params, opt_state = select(is_finite, (params, opt_state), (state.params, state.opt_state))
        skip = 1 - is_finite.astype(jnp.int32)
        next_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped=state.skipped + skip,
            skipped_in_row=(state.skipped_in_row + skip) * skip,
            key=state.key,
        )
        counters = {'skipped': next_state.skipped, 'skipped_in_row': next_state.skipped_in_row}
        return next_state, mean_metrics(sums, weights) | {'loss': loss, 'gradient_norm': gradient_norm} | counters

    return train_step


def make_eval_step(graph: nnx.GraphDef, objective: Objective) -> Callable[[Any, Batch], tuple[Sums, dict[str, Array]]]:
    """A function from (parameters, batch) to the batch's sums and weights, without dropout."""

    def eval_step(params: Any, batch: Batch) -> tuple[Sums, dict[str, Array]]:
        return objective.sums(nnx.merge(graph, params), batch, None), objective.weights(batch)

    return eval_step


def accumulate(
    sums_of: Callable[[Any, Batch, Array], Sums],
    params: Any,
    batch: Batch,
    weights: dict[str, Array],
    key: Array,
    micro_batches: int,
) -> tuple[tuple[Array, Sums], Any]:
    """Loss, sums and gradients of the whole batch, computed over `micro_batches` parts one after another.

    sums_of: an objective's sums from parameters, a part of the batch and one key a row.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    keys_B = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))

    def loss_and_sums(params: Any, part: Batch, keys: Array) -> tuple[Array, Sums]:
        sums = sums_of(params, part, keys)
        return total_loss(sums, weights), sums

    gradient = jax.value_and_grad(loss_and_sums, has_aux=True)
    if micro_batches == 1:
        return gradient(params, batch, keys_B)

    def add_part(total: Any, part: tuple[Batch, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient(params, *part)), None

    parts = jax.tree.map(lambda x: split_rows(x, micro_batches), (batch, keys_B))
    shapes = jax.eval_shape(gradient, params, *jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add_part, zeros, parts)
    return total


def split_rows(x: Array, parts: int) -> Array:
    """[B, ...] to [parts, B / parts, ...]; part i takes rows i, i + parts, ..., so that devices keep their rows."""
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def select(condition: Array, chosen: Any, other: Any) -> Any:
    """`chosen` where the scalar condition holds, else `other`, leaf by leaf."""
    return jax.tree.map(lambda new, old: jnp.where(condition, new, old), chosen, other)
