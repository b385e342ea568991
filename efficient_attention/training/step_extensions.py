"""Defines optional additions to the training step: frozen parameters, extra arrays that an objective trains, pruning,
and running means of the data (such as centroids).

Each part may change the arrays that the model uses, the loss, or the norm of the gradients.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.models.sharding import path_name
from efficient_attention.modules.learned_operands import RUNNING_MEANS
from efficient_attention.objectives.objective import BESIDE, SCORES, Objective
from efficient_attention.pruning.pruner import PENALTY, Pruner
from efficient_attention.training.state import TrainState

# This number is folded into a training step's random key, to sample pruning gates.
# Row numbers are folded into the same key, but they are much smaller than this number.
GATES_STREAM = 0x67617465


class StepExtension:
    """Base class of an optional addition to the training step. By default its methods change nothing."""

    def begin_step(self, state: TrainState, key: Array) -> Any:
        """Returns what the extension chooses once for this training step, such as a pruning mask.

        All micro-batches share this choice. No gradient flows through the choice.
        """
        del state, key

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the model's parameters and the objective, made from all trained arrays. Gradients flow through this
        method.
        """
        del choice
        return trained, objective

    def add_auxiliary_loss(self, state: TrainState, loss: Array, gradients: Any) -> tuple[Array, Any, dict[str, Array]]:
        """Adds the extension's auxiliary loss to the loss of the whole batch; returns the new loss, the new gradients,
        and the extension's metrics.
        """
        del state
        return loss, gradients, {}

    def split_gradients(self, gradients: Any) -> tuple[Any, Any]:
        """Returns two trees: gradients that count in the gradient norm, and other arrays that do not."""
        return gradients, None


class FrozenParams(StepExtension):
    """Freezes the parameters whose paths match a regex of `patterns`; no gradients are computed for them."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the trained arrays with gradients stopped at frozen parameters. Extra arrays of the objective and
        pruning scores are never frozen.
        """
        del choice

        def stop_gradient_if_frozen(path: tuple[Any, ...], leaf: Array) -> Array:
            # The path of a pruning score is a prefix and its kernel's path, so a pattern for the kernel matches it too.
            name = path_name(path)
            is_parameter = not name.startswith((f'{SCORES}/', f'{BESIDE}/'))
            is_frozen = is_parameter and any(re.search(pattern, name) for pattern in self.patterns)
            return jax.lax.stop_gradient(leaf) if is_frozen else leaf

        return jax.tree_util.tree_map_with_path(stop_gradient_if_frozen, trained), objective


class ObjectiveParams(StepExtension):
    """Trains extra arrays of the objective together with the model, such as distillation's projections from the
    student's to the teacher's width.
    """

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the model's parameters without the objective's extra arrays, and the objective with these arrays."""
        del choice
        return without_group(trained, BESIDE), objective.with_auxiliary_params(trained[BESIDE])


class PruningMasks(StepExtension):
    """Masks the pruned kernels of the model, with masks that are chosen once per step for all micro-batches."""

    def __init__(self, pruner: Pruner) -> None:
        self.pruner = pruner

    def begin_step(self, state: TrainState, key: Array) -> Any:
        """Returns the pruning mask of each group of kernels; for L0 pruning, it returns a random sample of the
        gates.
        """
        return self.pruner.choose_masks(state.params, state.scores, state.step, jax.random.fold_in(key, GATES_STREAM))

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the model's parameters with pruning masks applied and without pruning scores, and the unchanged
        objective.
        """
        return self.pruner.masked(without_group(trained, SCORES), trained.get(SCORES), choice), objective

    def add_auxiliary_loss(self, state: TrainState, loss: Array, gradients: Any) -> tuple[Array, Any, dict[str, Array]]:
        """Adds the pruning penalty to the loss, and its gradient to the gradients of the scores. This happens once per
        batch.
        """
        if not self.pruner.has_penalty:
            return loss, gradients, {}
        penalty, to_scores = jax.value_and_grad(self.pruner.penalty)(state.scores, state.step)
        scores = jax.tree.map(jnp.add, gradients[SCORES], to_scores)
        return loss + penalty, gradients | {SCORES: scores}, {PENALTY: penalty}


class RunningMeans(StepExtension):
    """Handles running means: parameters that are moving averages of batch statistics. The backward pass returns these
    statistics in place of gradients (`with_running_means`).
    """

    def split_gradients(self, gradients: Any) -> tuple[Any, Any]:
        """Returns two trees: the gradients of all ordinary parameters, and the batch statistics of the running
        means.
        """
        return without_running_means(gradients), only_running_means(gradients)


def build_step_extensions(
    state: TrainState, *, frozen: tuple[str, ...] = (), pruner: Pruner | None = None
) -> tuple[StepExtension, ...]:
    """Returns the optional additions to the training step that a run uses; most runs use none.

    Args:
        state: the training state of the run, or its shapes.
        frozen: regexes for the paths of frozen parameters.
        pruner: the pruner of a run that prunes; None for other runs.
    """
    parts: list[StepExtension] = [FrozenParams(frozen)] if frozen else []
    parts += [ObjectiveParams()] if state.beside is not None else []
    parts += [PruningMasks(pruner)] if pruner is not None else []
    parts += [RunningMeans()] if has_running_means(state.params) else []
    return tuple(parts)


def check_extensions_cover_state(state: TrainState, parts: Sequence[StepExtension]) -> None:
    """Raises ValueError if the training state holds arrays that no step extension handles."""
    needed: list[type[StepExtension]] = [ObjectiveParams] if state.beside is not None else []
    needed += [PruningMasks] if state.scores is not None else []
    needed += [RunningMeans] if has_running_means(state.params) else []
    missing = [kind.__name__ for kind in needed if not any(isinstance(part, kind) for part in parts)]
    if missing:
        raise ValueError(
            f'the state needs parts of the step that are missing: {", ".join(missing)}; call build_step_extensions'
        )


def without_group(trained: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the tree of arrays without the top-level group `name`."""
    return {own: group for own, group in trained.items() if own != name}


# ---- running means of batch statistics, which are stored as parameters ----


def has_running_means(params: Any) -> bool:
    """Returns whether any of these parameters is a running mean."""
    return any(is_running_mean(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def without_running_means(tree: Any) -> Any:
    """Returns a tree of parameters or gradients in which every running mean is replaced by None."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: None if is_running_mean(path) else leaf, tree)


def only_running_means(tree: Any) -> Any:
    """Returns a tree of parameters or gradients in which everything except running means is replaced by None."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if is_running_mean(path) else None, tree)


def is_running_mean(path: tuple[Any, ...]) -> bool:
    """Returns whether the parameter at this path is a running mean."""
    return jax.tree_util.DictKey(RUNNING_MEANS) in path[:-1]
