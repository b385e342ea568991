"""A dense layer that sums bfloat16 products in float32, in the forward and backward pass, because this is fast on a
CPU.

For float32 results of bfloat16 matrices, XLA uses the CPU's bfloat16 instructions (AMX, AVX512-BF16). For bfloat16
results, it first converts all operands to float32, which is slower than computing in float32 throughout. So this layer
requests float32 results and rounds them to bfloat16 afterwards. The backward pass does the same, where JAX's
default rule would multiply a float32 gradient with bfloat16 weights. Parameter gradients stay float32.

In float32, the layer equals Flax's layer. On GPUs and TPUs, it also equals Flax's layer if the result is bfloat16.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jaxtyping import Float

from efficient_attention.attention.device_mesh import PARAMETERS, constrain_sharding, gather_parameter, has_fsdp_axis
from efficient_attention.attention.devices import device_tuning
from efficient_attention.modules.input_importance_gradients import input_squares_matmul
from efficient_attention.modules.int8 import dequantize_int8, fake_quantize, int8_product, int8_scale, quantize_to_int8

Saved = tuple[Array, Array, Array | None]


class Dense(nnx.Linear):
    """A dense layer [..., I] -> [..., O] with float32 parameters, which computes in `dtype` and can be quantized.

    Attributes:
        axes: letters of the kernel's axes, by which it is sharded over a mesh (attention/device_mesh.py).
        quantization: 'none'; 'int8' = inputs and kernel are rounded to int8; 'int8_weights' = only the kernel. The
            kernel is float32 and rounded in each call, as in training. After `store_int8_codes` it is int8, with
            scales in `kernel_scale`.
        weighs_inputs: whether the kernel's gradient measures the use of its inputs
            (modules/input_importance_gradients.py); only in float32.
        preferred_element_type: dtype of the result; None = `dtype`.
    """

    axes = 'DE'
    quantization = 'none'
    kernel_scale: nnx.Param | None = None
    weighs_inputs = False

    def __call__(self, inputs: Float[Array, '... I'], out_sharding: Any = None) -> Float[Array, '... O']:
        """Returns the inputs multiplied by the kernel, plus the bias if there is one."""
        if self.quantization != 'none':
            return self.quantized_product(inputs)
        if self.weighs_inputs:
            return self.with_bias(input_squares_matmul(inputs, jnp.asarray(self.kernel[...])))
        is_rounded_later = self.dtype == jnp.bfloat16 and (
            self.preferred_element_type is not None or device_tuning().dense_sums_in_float32
        )
        if out_sharding is not None or not (is_rounded_later or has_fsdp_axis()):
            return super().__call__(inputs, out_sharding)
        bias_O = None if self.bias is None else jnp.asarray(self.bias[...])
        if not is_rounded_later:
            return self.product_of_gathered_kernel(inputs, bias_O)
        out = bfloat16_dense(self.axes, inputs.astype(self.dtype), jnp.asarray(self.kernel[...]), bias_O)
        return out.astype(self.preferred_element_type or self.dtype)

    def quantized_product(self, inputs: Float[Array, '... I']) -> Float[Array, '... O']:
        """Returns the inputs multiplied by the kernel, with int8 rounding, plus the bias if there is one.

        The product is computed in float32, except for int8 inputs times a stored int8 kernel.
        """
        x, has_inputs = inputs.astype(jnp.float32), self.quantization == 'int8'
        if self.kernel_scale is None:
            out = plain_matmul(fake_quantize(x, -1) if has_inputs else x, self.float32_kernel())
        elif has_inputs:
            out = int8_product(x, self.kernel[...], self.kernel_scale[...])
        else:
            out = plain_matmul(x, dequantize_int8(self.kernel[...], self.kernel_scale[...]))
        return self.with_bias(out).astype(self.preferred_element_type or self.dtype or jnp.float32)

    def with_bias(self, out: Float[Array, '... O']) -> Float[Array, '... O']:
        """Returns the product `out` plus the bias, if the layer has a bias."""
        return out if self.bias is None else out + jnp.broadcast_to(jnp.asarray(self.bias[...]), out.shape)

    def store_int8_codes(self) -> None:
        """Replaces the kernel by int8 codes and scales; afterwards the layer cannot be trained."""
        kernel = jnp.asarray(self.kernel[...])  # shape [I, O], or [N, I, O] in stacked layers
        scale = int8_scale(kernel, -2)
        self.kernel, self.kernel_scale = nnx.Param(quantize_to_int8(kernel, scale)), nnx.Param(scale)

    def float32_kernel(self) -> Array:
        """Returns the kernel in float32, rounded to int8 steps if the layer is quantized.

        A kernel that 'fsdp' shards is gathered first. With quantization, its values are multiples of an int8 scale.
        """
        if self.kernel_scale is not None:
            return dequantize_int8(self.kernel[...], self.kernel_scale[...])
        kernel_IO = gather_parameter(jnp.asarray(self.kernel[...]), self.axes)
        return kernel_IO if self.quantization == 'none' else fake_quantize(kernel_IO, 0)

    def product_of_gathered_kernel(self, inputs: Float[Array, '... I'], bias_O: Array | None) -> Float[Array, '... O']:
        """Returns the same result as Flax's layer, from a sharded kernel that is gathered for each product."""
        inputs, kernel_IO, bias_O = self.promote_dtype((inputs, self.kernel[...], bias_O), dtype=self.dtype)
        out = gathering_product(self.axes, self.preferred_element_type, inputs, kernel_IO)
        return out if bias_O is None else out + jnp.broadcast_to(bias_O, out.shape).astype(out.dtype)


