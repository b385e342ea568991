"""A bias on the logits, as tile loops need it: the values for a chunk of tiles, and the gradient that flows back."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, Chunk, MaskInputs, into_tiles
from efficient_attention.attention.softmax.tile_term import Term


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ArrayBias(Term):
    """An array in tiles, [b, g, h, n, S, n, S]: an axis that does not vary is 1, as are its tiles."""

    array: Any  # an Array, or what JAX puts in its place while it takes trees of arrays apart

    @property
    def has_row_gradient(self) -> bool:
        """Where each query tile has a bias of its own, so that its gradient is complete after one chunk."""
        return self.array.shape[3] > 1

    @property
    def splits_by_head(self) -> bool:
        """True: each key head takes its part of axis 1."""
        return True

    def rows(self, chosen: ChosenTiles) -> 'ArrayBias':
        """The part that a chunk of query tiles reads."""
        return ArrayBias(jnp.take(self.array, chosen.rows, axis=3)) if self.has_row_gradient else self

    def of_rows(self, chunk: Chunk, _: MaskInputs) -> Array:
        """Values over the pairs of a chunk of query tiles whose rows `self` is."""
        return chunk.pairs(bias_of_lists(self.array, chunk.chosen))

    def tiles(self, chunk: Chunk, mask_inputs: MaskInputs) -> Array:
        """Values over the pairs, each axis 1 where nothing varies."""
        if not chunk.by_key:
            return self.rows(chunk.chosen).of_rows(chunk, mask_inputs)
        flipped = ArrayBias(self.array.transpose(0, 1, 2, 5, 6, 3, 4)).rows(chunk.chosen)
        return chunk.pairs(bias_of_lists(flipped.array, chunk.chosen).swapaxes(-1, -2))

    def start(self) -> Any:
        """The gradient that all rows share, before the first."""
        return None if self.has_row_gradient else jnp.zeros_like(self.array)

    def collect(self, total: Any, _: ChosenTiles, gradient: 'ArrayBias') -> tuple[Any, list[Array]]:
        """The sum so far with a chunk's gradient, or what is complete after the chunk, rows first."""
        return (None, [jnp.moveaxis(gradient.array, 3, 0)]) if self.has_row_gradient else (total + gradient.array, [])

    def join(self, total: Any, arrays: list[Array]) -> 'ArrayBias':
        """The gradient of the whole from the sum, or from all rows, which lack the empty tile."""
        if not self.has_row_gradient:
            return ArrayBias(total)
        return ArrayBias(jnp.moveaxis(jnp.concatenate([arrays[0], jnp.zeros_like(arrays[0][:1])]), 0, 3))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FunctionBias(Term):
    """A function of positions; its parameters are the leaves of `function`, a `jax.tree_util.Partial`."""

    function: Any  # a Partial, or what JAX puts in its place
    heads: tuple[int, ...] = dataclasses.field(metadata={'static': True})
    groups: int = dataclasses.field(metadata={'static': True})

    @property
    def has_row_gradient(self) -> bool:
        """No: all rows share the parameters."""
        return False

    @property
    def splits_by_head(self) -> bool:
        """No: the function gives the values of all heads at once."""
        return False

    def start(self) -> 'FunctionBias':
        """The gradient of the parameters, before the first row."""
        return jax.tree.map(jnp.zeros_like, self)

    def collect(
        self, total: 'FunctionBias', _: ChosenTiles, gradient: 'FunctionBias'
    ) -> tuple['FunctionBias', list[Array]]:
        """The sum so far with a chunk's gradient: all rows share it."""
        return jax.tree.map(add_gradient, total, gradient), []

    def join(self, total: 'FunctionBias', _: list[Array]) -> 'FunctionBias':
        """The gradient of the whole from the sum."""
        return jax.tree.map(gradient_of, self, total)

    def rows(self, _: ChosenTiles) -> 'FunctionBias':
        """All of it."""
        return self

    def of_rows(self, chunk: Chunk, mask_inputs: MaskInputs) -> Array:
        """Values over the pairs."""
        return self.tiles(chunk, mask_inputs)

    def tiles(self, chunk: Chunk, mask_inputs: MaskInputs) -> Array:
        """Values over the pairs, each axis 1 where nothing varies."""
        queries, keys = chunk.queries(mask_inputs.queries.positions_b1nS), chunk.keys(mask_inputs.keys.positions_b1nS)
        rows = 1 if chunk.chosen.is_shared else chunk.chosen.rows.shape[0]
        query, key = (x.reshape(*x.shape[:2], rows, -1) for x in (queries, keys))
        if query.shape[1] != 1 or key.shape[1] != 1:
            raise NotImplementedError('blocked has no bias function together with tiles that differ by head')
        values = jax.vmap(self.of_positions, in_axes=2, out_axes=2)(query, key)
        if values.shape[1] == 1:
            return chunk.pairs(values[:, None])
        of_heads = values[:, np.asarray(self.heads)]
        return chunk.pairs(of_heads.reshape(of_heads.shape[0], self.groups, -1, *of_heads.shape[2:]))

    def of_positions(self, query_b1q: Array, key_b1m: Array) -> Array:
        """float32 values [b, 1 or H, q, m]; raises ValueError where the function returns another shape."""
        values = self.function(query_b1q[..., None], key_b1m[..., None, :]).astype(jnp.float32)
        shape = (1,) * (4 - values.ndim) + values.shape
        pairs = query_b1q.shape[-1], key_b1m.shape[-1]
        fits = len(shape) == 4 and all(size in (1, full) for size, full in zip(shape[2:], pairs, strict=True))
        if not fits or 1 < shape[1] <= max(self.heads):
            raise ValueError(f'the bias function returned {values.shape} for {pairs} pairs; it must be [B, H, L, M]')
        return jnp.broadcast_to(values.reshape(shape), (*shape[:2], *pairs))


