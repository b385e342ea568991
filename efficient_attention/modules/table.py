"""An embedding table that a mesh may shard over devices."""

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
    """A table of vectors [rows, E], indexed by row numbers.

    `axes` are the letters by which it is sharded over a mesh, 'VE' for words. `quantization` and `store_codes` are as
    in `Dense`, with one scale per row. With `weighs_inputs`, the gradient of a row is the number of its look-ups.
    """

    axes = 'LE'
    quantization = 'none'
    weighs_inputs = False
    embedding_scale: nnx.Param | None = None

    def __call__(self, inputs: Int[Array, '...'], out_sharding: Any = None) -> Float[Array, '... E']:
        """Returns the vectors of these row numbers, in the table's `dtype`."""
        if self.embedding_scale is not None:
            codes, scales = (jnp.take(one[...], inputs, axis=0) for one in (self.embedding, self.embedding_scale))
            return numbers_of(codes, scales).astype(self.dtype or self.param_dtype)
        if self.weighs_inputs:
            return counting_rows(jnp.asarray(self.embedding[...]), inputs)
        is_whole = not (is_gathering() or is_split('V'))
        dtype = self.dtype or self.param_dtype
        if self.quantization != 'none':  # rounds the float32 numbers, like `store_codes`
            table = jnp.asarray(self.embedding[...])
            vectors = jnp.take(table, inputs, axis=0) if is_whole else self.looked_up(inputs, jnp.float32)
            return rounded(vectors, -1).astype(dtype)
        if out_sharding is not None or is_whole:
            return super().__call__(inputs, out_sharding)
        return self.looked_up(inputs, dtype)

    def looked_up(self, inputs: Int[Array, '...'], dtype: DTypeLike) -> Float[Array, '... E']:
        """Returns the vectors of these row numbers from a sharded table."""
        table = lay(jnp.asarray(self.embedding[...], dtype), self.axes, PARAMETERS)
        if inputs.ndim == 2 and self.is_in_parts():
            # Each device looks up its part of every vector, for all rows. Then devices exchange these parts for full
            # vectors of their rows. This moves less data than gathering the table, and so does the gradient.
            return lay(jnp.take(table, lay(jnp.asarray(inputs), 'BL', LOOKED_UP), axis=0), 'BLE', LOOKED_UP)
        return jnp.take(lay(table, self.axes, GATHERED), inputs, axis=0)

    def store_codes(self) -> None:
        """Replaces the vectors by int8 codes and scales, after which training is impossible."""
        table = jnp.asarray(self.embedding[...])
        scale = scale_of(table, -1)
        self.embedding, self.embedding_scale = nnx.Param(codes_of(table, scale)), nnx.Param(scale)

    def is_in_parts(self) -> bool:
        """Returns whether each device of the 'fsdp' axis holds a part of each word's vector.

        If 'fsdp' does not divide the width, every device holds full vectors and looks up only its rows. Looking up all
        rows would gather their gradients.
        """
        mesh = device_mesh() if is_gathering() else None
        if self.axes != 'VE' or mesh is None:
            return False
        return partition('E', (self.features,), mesh, PARAMETERS)[0] is not None

    def vectors(self, dtype: DTypeLike) -> Array:
        """Returns all vectors of the table in this dtype, gathered and rounded if necessary."""
        if self.embedding_scale is not None:
            return numbers_of(self.embedding[...], self.embedding_scale[...]).astype(dtype)
        if self.quantization != 'none':
            return rounded(gathered(jnp.asarray(self.embedding[...]), self.axes), -1).astype(dtype)
        return gathered(jnp.asarray(self.embedding[...], dtype), self.axes)


def table_logits(x_BLE: Array, table_VE: Array) -> Array:
    """Returns the products of vectors with all vectors of a table, float32 [B, L, V].

    The form that is fast on CPUs joins rows and tokens into one axis. If tokens are sharded, this form would gather the
    vectors and the gradients of all logits. So float32 uses a plain einsum in this case. For bfloat16, CPUs support
    only the joined form.
    """
    if is_split('L') and x_BLE.dtype == jnp.float32:
        return jnp.einsum('BLE,VE->BLV', x_BLE, table_VE)
    return float32_einsum('BLE,VE->BLV', x_BLE, table_VE)
