"""Optional parts of the training step: frozen parameters, extra arrays of an objective, pruning, running means.

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

GATES_STREAM = 0x67617465  # folded into a step's key to sample pruning gates; rows use much smaller numbers


class StepExtension:
    """The base class of an optional part of the training step; by default its methods change nothing."""

    def begin_step(self, state: TrainState, key: Array) -> Any:
        """Returns the extension's choice for this step, such as a mask.

        All micro-batches share the choice. No gradient flows through it.
        """
        del state, key

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the arrays that the model uses, and the objective, from all trained arrays; differentiable."""
        del choice
        return trained, objective

    def add_auxiliary_loss(self, state: TrainState, loss: Array, gradients: Any) -> tuple[Array, Any, dict[str, Array]]:
        """Returns loss and gradients of the whole batch plus this extension's loss and gradients, and its metrics."""
        del state
        return loss, gradients, {}

    def split_gradients(self, gradients: Any) -> tuple[Any, Any]:
        """Returns the gradients that count in the norm, and the gradients that do not."""
        return gradients, None


class FrozenParams(StepExtension):
    """Frozen parameters: a regex of `patterns` is found in their paths. No gradient is computed for them."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the arrays with gradients stopped at frozen parameters; extra arrays and scores are never frozen."""
        del choice

        def leaf_of(path: tuple[Any, ...], leaf: Array) -> Array:
            name = path_name(path)  # a score's path contains its kernel's path, so a prefix is checked too
            is_parameter = not name.startswith((f'{SCORES}/', f'{BESIDE}/'))
            is_frozen = is_parameter and any(re.search(pattern, name) for pattern in self.patterns)
            return jax.lax.stop_gradient(leaf) if is_frozen else leaf

        return jax.tree_util.tree_map_with_path(leaf_of, trained), objective


class ObjectiveParams(StepExtension):
    """Arrays that an objective trains besides the model, such as maps from the student's to the teacher's width."""

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the arrays without the extra ones, and the objective that uses the extra ones."""
        del choice
        return without_group(trained, BESIDE), objective.with_auxiliary_params(trained[BESIDE])


class PruningMasks(StepExtension):
    """Pruned kernels: the model uses them through masks, chosen once per step for all micro-batches."""

    def __init__(self, pruner: Pruner) -> None:
        self.pruner = pruner

    def begin_step(self, state: TrainState, key: Array) -> Any:
        """Returns the mask of each group of kernels, or the random sample of its gates."""
        return self.pruner.choose_masks(state.params, state.scores, state.step, jax.random.fold_in(key, GATES_STREAM))

    def transform_params(self, trained: Any, objective: Objective, choice: Any) -> tuple[Any, Objective]:
        """Returns the masked parameters without their scores, and the unchanged objective."""
        return self.pruner.masked(without_group(trained, SCORES), trained.get(SCORES), choice), objective

    def add_auxiliary_loss(self, state: TrainState, loss: Array, gradients: Any) -> tuple[Array, Any, dict[str, Array]]:
        """Returns the loss plus the penalty on the scores, added once per batch for any number of micro-batches."""
        if not self.pruner.has_penalty:
            return loss, gradients, {}
        penalty, to_scores = jax.value_and_grad(self.pruner.penalty)(state.scores, state.step)
        scores = jax.tree.map(jnp.add, gradients[SCORES], to_scores)
        return loss + penalty, gradients | {SCORES: scores}, {PENALTY: penalty}


class RunningMeans(StepExtension):
    """Parameters that follow batch statistics (`with_running_means`); the statistics arrive as their gradients."""

    def split_gradients(self, gradients: Any) -> tuple[Any, Any]:
        """Returns the gradients of all other parameters, and the statistics of the running means."""
        return without_running_means(gradients), only_running_means(gradients)


def build_step_extensions(
    state: TrainState, *, frozen: tuple[str, ...] = (), pruner: Pruner | None = None
) -> tuple[StepExtension, ...]:
    """Returns the optional parts of a run's step; most runs have none.

    Args:
        state: of the run, or its shapes.
        frozen: regexes for the paths of frozen parameters.
        pruner: of a run that prunes; None for other runs.
    """
    parts: list[StepExtension] = [FrozenParams(frozen)] if frozen else []
    parts += [ObjectiveParams()] if state.beside is not None else []
    parts += [PruningMasks(pruner)] if pruner is not None else []
    parts += [RunningMeans()] if has_running_means(state.params) else []
    return tuple(parts)


def check_extensions_cover_state(state: TrainState, parts: Sequence[StepExtension]) -> None:
    """Raises ValueError if the state holds arrays that no step extension handles."""
    needed: list[type[StepExtension]] = [ObjectiveParams] if state.beside is not None else []
    needed += [PruningMasks] if state.scores is not None else []
    needed += [RunningMeans] if has_running_means(state.params) else []
    missing = [kind.__name__ for kind in needed if not any(isinstance(part, kind) for part in parts)]
    if missing:
        raise ValueError(
            f'the state needs parts of the step that are missing: {", ".join(missing)}; call build_step_extensions'
        )


def without_group(trained: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the tree without the group of this name."""
    return {own: group for own, group in trained.items() if own != name}


# ---- running means ----


def has_running_means(params: Any) -> bool:
    """Whether any of these parameters is a running mean."""
    return any(is_running_mean(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))


def without_running_means(tree: Any) -> Any:
    """Returns a tree of parameters or gradients with every running mean replaced by None."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: None if is_running_mean(path) else leaf, tree)


def only_running_means(tree: Any) -> Any:
    """Returns a tree of parameters or gradients with every leaf replaced by None that is not a running mean."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if is_running_mean(path) else None, tree)


def is_running_mean(path: tuple[Any, ...]) -> bool:
    """Whether the parameter at this path of a tree is a running mean."""
    return jax.tree_util.DictKey(RUNNING_MEANS) in path[:-1]
