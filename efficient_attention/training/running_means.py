"""Parameters that no loss moves: points on the unit sphere that follow the mean of what belongs to them.

    mu <- u / |u|  with  u = 0.999 mu + 0.001 sum / count

once for each step that is not skipped; a point to which nothing belongs stays. Sum and count come where others have
their gradients (`Operand` of attention/mechanism.py), so that they are of the global batch, whatever the devices, the
micro-batches and the layers that share a point. There is no learning rate, no decay, no clipping, no moment.

Source: Roy et al. 2020, arXiv 2003.05997, section 4.1, with its decay.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from efficient_attention.modules.learned import RUNNING_MEANS

DECAY = 0.999


def has_running_means(params: Any) -> bool:
    """Whether any of these parameters is a running mean."""
    return any(is_running_mean(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def without_running_means(tree: Any) -> Any:
    """A tree of parameters, or one like it, with None in the places of running means."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: None if is_running_mean(path) else leaf, tree)


def running_means_alone(tree: Any) -> Any:
    """The same with None in the places of everything else."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if is_running_mean(path) else None, tree)


def is_running_mean(path: tuple[Any, ...]) -> bool:
    """Whether the parameter at this path of a tree is a running mean."""
    return jax.tree_util.DictKey(RUNNING_MEANS) in path[:-1]


def with_running_means(
    rule: optax.GradientTransformation, hold: optax.GradientTransformation
) -> optax.GradientTransformation:
    """`rule` for all parameters but running means, of which its state holds nothing either, and theirs for these.

    Without running means among the parameters it is `rule` itself.

    Args:
        rule: from gradients to updates.
        hold: without a state; it gives zeros for the gradients of parameters that stay as they are.
    """

    def init(params: optax.Params) -> optax.OptState:
        return rule.init(without_running_means(params) if has_running_means(params) else params)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            raise ValueError('running means need the parameters: call update(gradients, state, params)')
        if not has_running_means(params):
            return rule.update(updates, state, params)
        means = running_means_alone(params)
        moved, state = rule.update(without_running_means(updates), state, without_running_means(params))
        statistics, _ = hold.update(running_means_alone(updates), hold.init(means), means)
        steps = jax.tree.map(mean_step, means, statistics)
        merged = jax.tree.map(lambda move, step: step if move is None else move, moved, steps, is_leaf=is_none)
        return merged, state

    return optax.GradientTransformation(init, update)


def is_none(leaf: Any) -> bool:
    """Whether a leaf is missing."""
    return leaf is None


def mean_step(mean: Float[Array, '*points X'], statistics: Float[Array, '*points X']) -> Float[Array, '*points X']:
    """What is added to points [..., K + 1], by the sums of vectors and, in the last column, their numbers."""
    count = statistics[..., -1:]
    point = mean[..., :-1]
    moved = DECAY * point + (1.0 - DECAY) * statistics[..., :-1] / jnp.maximum(count, 1.0)
    length = jnp.linalg.norm(moved, axis=-1, keepdims=True)
    step = jnp.where(count > 0.0, moved / length - point, 0.0)
    return jnp.concatenate([step, jnp.zeros_like(count)], axis=-1)
