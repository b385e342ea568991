"""A table of vectors, of which a mesh holds a part on each device."""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from efficient_attention.attention.device_mesh import (
    GATHERED,
    LOOKED_UP,
    PARAMETERS,
    device_mesh,
    gathered,
    is_gathering,
    is_split,
    lay,
    partition,
)
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.modules.input_squares import counting_rows
from efficient_attention.modules.int8 import codes_of, numbers_of, rounded, scale_of


class Table(nnx.Embed):
    """Vectors [rows, E] by their numbers; `axes` are the letters by which it lies on a mesh, 'VE' for words.

    `quantization` and the codes that may take the vectors' place are as those of `Dense`, with a scale for each row;
    with `weighs_inputs` the gradient is how often each row is looked up.
    """

    axes = 'LE'
    quantization = 'none'
    weighs_inputs = False
    embedding_scale: nnx.Param | None = None

    def __call__(self, inputs: Int[Array, '...'], out_sharding: Any = None) -> Float[Array, '... E']:
        """The vectors of these rows, in the table's `dtype`."""
        if self.embedding_scale is not None:
            codes, scales = (jnp.take(one[...], inputs, axis=0) for one in (self.embedding, self.embedding_scale))
            return numbers_of(codes, scales).astype(self.dtype or self.param_dtype)
        if self.weighs_inputs:
            return counting_rows(jnp.asarray(self.embedding[...]), inputs)
        is_whole = not (is_gathering() or is_split('V'))
        dtype = self.dtype or self.param_dtype
        if self.quantization != 'none':  # of the float32 numbers, as codes are
            table = jnp.asarray(self.embedding[...])
            vectors = jnp.take(table, inputs, axis=0) if is_whole else self.looked_up(inputs, jnp.float32)
            return rounded(vectors, -1).astype(dtype)
        if out_sharding is not None or is_whole:
            return super().__call__(inputs, out_sharding)
        return self.looked_up(inputs, dtype)

    def looked_up(self, inputs: Int[Array, '...'], dtype: DTypeLike) -> Float[Array, '... E']:
        """The vectors of these rows, of a table that a mesh holds in parts."""
        table = lay(jnp.asarray(self.embedding[...], dtype), self.axes, PARAMETERS)
        if inputs.ndim == 2 and self.is_in_parts():
            # Each device finds its part of the vectors of all rows, and exchanges it for the rest of those of its rows:
            # that is less than the table, and so is their gradient.
            return lay(jnp.take(table, lay(jnp.asarray(inputs), 'BL', LOOKED_UP), axis=0), 'BLE', LOOKED_UP)
        return jnp.take(lay(table, self.axes, GATHERED), inputs, axis=0)

    def store_codes(self) -> None:
        """Puts the rows' codes and scales in the place of the vectors; there is no training after that."""
        table = jnp.asarray(self.embedding[...])
        scale = scale_of(table, -1)
        self.embedding, self.embedding_scale = nnx.Param(codes_of(table, scale)), nnx.Param(scale)

    def is_in_parts(self) -> bool:
        """Whether each device of 'fsdp' holds a part of each word's vector.

        A width that it does not divide is whole on every device. Each then looks up its own rows alone: if it looked up
        those of all rows, their gradients would be gathered.
        """
        mesh = device_mesh() if is_gathering() else None
        if self.axes != 'VE' or mesh is None:
            return False
        return partition('E', (self.features,), mesh, PARAMETERS)[0] is not None

    def vectors(self, dtype: DTypeLike) -> Array:
        """All of them in this dtype, as products read them."""
        if self.embedding_scale is not None:
            return numbers_of(self.embedding[...], self.embedding_scale[...]).astype(dtype)
        if self.quantization != 'none':
            return rounded(gathered(jnp.asarray(self.embedding[...]), self.axes), -1).astype(dtype)
        return gathered(jnp.asarray(self.embedding[...], dtype), self.axes)


def table_logits(x_BLE: Array, table_VE: Array) -> Array:
    """The products of vectors with all those of a table, float32 [B, L, V].

    The form for CPUs joins rows and tokens into one axis. Where tokens are spread over devices that would gather the
    vectors, and the gradients of all logits, so float32 takes the plain form there; bfloat16 has no other on a CPU.
    """
    if is_split('L') and x_BLE.dtype == jnp.float32:
        return jnp.einsum('BLE,VE->BLV', x_BLE, table_VE)
    return float32_einsum('BLE,VE->BLV', x_BLE, table_VE)
