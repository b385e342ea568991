"""The arrays that a mechanism learns beside projections, as parameters of a layer or of a whole stack."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.config.layer import LayerConfig


class LearnedOperands(nnx.Module):
    """What a mechanism declares (`Mechanism.learned_operands`): its arrays that each layer has, or that all share."""

    def __init__(self, config: LayerConfig, mechanism: Mechanism, *, is_shared: bool, rngs: nnx.Rngs) -> None:
        declared = mechanism.learned_operands(config.heads, config.head_width)
        self.names = tuple(name for name, operand in declared.items() if operand.is_shared == is_shared)
        for name in self.names:
            draw = jax.nn.initializers.normal(declared[name].deviation)
            setattr(self, name, nnx.Param(draw(rngs.params(), declared[name].shape, jnp.float32)))

    def __call__(self) -> dict[str, Array]:
        """The arrays by name, float32."""
        return {name: jnp.asarray(getattr(self, name)[...]) for name in self.names}


def make_learned(
    config: LayerConfig, mechanism: Mechanism, *, is_shared: bool = False, rngs: nnx.Rngs
) -> LearnedOperands | None:
    """The parameters of those arrays, None where there are none of this kind."""
    made = LearnedOperands(config, mechanism, is_shared=is_shared, rngs=rngs)
    return made if made.names else None


def learned_arrays(module: LearnedOperands | None, shared: Mapping[str, Array] | None) -> dict[str, Array] | None:
    """The arrays of a layer and those that all layers share, as `attend` takes them; None where there are none."""
    own = {} if module is None else module()
    return (own | dict(shared or {})) or None
