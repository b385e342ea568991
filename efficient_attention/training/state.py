"""Everything that a training step reads and changes, and which array of it is not finite.

Each step computes one boolean, whether all of its state is finite. Which array is not is looked for only when something
is wrong, as naming it in every program would make each of them compile a sixth longer.
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
from efficient_attention.objectives.objective import joined, separate

NOWHERE = -1  # the place where every array is finite
CHAIN = re.compile(r'(?<=^optimizer)(/\d+)+')  # the numbers of Optax's chain in a path say nothing to a reader


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """A step's input and output; the whole of it is in a checkpoint."""

    step: Array  # int32 [], optimizer steps taken or skipped so far
    params: Any  # nested dict of float32 arrays
    opt_state: Any  # of the optax transformation
    skipped: Array  # int32 [], steps skipped so far because a loss or gradient was not finite
    skipped_in_row: Array  # int32 [], the same since the last step that was not skipped
    key: Array  # uint32 key data from which every step's randomness is derived
    carry: Any = None  # what an objective hands from step to step, such as segment memory: arrays [rows, ...]
    beside: Any = None  # what an objective trains beside the model: nested dict of float32 arrays
    scores: Any = None  # of what is pruned, likewise

    @property
    def trained(self) -> Any:
        """All that the optimizer moves, as one tree."""
        return joined(self.params, self.beside, self.scores)

    def with_trained(self, trained: Any) -> 'TrainState':
        """The state with these arrays in the places of `trained`."""
        return dataclasses.replace(self, **separate(trained)._asdict())


def initial_state(
    params: Any,
    optimizer: optax.GradientTransformation,
    seed: int,
    carry: Any = None,
    beside: Any = None,
    scores: Any = None,
) -> TrainState:
    """The state before the first step, with these parameters."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(joined(params, beside, scores)),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_row=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(jax.random.key(seed)),
        carry=carry,
        beside=beside,
        scores=scores,
    )


# ---- what is not finite ----


class TrainingStopped(RunError):
    """A run cannot go on, as its numbers are no longer finite; names the step and the first such array."""


class StepArrays(NamedTuple):
    """What a skipped step is searched for values that are not finite, in the order in which they spread."""

    batch: Any
    carry: Any  # from the step before
    new_carry: Any
    gradient: Any


class StateArrays(NamedTuple):
    """What lives on from step to step. A moment comes before the parameter that it spoils."""

    optimizer: Any
    params: Any
    carry: Any


def is_finite(tree: Any) -> Array:
    """Bool []: whether every floating-point number of a tree is finite."""
    return first_not_finite(tree) == NOWHERE


def first_not_finite(tree: Any) -> Array:
    """Int32 []: the place in `array_names` of the first array with a value that is not finite; -1 = there is none."""
    place = jnp.int32(NOWHERE)
    for number, (_, leaf) in reversed(list(enumerate(_floating(tree)))):
        place = jnp.where(jax.lax.reduce_and(jnp.isfinite(leaf), range(leaf.ndim)), place, jnp.int32(number))
    return place


def place_of_cause(is_good: Array, arrays: StepArrays) -> Array:
    """Int32 []: `first_not_finite` of a step that is not good; -1 of a good one, whose arrays are not looked at."""
    return jax.lax.cond(is_good, lambda _: jnp.int32(NOWHERE), first_not_finite, arrays)


def is_state_finite(params: Any, opt_state: Any) -> Array:
    """Bool []: `is_finite` of both, one reduction for a parameter and its moments, which lie on the devices alike."""
    groups = {path: [leaf] for path, leaf in _floating(params)}
    for path, leaf in _floating(opt_state):
        owner = path
        for start in range(len(path)):  # a moment's path ends as its parameter's
            end = path[start:]
            if end in groups and groups[end][0].shape == leaf.shape:
                owner = end
                break
        groups.setdefault(owner, []).append(leaf)
    flags = [functools.reduce(jnp.logical_and, map(jnp.isfinite, leaves)) for leaves in groups.values()]
    return functools.reduce(jnp.logical_and, [jax.lax.reduce_and(flag, range(flag.ndim)) for flag in flags])


def step_names(batch: Any, state: TrainState) -> list[str]:
    """The names of a step's arrays, from any batch and any state of the run; a gradient is called as its parameter."""
    return array_names(StepArrays(batch, state.carry, state.carry, state.trained))


def array_names(tree: Any) -> list[str]:
    """The paths of a tree's floating-point arrays, such as 'optimizer/mu/stack/layers/attention/query/kernel'."""
    return [CHAIN.sub('', path_name(path)) for path, _ in _floating(tree)]


def name_in_state(state: TrainState) -> str:
    """The name of the first array of a state that is not finite, looked for on its devices; '' = all are."""
    arrays = StateArrays(state.opt_state, state.trained, state.carry)
    place = int(jax.jit(first_not_finite)(arrays))
    return '' if place == NOWHERE else array_names(arrays)[place]


def check_state(step: int, state: TrainState) -> None:
    """Raises TrainingStopped where a state, which no later step could mend, is not finite."""
    if name := name_in_state(state):
        raise TrainingStopped(
            f'stopped at step {step}: {name} is not finite; nothing of it is saved, and the same command goes on from '
            'the checkpoint before'
        )


def _floating(tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The path and the array of each leaf that can be other than finite."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(path, leaf) for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