def add_gradient(total: Array, gradient: Any) -> Array:
    """The sum; whole numbers among a function's parameters have no gradient."""
    return total if gradient.dtype == jax.dtypes.float0 else total + gradient


def gradient_of(parameter: Array, total: Array) -> Any:
    """`total`, or for whole numbers what JAX takes for their gradient."""
    return total if jnp.issubdtype(parameter.dtype, jnp.floating) else np.zeros(parameter.shape, jax.dtypes.float0)


def make_tile_bias(
    request: Request, heads: np.ndarray, query_listing: np.ndarray, key_listing: np.ndarray, size: int
) -> ArrayBias | FunctionBias | None:
    """The request's bias for `heads`, positions listed as given, in tiles of `size`; None without one."""
    bias, groups = request.bias, request.key.shape[2]
    if bias is None:
        return None
    if callable(bias):
        partial = bias if isinstance(bias, jax.tree_util.Partial) else jax.tree_util.Partial(bias)
        return FunctionBias(partial, tuple(heads.tolist()), groups)
    array = bias.astype(jnp.float32)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.shape[1] > 1:
        array = array[:, heads].reshape(array.shape[0], groups, -1, *array.shape[2:])
    else:
        array = array[:, None]
    for axis, listing in ((3, query_listing), (5, key_listing)):
        varies = array.shape[axis] > 1 or len(listing) == 1
        if not varies:
            array = jnp.expand_dims(array, axis)
            continue
        moved = into_tiles(jnp.moveaxis(array, axis, 1), listing, size)  # [b, n, S, ...]
        array = jnp.moveaxis(moved, (1, 2), (axis, axis + 1))
    return ArrayBias(array)


def bias_of_lists(array_bghnSnS: Array, chosen: ChosenTiles) -> Array:
    """From own tiles [b, g, h, t, S, n, S] the other side's tiles of each: [b, g, h, t, S, w S]; shared: t in S."""
    has_lists, has_rows = array_bghnSnS.shape[5] > 1 or array_bghnSnS.shape[6] > 1, array_bghnSnS.shape[3] > 1
    if chosen.is_shared:
        if has_lists:
            array_bghnSnS = jnp.take(array_bghnSnS, chosen.lists, axis=5)
        array_bghnSnS = array_bghnSnS.reshape(*array_bghnSnS.shape[:5], -1)
        return array_bghnSnS.reshape(*array_bghnSnS.shape[:3], 1, -1, array_bghnSnS.shape[5])
    if not has_lists:
        return array_bghnSnS.reshape(*array_bghnSnS.shape[:5], -1)
    if not has_rows:
        array_bghnSnS = jnp.broadcast_to(
            array_bghnSnS, (*array_bghnSnS.shape[:3], chosen.rows.shape[0], *array_bghnSnS.shape[4:])
        )
    if chosen.lists.shape[0] == 1:
        picked = jax.vmap(lambda row, tiles: jnp.take(row, tiles, axis=4), in_axes=(3, 0), out_axes=3)
        return side_by_side(picked(array_bghnSnS, chosen.lists[0]))
    array_bghnSnS = jnp.broadcast_to(
        array_bghnSnS, (array_bghnSnS.shape[0], chosen.lists.shape[0], *array_bghnSnS.shape[2:])
    )
    by_row = jax.vmap(lambda row, tiles: jnp.take(row, tiles, axis=3), in_axes=(2, 0), out_axes=2)
    by_head = jax.vmap(by_row, in_axes=(1, 0), out_axes=1)
    return side_by_side(by_head(array_bghnSnS, chosen.lists))


def side_by_side(array: Array) -> Array:
    """[..., w, S] as [..., w S]."""
    return array.reshape(*array.shape[:-2], -1)
