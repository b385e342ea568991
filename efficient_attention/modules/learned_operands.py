"""Stores the arrays that an attention mechanism learns besides its projections, as parameters of a layer or of a
stack.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.mechanism import LearnedOperand, Mechanism
from efficient_attention.config.layer import LayerConfig

RUNNING_MEANS = 'running_means'  # paths of parameters that are running means of the data contain this name


class LearnedOperands(nnx.Module):
    """The arrays that an attention mechanism learns, as `Mechanism.learned_operands` declares them, per layer or shared
    by all layers.
    """

    def __init__(self, config: LayerConfig, mechanism: Mechanism, *, is_shared: bool, rngs: nnx.Rngs) -> None:
        declared = mechanism.learned_operands(config.heads, config.head_width)
        self.names = tuple(name for name, operand in declared.items() if operand.is_shared == is_shared)
        means = {name: declared[name] for name in self.names if declared[name].is_running_mean}
        self.running_means = RunningMeans(means, rngs=rngs) if means else None
        for name in self.names:
            if name not in means:
                setattr(self, name, nnx.Param(initial_operand(declared[name], rngs)))

    def __call__(self, shared: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Returns the mechanism's learned arrays by name, float32, as `attend` takes them in its argument `learned`.

        `shared` holds the arrays that all layers share.
        """
        means = {} if self.running_means is None else self.running_means()
        own = {name: means[name] if name in means else jnp.asarray(getattr(self, name)[...]) for name in self.names}
        return own | dict(shared or {})


class RunningMeans(nnx.Module):
    """Learned arrays that are running means of the data, such as centroids; the trainer finds them by the name of this
    module in their paths.
    """

    def __init__(self, declared: Mapping[str, LearnedOperand], *, rngs: nnx.Rngs) -> None:
        self.names = tuple(declared)
        for name, operand in declared.items():
            points = initial_operand(operand, rngs)[..., :-1]
            points = points / jnp.linalg.norm(points, axis=-1, keepdims=True)
            setattr(self, name, nnx.Param(jnp.pad(points, [(0, 0)] * (points.ndim - 1) + [(0, 1)])))

    def __call__(self) -> dict[str, Array]:
        """Returns the running means of the data, such as centroids, by name, as float32 arrays."""
        return {name: jnp.asarray(getattr(self, name)[...]) for name in self.names}


def initial_operand(operand: LearnedOperand, rngs: nnx.Rngs) -> Float[Array, '...']:
    """Returns the initial values of a mechanism's learned array, sampled from the normal distribution that it
    declares.
    """
    return jax.nn.initializers.normal(operand.deviation)(rngs.params(), operand.shape, jnp.float32)


def make_learned(
    config: LayerConfig, mechanism: Mechanism, *, is_shared: bool = False, rngs: nnx.Rngs
) -> LearnedOperands | None:
    """Returns the module with a mechanism's learned arrays: either the arrays of one layer or, with `is_shared`, of all
    layers.

    The result is None if the mechanism declares no such array.
    """
    made = LearnedOperands(config, mechanism, is_shared=is_shared, rngs=rngs)
    return made if made.names else None
