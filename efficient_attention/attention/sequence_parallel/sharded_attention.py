"""Computes `attend` with sequence parallelism: rows are sharded over the mesh axis `sequence`,
and each device computes its own queries.

Only attention needs communication along this axis: other layers work token by token, so the compiler can shard them.
Here all axes of the mesh are manual: rows are sharded over data and fsdp, heads over tensor, tokens over sequence.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from efficient_attention.attention.implementation import Implementation, Result
from efficient_attention.attention.mechanism import unsupported_error
from efficient_attention.attention.relative import Relative, consecutive_start
from efficient_attention.attention.request import Dropout, QueryKeyPair, Request
from efficient_attention.attention.sequence_parallel.sequence_split import (
    AXIS,
    HEADS,
    SequenceSplit,
    make_sequence_split,
)

ROWS = 'data', 'fsdp'


def has_sequence_axis(mesh: Mesh | None) -> bool:
    """Returns whether the mesh has an axis `sequence` with several devices."""
    return mesh is not None and mesh.shape.get(AXIS, 1) > 1


def attend_sharded(request: Request, mesh: Mesh, implementation: Implementation) -> Result:
    """Computes attention with the rows sharded over the devices of the mesh; returns the output [B, L, H, K] and the
    log-sum-exp for the whole rows.
    """
    if implementation.compute_shard is None:
        raise unsupported_error(request.mechanism.name, 'implementation for rows sharded over a sequence axis')
    if any(consecutive_start(positions) is None for positions in request.positions):
        raise unsupported_error(
            'a sequence axis', 'support for positions that do not rise by 1 or are unknown at trace time'
        )
    if request.additive is not None:
        raise unsupported_error('a sequence axis', 'support for additive scores')
    axes = mesh_axes_of_request(request, mesh)
    arrays, specs = arrays_and_specs(request, axes)
    has_lse = request.mechanism.capabilities.has_logits
    query, length = axes.partition_spec('BLHK', request.query), axes.query
    out_specs = query, PartitionSpec(query[0], query[2], length) if has_lse else None
    compute = functools.partial(
        attend_shard_arrays, dataclasses.replace(request, rng=None, lengths=None), axes, implementation
    )
    return jax.shard_map(compute, mesh=mesh, in_specs=(specs,), out_specs=out_specs, check_vma=False)(arrays)


@dataclasses.dataclass(frozen=True)
class MeshAxes:
    """The mesh axes over which the batch rows, heads, queries and keys
    of an attention call are sharded; None where they are not.
    """

    split: SequenceSplit
    rows: tuple[str, ...] | None
    heads: str | None
    query: str | None
    key: str | None

    def partition_spec(self, letters: str, x: Any) -> PartitionSpec:
        """Returns the `PartitionSpec` of an array with these dimension letters;
        axes of size 1 are not sharded, because they broadcast.
        """
        names = {'B': self.rows, 'H': self.heads, 'G': self.heads, 'L': self.query, 'M': self.key}
        return PartitionSpec(
            *(names.get(letter) if size > 1 else None for letter, size in zip(letters, x.shape, strict=True))
        )


def mesh_axes_of_request(request: Request, mesh: Mesh) -> MeshAxes:
    """Returns the mesh axes that shard an attention request; rows or heads
    that the mesh does not divide evenly are not sharded.
    """
    (batch, queries, heads, _), (keys, groups) = request.query.shape, request.key.shape[1:3]
    rows = tuple(name for name in ROWS if mesh.shape.get(name, 1) > 1)
    rows_count = functools.reduce(lambda product, name: product * mesh.shape[name], rows, 1)
    heads_count = mesh.shape.get(HEADS, 1)
    has_heads = heads_count > 1 and heads % heads_count == 0 and groups % heads_count == 0
    split = make_sequence_split(mesh, queries, keys, heads_count if has_heads else 1)
    return MeshAxes(
        split,
        rows if rows and batch % rows_count == 0 else None,
        HEADS if has_heads else None,
        AXIS if split.has_query_shares else None,
        AXIS if split.has_key_shares else None,
    )


def arrays_and_specs(request: Request, axes: MeshAxes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arrays of an attention request by name, and the `PartitionSpec` of each."""
    arrays: dict[str, Any] = {'query': request.query, 'key': request.key, 'value': request.value}
    letters = {'query': 'BLHK', 'key': 'BMGK', 'value': 'BMGK', 'query_segments': 'BL', 'key_segments': 'BM'}
    if request.segments is not None:
        arrays |= {'query_segments': request.segments.query, 'key_segments': request.segments.key}
    if request.relative is not None:
        arrays |= {'relative_query': request.relative.query, 'table': request.relative.table}
        letters |= {'relative_query': 'BLHK', 'table': 'PHK'}
    if request.dropout is not None:
        arrays['dropout_rng'] = dropout_row_keys(request.dropout.rng, request.query.shape[0])
        letters['dropout_rng'] = 'B'
    if request.bias is not None and not callable(request.bias):
        # The bias's key axis gets the letter m, which has no mesh axis: each device slices the bias of its own keys.
        arrays['bias'], letters['bias'] = request.bias, 'BHLm'
    specs: dict[str, Any] = {name: axes.partition_spec(letters[name], x) for name, x in arrays.items()}
    if callable(request.bias):
        arrays['bias'], specs['bias'] = bias_as_partial(request.bias), PartitionSpec()
    if request.rng is not None:
        arrays['rng'], specs['rng'] = request.rng, PartitionSpec()
    return arrays, specs


def bias_as_partial(bias: Any) -> jax.tree_util.Partial:
    """Returns a bias function as a `jax.tree_util.Partial`, so that JAX sees the arrays in it."""
    return bias if isinstance(bias, jax.tree_util.Partial) else jax.tree_util.Partial(bias)


def dropout_row_keys(rng: Array, batch: int) -> Array:
    """Returns one dropout key per batch row [B], the same keys that `dropout.row_seeds` uses."""
    return jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(batch)) if rng.ndim == 0 else rng


def attend_shard_arrays(
    request: Request, axes: MeshAxes, implementation: Implementation, arrays: dict[str, Any]
) -> Result:
    """Returns the attention result of one device's shard from the shard's arrays;
    `request` provides all other arguments.
    """
    assert implementation.compute_shard is not None
    changes: dict[str, Any] = {
        name: arrays[name] for name in ('query', 'key', 'value', 'rng', 'bias') if name in arrays
    }
    if callable(request.bias) and axes.heads:
        changes['bias'] = jax.tree_util.Partial(
            functools.partial(bias_of_local_heads, axes.split.heads, request.query.shape[2]), arrays['bias']
        )
    if request.segments is not None:
        changes['segments'] = QueryKeyPair(arrays['query_segments'], arrays['key_segments'])
    if request.relative is not None:
        changes['relative'] = Relative(arrays['relative_query'], arrays['table'], request.relative.first)
    if request.dropout is not None:
        changes['dropout'] = Dropout(request.dropout.rate, arrays['dropout_rng'])
    out, lse = implementation.compute_shard(dataclasses.replace(request, **changes), axes.split)
    return out, lse if request.mechanism.capabilities.has_logits else None


def bias_of_local_heads(count: int, heads: int, bias: Any, query_b1L1: Array, key_b11M: Array) -> Array:
    """Returns a bias function's values for only this device's heads,
    out of `heads` heads that are sharded over `count` devices.
    """
    values = bias(query_b1L1, key_b11M)
    if values.ndim < 4 or values.shape[1] == 1:
        return values
    share = heads // count
    return jax.lax.dynamic_slice_in_dim(values, jax.lax.axis_index(HEADS) * share, share, axis=1)
