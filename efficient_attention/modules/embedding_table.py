"""An embedding table that can be sharded over the devices of a mesh and quantized to int8."""

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
    constrain_sharding,
    device_mesh,
    gather_parameter,
    has_fsdp_axis,
    is_axis_sharded,
    partition,
)
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.modules.input_importance_gradients import counted_table_rows
from efficient_attention.modules.int8 import dequantize_int8, fake_quantize, int8_scale, quantize_to_int8


class EmbeddingTable(nnx.Embed):
    """An embedding table [rows, E], which maps row numbers such as token ids to vectors.

    `axes` are the letters by which the table is sharded over a mesh, 'VE' for words. `quantization` and
    `store_int8_codes` are as in `Dense`, with one scale per row. With `weighs_inputs`, the gradient of a row is the
    number of its look-ups.
    """

    axes = 'LE'
    quantization = 'none'
    weighs_inputs = False
    embedding_scale: nnx.Param | None = None

    def __call__(self, inputs: Int[Array, '...'], out_sharding: Any = None) -> Float[Array, '... E']:
        """Returns the vectors of these row numbers, such as token ids, in the table's `dtype`."""
        if self.embedding_scale is not None:
            codes, scales = (jnp.take(one[...], inputs, axis=0) for one in (self.embedding, self.embedding_scale))
            return dequantize_int8(codes, scales).astype(self.dtype or self.param_dtype)
        if self.weighs_inputs:
            return counted_table_rows(jnp.asarray(self.embedding[...]), inputs)
        is_whole = not (has_fsdp_axis() or is_axis_sharded('V'))
        dtype = self.dtype or self.param_dtype
        if self.quantization != 'none':  # This branch rounds float32 numbers as `store_int8_codes` does.
            table = jnp.asarray(self.embedding[...])
            vectors = jnp.take(table, inputs, axis=0) if is_whole else self.sharded_lookup(inputs, jnp.float32)
            return fake_quantize(vectors, -1).astype(dtype)
        if out_sharding is not None or is_whole:
            return super().__call__(inputs, out_sharding)
        return self.sharded_lookup(inputs, dtype)

    def sharded_lookup(self, inputs: Int[Array, '...'], dtype: DTypeLike) -> Float[Array, '... E']:
        """Returns the vectors of these row numbers from a table that is sharded over devices."""
        table = constrain_sharding(jnp.asarray(self.embedding[...], dtype), self.axes, PARAMETERS)
        if inputs.ndim == 2 and self.is_sharded():
            # Each device looks up its part of every vector, for all batch rows.
            # Then the devices exchange parts of vectors, so that each device has the full vectors of its batch rows.
            # Exchanging vectors moves less data than gathering the table, in the forward and the backward pass.
            return constrain_sharding(
                jnp.take(table, constrain_sharding(jnp.asarray(inputs), 'BL', LOOKED_UP), axis=0), 'BLE', LOOKED_UP
            )
        return jnp.take(constrain_sharding(table, self.axes, GATHERED), inputs, axis=0)

    def store_int8_codes(self) -> None:
        """Replaces the vectors by int8 codes and scales; afterwards the table cannot be trained."""
        table = jnp.asarray(self.embedding[...])
        scale = int8_scale(table, -1)
        self.embedding, self.embedding_scale = nnx.Param(quantize_to_int8(table, scale)), nnx.Param(scale)

    def is_sharded(self) -> bool:
        """Returns whether each device along the mesh axis 'fsdp' stores only a part of each word's vector.

        If 'fsdp' does not divide the width, every device holds full vectors and looks up only its rows. Looking up all
        rows would gather their gradients.
        """
        mesh = device_mesh() if has_fsdp_axis() else None
        if self.axes != 'VE' or mesh is None:
            return False
        return partition('E', (self.features,), mesh, PARAMETERS)[0] is not None

    def table_vectors(self, dtype: DTypeLike) -> Array:
        """Returns all vectors of the table in this dtype; sharded tables are gathered, quantized tables are rounded."""
        if self.embedding_scale is not None:
            return dequantize_int8(self.embedding[...], self.embedding_scale[...]).astype(dtype)
        if self.quantization != 'none':
            return fake_quantize(gather_parameter(jnp.asarray(self.embedding[...]), self.axes), -1).astype(dtype)
        return gather_parameter(jnp.asarray(self.embedding[...], dtype), self.axes)


def table_logits(x_BLE: Array, table_VE: Array) -> Array:
    """Returns the dot products of hidden states with all vectors of an embedding table, float32 [B, L, V].

    The form that is fast on CPUs joins rows and tokens into one axis. If tokens are sharded, this form would gather the
    vectors and the gradients of all logits. So float32 uses a plain einsum in this case. For bfloat16, CPUs support
    only the joined form.
    """
    if is_axis_sharded('L') and x_BLE.dtype == jnp.float32:
        return jnp.einsum('BLE,VE->BLV', x_BLE, table_VE)
    return float32_einsum('BLE,VE->BLV', x_BLE, table_VE)
