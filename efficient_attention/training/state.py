"""Defines the training state, and finds the first array in it that is not finite.

Each step computes one boolean: whether its whole state is finite. The name of an array that is not finite is searched
only after a failure. Naming it inside every compiled step would make compilation a sixth longer.
"""

import dataclasses
import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from efficient_attention.errors import RunError
from efficient_attention.models.sharding import path_name
from efficient_attention.objectives.objective import combine_trainable_parts, split_trainable_parts

NOWHERE = -1  # the index that means that every array is finite
# matches the indices that Optax's chain adds to a path; such indices mean nothing to a user
CHAIN = re.compile(r'(?<=^optimizer)(/\d+)+')


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state of training, which each step takes and returns. A checkpoint stores all of it."""

    step: Array  # int32 [], number of optimizer steps so far, including skipped steps
    params: Any  # the model's parameters: nested dict of float32 arrays
    opt_state: Any  # state of the Optax optimizer
    skipped: Array  # int32 [], number of steps skipped so far because a loss or gradient was not finite
    skipped_in_row: Array  # int32 [], number of steps skipped since the last step that was not skipped
    key: Array  # uint32 key data from which the random keys of every step are derived
    carry: Any = None  # arrays [rows, ...] that an objective passes from step to step, such as segment memory
    beside: Any = None  # arrays that an objective trains besides the model: nested dict of float32 arrays
    scores: Any = None  # trained scores of pruning: nested dict of float32 arrays

    @property
    def trainable_arrays(self) -> Any:
        """All arrays that the optimizer updates, as one tree: parameters, extra arrays of the objective, and pruning
        scores.
        """
        return combine_trainable_parts(self.params, self.beside, self.scores)

    def with_trainable_arrays(self, trained: Any) -> 'TrainState':
        """Returns the training state with its trainable arrays replaced by these arrays."""
        return dataclasses.replace(self, **split_trainable_parts(trained)._asdict())


def initial_state(
    params: Any,
    optimizer: optax.GradientTransformation,
    seed: int,
    carry: Any = None,
    beside: Any = None,
    scores: Any = None,
) -> TrainState:
    """Returns the training state before the first step, with these parameters."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(combine_trainable_parts(params, beside, scores)),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_row=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(jax.random.key(seed)),
        carry=carry,
        beside=beside,
        scores=scores,
    )


# ---- search for arrays that are not finite ----


class NonFiniteTrainingError(RunError):
    """Training cannot continue because an array is not finite; the message names the step and the first such array."""


class StepArraysForNanCheck(NamedTuple):
    """The arrays of a skipped step, in the order in which they are searched for NaN or infinity. An earlier array can
    make a later one non-finite.
    """

    batch: Any
    carry: Any  # the carry that the previous training step returned
    new_carry: Any
    gradient: Any


class StateArraysForNanCheck(NamedTuple):
    """The arrays that training keeps from step to step, in the order in which they are searched for NaN or infinity.

    The optimizer is searched first, because a non-finite optimizer moment makes its parameter non-finite.
    """

    optimizer: Any
    params: Any
    carry: Any


def is_finite(tree: Any) -> Array:
    """Returns whether every floating-point number in a tree is finite, as a bool []."""
    return first_nonfinite_index(tree) == NOWHERE


def first_nonfinite_index(tree: Any) -> Array:
    """Returns the index of the first array in a tree that is not finite, in the order of `array_names`: int32 [], -1 if
    all are finite.
    """
    place = jnp.int32(NOWHERE)
    for number, (_, leaf) in reversed(list(enumerate(_floating_leaves(tree)))):
        place = jnp.where(jax.lax.reduce_and(jnp.isfinite(leaf), range(leaf.ndim)), place, jnp.int32(number))
    return place


def nonfinite_cause_index(is_good: Array, arrays: StepArraysForNanCheck) -> Array:
    """Returns the index of the first array that is not finite in a failed step. For a good step it returns -1 without a
    search.
    """
    return jax.lax.cond(is_good, lambda _: jnp.int32(NOWHERE), first_nonfinite_index, arrays)


def is_state_finite(params: Any, opt_state: Any) -> Array:
    """Returns whether all parameters and the optimizer's state are finite, as a bool [].

    A parameter and its moments share one reduction, because they have the same sharding.
    """
    groups = {path: [leaf] for path, leaf in _floating_leaves(params)}
    for path, leaf in _floating_leaves(opt_state):
        owner = path
        for start in range(len(path)):  # An optimizer moment's path ends with its parameter's path.
            end = path[start:]
            if end in groups and groups[end][0].shape == leaf.shape:
                owner = end
                break
        groups.setdefault(owner, []).append(leaf)
    flags = [functools.reduce(jnp.logical_and, map(jnp.isfinite, leaves)) for leaves in groups.values()]
    return functools.reduce(jnp.logical_and, [jax.lax.reduce_and(flag, range(flag.ndim)) for flag in flags])


def step_array_names(batch: Any, state: TrainState) -> list[str]:
    """Returns the names of a training step's arrays: batch, carry and gradients. A gradient has the name of its
    parameter.
    """
    return array_names(StepArraysForNanCheck(batch, state.carry, state.carry, state.trainable_arrays))


def array_names(tree: Any) -> list[str]:
    """Returns the paths of all floating-point arrays in a tree, such as
    'optimizer/mu/stack/layers/attention/query/kernel'.
    """
    return [CHAIN.sub('', path_name(path)) for path, _ in _floating_leaves(tree)]


def nonfinite_array_name(state: TrainState) -> str:
    """Returns the name of the first array in a training state that is not finite; '' if all are finite. The search runs
    on the devices.
    """
    arrays = StateArraysForNanCheck(state.opt_state, state.trainable_arrays, state.carry)
    place = int(jax.jit(first_nonfinite_index)(arrays))
    return '' if place == NOWHERE else array_names(arrays)[place]


def check_state_finite(step: int, state: TrainState) -> None:
    """Raises NonFiniteTrainingError if an array of the training state is not finite, because no later step can repair
    it.
    """
    if name := nonfinite_array_name(state):
        raise NonFiniteTrainingError(
            f'stopped at step {step}: {name} is not finite; nothing of it is saved, and the same command goes on from '
            'the checkpoint before'
        )


def _floating_leaves(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns path and array of each floating-point leaf in a tree. Leaves of other types are always finite, so they
    are left out.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(path, leaf) for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