def plain_matmul(x: Float[Array, '... I'], kernel_IO: Array) -> Float[Array, '... O']:
    """Returns x [..., I] times kernel [I, O], without dtype conversion or gathering."""
    return lax.dot_general(x, kernel_IO, (((x.ndim - 1,), (0,)), ((), ())))


def gathered_matmul(axes: str, dtype: Any, x: Float[Array, '... I'], kernel_IO: Array) -> Float[Array, '... O']:
    """Returns x [..., I] times kernel [I, O]; a sharded kernel is gathered from all devices first."""
    contracted = ((x.ndim - 1,), (0,)), ((), ())
    return lax.dot_general(x, gather_parameter(kernel_IO, axes), contracted, preferred_element_type=dtype)


# For its backward pass, this function stores only the local shard of the kernel and gathers the kernel again.
gathering_product = jax.custom_vjp(gathered_matmul, nondiff_argnums=(0, 1))


def _gathering_forward(axes: str, dtype: Any, x: Float[Array, '... I'], kernel_IO: Array) -> tuple[Array, Any]:
    return gathered_matmul(axes, dtype, x, kernel_IO), (x, kernel_IO)


def _gathering_backward(axes: str, dtype: Any, saved: Any, gradient: Float[Array, '... O']) -> tuple[Array, Array]:
    x, kernel_IO = saved
    kernel_IO, gradient = regather_kernel(kernel_IO, gradient)
    return jax.vjp(functools.partial(gathered_matmul, axes, dtype), x, kernel_IO)[1](gradient)


gathering_product.defvjp(_gathering_forward, _gathering_backward)


def regather_kernel(kernel_IO: Array, gradient: Float[Array, '... O']) -> tuple[Array, Float[Array, '... O']]:
    """Returns kernel and gradient unchanged, but forces the backward pass to gather the kernel only after the gradient
    is available.

    Otherwise, without a scan over layers, the compiler would reuse and store the gathered kernel of the forward pass.
    """
    return lax.optimization_barrier((kernel_IO, gradient)) if has_fsdp_axis() else (kernel_IO, gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def bfloat16_dense(
    axes: str, x: Float[Array, '... I'], kernel_IO: Array, bias_O: Array | None
) -> Float[Array, '... O']:
    """Returns bfloat16 x [..., I] times kernel [I, O] plus bias [O], with a float32 result.

    The kernel is rounded to the dtype of x.
    """
    sums = float32_product(x, gather_parameter(kernel_IO.astype(x.dtype), axes), (x.ndim - 1,), (0,))
    return sums if bias_O is None else sums + jnp.broadcast_to(bias_O, sums.shape)


def float32_product(
    left: Float[Array, '...'], right: Float[Array, '...'], left_axes: tuple[int, ...], right_axes: tuple[int, ...]
) -> Float[Array, '...']:
    """Returns the contraction of two arrays over the given axes, with a float32 result."""
    return lax.dot_general(left, right, ((left_axes, right_axes), ((), ())), preferred_element_type=jnp.float32)


def _forward(
    axes: str, x: Float[Array, '... I'], kernel_IO: Array, bias_O: Array | None
) -> tuple[Float[Array, '... O'], Saved]:
    return bfloat16_dense(axes, x, kernel_IO, bias_O), (x, kernel_IO, bias_O)


def _backward(axes: str, saved: Saved, gradient: Float[Array, '... O']) -> Saved:
    x, kernel_IO, bias_O = saved
    kernel_IO, gradient = regather_kernel(kernel_IO, gradient)
    leading = tuple(range(x.ndim - 1))
    to_bias_O = None if bias_O is None else gradient.sum(leading).astype(bias_O.dtype)
    gradient = gradient.astype(x.dtype)
    to_x = float32_product(gradient, gather_parameter(kernel_IO.astype(x.dtype), axes), (x.ndim - 1,), (1,)).astype(
        x.dtype
    )
    to_kernel_IO = constrain_sharding(float32_product(x, gradient, leading, leading), axes, PARAMETERS)
    return to_x, to_kernel_IO.astype(kernel_IO.dtype), to_bias_O


bfloat16_dense.defvjp(_forward, _backward)
