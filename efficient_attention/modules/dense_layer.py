"""A dense layer whose bfloat16 products, forward and backward, have the form that a CPU computes fast.

XLA multiplies bfloat16 matrices on a CPU by the processor's own instructions for them (AMX, AVX512-BF16) where the
result is float32; for a bfloat16 result it first makes all operands float32, which is slower than float32 throughout.
So here sums are float32 and rounded afterwards, also in the backward pass, where JAX's own rule would multiply a
float32 gradient with bfloat16 weights. Gradients of parameters stay float32. In float32, and on GPUs and TPUs where
the result is bfloat16, the layer is Flax's.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float

from efficient_attention.attention.device_forms import device_forms

Saved = tuple[Array, Array, Array | None]


class Dense(nnx.Linear):
    """A dense layer [..., I] -> [..., O] with float32 parameters, in its `dtype`; `preferred_element_type` = result."""

    def __call__(self, inputs: Float[Array, '... I'], out_sharding: Any = None) -> Float[Array, '... O']:
        """The product with the kernel, plus the bias where there is one."""
        is_rounded_later = device_forms().dense_sums_in_float32 or self.preferred_element_type is not None
        if self.dtype != jnp.bfloat16 or not is_rounded_later or out_sharding is not None:
            return super().__call__(inputs, out_sharding)
        bias_O = None if self.bias is None else jnp.asarray(self.bias[...])
        out = bfloat16_dense(inputs.astype(self.dtype), jnp.asarray(self.kernel[...]), bias_O)
        return out.astype(self.preferred_element_type or self.dtype)


@jax.custom_vjp
def bfloat16_dense(x: Float[Array, '... I'], kernel_IO: Array, bias_O: Array | None) -> Float[Array, '... O']:
    """bfloat16 x [..., I] times kernel [I, O] plus bias [O], in float32; the kernel is rounded to x's dtype."""
    sums = product(x, kernel_IO.astype(x.dtype), (x.ndim - 1,), (0,))
    return sums if bias_O is None else sums + jnp.broadcast_to(bias_O, sums.shape)


def product(
    left: Float[Array, '...'], right: Float[Array, '...'], left_axes: tuple[int, ...], right_axes: tuple[int, ...]
) -> Float[Array, '...']:
    """The float32 sums over these axes."""
    return lax.dot_general(left, right, ((left_axes, right_axes), ((), ())), preferred_element_type=jnp.float32)


def _forward(x: Float[Array, '... I'], kernel_IO: Array, bias_O: Array | None) -> tuple[Float[Array, '... O'], Saved]:
    return bfloat16_dense(x, kernel_IO, bias_O), (x, kernel_IO, bias_O)


def _backward(saved: Saved, gradient: Float[Array, '... O']) -> Saved:
    x, kernel_IO, bias_O = saved
    leading = tuple(range(x.ndim - 1))
    to_bias_O = None if bias_O is None else gradient.sum(leading).astype(bias_O.dtype)
    gradient = gradient.astype(x.dtype)
    to_x = product(gradient, kernel_IO.astype(x.dtype), (x.ndim - 1,), (1,)).astype(x.dtype)
    return to_x, product(x, gradient, leading, leading).astype(kernel_IO.dtype), to_bias_O


bfloat16_dense.defvjp(_forward, _backward)
