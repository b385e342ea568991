"""The arrays that a mechanism learns beside projections, as parameters of a layer or of a whole stack."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.mechanism import Mechanism, Operand
from efficient_attention.config.layer import LayerConfig

RUNNING_MEANS = 'running_means'  # in the paths of parameters that are running means


class LearnedOperands(nnx.Module):
    """What a mechanism declares (`Mechanism.learned_operands`): its arrays that each layer has, or that all share."""

    def __init__(self, config: LayerConfig, mechanism: Mechanism, *, is_shared: bool, rngs: nnx.Rngs) -> None:
        declared = mechanism.learned_operands(config.heads, config.head_width)
        self.names = tuple(name for name, operand in declared.items() if operand.is_shared == is_shared)
        means = {name: declared[name] for name in self.names if declared[name].is_running_mean}
        self.running_means = RunningMeans(means, rngs=rngs) if means else None
        for name in self.names:
            if name not in means:
                setattr(self, name, nnx.Param(drawn(declared[name], rngs)))

    def __call__(self, shared: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """The arrays by name, float32, and with them those that all layers share, as `attend` takes them."""
        means = {} if self.running_means is None else self.running_means()
        own = {name: means[name] if name in means else jnp.asarray(getattr(self, name)[...]) for name in self.names}
        return own | dict(shared or {})


class RunningMeans(nnx.Module):
    """Those that are running means, apart from the others so that training finds them by their paths."""

    def __init__(self, declared: Mapping[str, Operand], *, rngs: nnx.Rngs) -> None:
        self.names = tuple(declared)
        for name, operand in declared.items():
            points = drawn(operand, rngs)[..., :-1]
            points = points / jnp.linalg.norm(points, axis=-1, keepdims=True)
            setattr(self, name, nnx.Param(jnp.pad(points, [(0, 0)] * (points.ndim - 1) + [(0, 1)])))

    def __call__(self) -> dict[str, Array]:
        """The arrays by name, float32."""
        return {name: jnp.asarray(getattr(self, name)[...]) for name in self.names}


def drawn(operand: Operand, rngs: nnx.Rngs) -> Float[Array, '...']:
    """The values that an operand starts with, of the normal distribution that it declares."""
    return jax.nn.initializers.normal(operand.deviation)(rngs.params(), operand.shape, jnp.float32)


def make_learned(
    config: LayerConfig, mechanism: Mechanism, *, is_shared: bool = False, rngs: nnx.Rngs
) -> LearnedOperands | None:
    """The parameters of those arrays, None where there are none of this kind."""
    made = LearnedOperands(config, mechanism, is_shared=is_shared, rngs=rngs)
    return made if made.names else None
