"""Everything that a training step reads and changes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from efficient_attention.objectives.objective import joined, separate


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
