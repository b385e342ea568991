"""Adds a bias to the logits in the tile loops of the backend `blocked`:
its values for a chunk of tiles, and its gradient.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.logit_term import LogitTerm
from efficient_attention.attention.softmax.tile_chunks import ChosenTiles, TileChunk, TileMaskInputs, split_into_tiles


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ArrayBias(LogitTerm):
    """A bias array cut into tiles of queries and of keys; an axis along
    which the bias does not vary has one tile of size 1.
    """

    array_bghnSnS: Any  # an Array, or a placeholder while JAX flattens trees of arrays

    @property
    def has_tile_gradient(self) -> bool:
        """Whether the bias differs between query tiles; one chunk then computes the complete bias gradient of each of
        its query tiles.
        """
        return self.array_bghnSnS.shape[3] > 1

    @property
    def splits_by_head(self) -> bool:
        """True, because axis 1 of the bias array has one entry per key head, or one entry for all key heads."""
        return True

    def select_for_chunk(self, chosen: ChosenTiles) -> 'ArrayBias':
        """Returns the bias of only the chunk's query tiles, or the whole bias if all query tiles share it."""
        if not self.has_tile_gradient:
            return self
        return ArrayBias(jnp.take(self.array_bghnSnS, chosen.computed_t, axis=3))

    def read_values(self, chunk: TileChunk, _: TileMaskInputs) -> Array:
        """Returns the bias values over the query-key pairs of a chunk,
        from the bias that `select_for_chunk` returned for this chunk.
        """
        return chunk.arrange_pairs(bias_of_visited_tiles(self.array_bghnSnS, chunk.chosen))

    def chunk_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns the bias values over the query-key pairs of a chunk;
        an axis has size 1 if values do not vary along it.
        """
        if not chunk.by_key:
            return self.select_for_chunk(chunk.chosen).read_values(chunk, mask_inputs)
        flipped = ArrayBias(self.array_bghnSnS.transpose(0, 1, 2, 5, 6, 3, 4)).select_for_chunk(chunk.chosen)
        return chunk.arrange_pairs(bias_of_visited_tiles(flipped.array_bghnSnS, chunk.chosen).swapaxes(-1, -2))

    def zero_gradient(self) -> Any:
        """Returns zeros as the initial sum of the bias gradient; None if each query tile has a separate bias, because
        nothing is then summed.
        """
        return None if self.has_tile_gradient else jnp.zeros_like(self.array_bghnSnS)

    def add_chunk_gradient(self, total: Any, _: ChosenTiles, gradient: 'ArrayBias') -> tuple[Any, list[Array]]:
        """Returns the bias gradient's running total and a list of finished gradients. If each query tile has its own
        bias, the total is None and the list holds the chunk's gradient.

        In a chunk's gradient the axis of query tiles comes first.
        """
        if self.has_tile_gradient:
            return None, [jnp.moveaxis(gradient.array_bghnSnS, 3, 0)]
        return total + gradient.array_bghnSnS, []

    def finish_gradient(self, total: Any, arrays: list[Array]) -> 'ArrayBias':
        """Returns the gradient of the whole bias array, from the sum over chunks or
        from the gradients of all query tiles.

        The gradients of query tiles lack the empty tile at the end, which is appended here.
        """
        if not self.has_tile_gradient:
            return ArrayBias(total)
        return ArrayBias(jnp.moveaxis(jnp.concatenate([arrays[0], jnp.zeros_like(arrays[0][:1])]), 0, 3))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FunctionBias(LogitTerm):
    """A bias that is a function of positions; its learned parameters are the leaves
    of the `jax.tree_util.Partial` in `function`.
    """

    function: Any  # a Partial, or a placeholder while JAX flattens trees of arrays
    heads: tuple[int, ...] = dataclasses.field(metadata={'static': True})
    groups: int = dataclasses.field(metadata={'static': True})

    @property
    def has_tile_gradient(self) -> bool:
        """False, because all tiles share the parameters of the bias function."""
        return False

    @property
    def splits_by_head(self) -> bool:
        """False, because the bias function returns the values of all heads at once."""
        return False

    def zero_gradient(self) -> 'FunctionBias':
        """Returns the initial sum of the gradient of the bias function's parameters: zeros."""
        return jax.tree.map(jnp.zeros_like, self)

    def add_chunk_gradient(
        self, total: 'FunctionBias', _: ChosenTiles, gradient: 'FunctionBias'
    ) -> tuple['FunctionBias', list[Array]]:
        """Adds a chunk's gradient to the running gradient of the bias function's parameters; returns the new sum and an
        empty list, because no tile has a separate gradient.
        """
        return jax.tree.map(add_gradient, total, gradient), []

    def finish_gradient(self, total: 'FunctionBias', _: list[Array]) -> 'FunctionBias':
        """Returns the gradient of the bias function's parameters, from the sum over all chunks."""
        return jax.tree.map(finish_parameter_gradient, self, total)

    def select_for_chunk(self, _: ChosenTiles) -> 'FunctionBias':
        """Returns the whole bias function, because each chunk reads all its parameters."""
        return self

    def read_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns the values of the bias function over the query-key pairs of a chunk."""
        return self.chunk_values(chunk, mask_inputs)

    def chunk_values(self, chunk: TileChunk, mask_inputs: TileMaskInputs) -> Array:
        """Returns the values of the bias function over a chunk's query-key pairs;
        an axis has size 1 if values do not vary along it.
        """
        queries, keys = (
            chunk.select_query_tiles(mask_inputs.queries.positions_b1nS),
            chunk.select_key_tiles(mask_inputs.keys.positions_b1nS),
        )
        tiles = 1 if chunk.chosen.is_shared else chunk.chosen.computed_t.shape[0]
        query, key = (x.reshape(*x.shape[:2], tiles, -1) for x in (queries, keys))
        if query.shape[1] != 1 or key.shape[1] != 1:
            raise NotImplementedError('blocked has no bias function together with tiles that differ by head')
        values = jax.vmap(self.bias_at_positions, in_axes=2, out_axes=2)(query, key)
        if values.shape[1] == 1:
            return chunk.arrange_pairs(values[:, None])
        of_heads = values[:, np.asarray(self.heads)]
        return chunk.arrange_pairs(of_heads.reshape(of_heads.shape[0], self.groups, -1, *of_heads.shape[2:]))

    def bias_at_positions(self, query_b1q: Array, key_b1m: Array) -> Array:
        """Returns float32 bias values [b, 1 or H, q, m] at these positions;
        raises a ValueError if the bias function returns a wrong shape.
        """
        values = self.function(query_b1q[..., None], key_b1m[..., None, :]).astype(jnp.float32)
        shape = (1,) * (4 - values.ndim) + values.shape
        pairs = query_b1q.shape[-1], key_b1m.shape[-1]
        fits = len(shape) == 4 and all(size in (1, full) for size, full in zip(shape[2:], pairs, strict=True))
        if not fits or 1 < shape[1] <= max(self.heads):
            raise ValueError(
                f'the bias function returned {values.shape}; it must broadcast to [B, H, {pairs[0]}, {pairs[1]}]'
            )
        return jnp.broadcast_to(values.reshape(shape), (*shape[:2], *pairs))


def add_gradient(total: Shaped[Array, '...'], gradient: Any) -> Array:
    """Returns the sum of total and gradient; returns the total itself
    for integer parameters, which have no gradient.
    """
    return total if gradient.dtype == jax.dtypes.float0 else total + gradient


def finish_parameter_gradient(parameter: Shaped[Array, '...'], total: Shaped[Array, '...']) -> Any:
    """Returns a parameter's summed gradient; for an integer parameter,
    returns the zeros of type float0 that JAX expects.
    """
    return total if jnp.issubdtype(parameter.dtype, jnp.floating) else np.zeros(parameter.shape, jax.dtypes.float0)


def make_tile_bias(
    request: Request, heads_H: np.ndarray, query_listing_L: np.ndarray, key_listing_M: np.ndarray, size: int
) -> ArrayBias | FunctionBias | None:
    """Returns the bias of the heads `heads_H`, cut into tiles of positions in the listed order; None if the request has
    no bias.
    """
    bias, groups = request.bias, request.key.shape[2]
    if bias is None:
        return None
    if callable(bias):
        partial = bias if isinstance(bias, jax.tree_util.Partial) else jax.tree_util.Partial(bias)
        return FunctionBias(partial, tuple(heads_H.tolist()), groups)
    array = bias.astype(jnp.float32)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if array.shape[1] > 1:
        array = array[:, heads_H].reshape(array.shape[0], groups, -1, *array.shape[2:])
    else:
        array = array[:, None]
    for axis, listing in ((3, query_listing_L), (5, key_listing_M)):
        varies = array.shape[axis] > 1 or len(listing) == 1
        if not varies:
            array = jnp.expand_dims(array, axis)
            continue
        moved = split_into_tiles(jnp.moveaxis(array, axis, 1), listing, size)  # shape [b, n, S, ...]
        array = jnp.moveaxis(moved, (1, 2), (axis, axis + 1))
    return ArrayBias(array)


def bias_of_visited_tiles(array_bghnSnS: Array, chosen: ChosenTiles) -> Array:
    """Returns the bias between the queries of each of t tiles and the keys of the w tiles that it visits, as an array
    [b, g, h, t, S, w S] for tiles of S positions.

    If all computed tiles visit the same tiles, t is 1 and axis S holds the positions of all computed tiles.
    """
    has_visited = array_bghnSnS.shape[5] > 1 or array_bghnSnS.shape[6] > 1
    if chosen.is_shared:
        if has_visited:
            array_bghnSnS = jnp.take(array_bghnSnS, chosen.visited, axis=5)
        array_bghnSnS = array_bghnSnS.reshape(*array_bghnSnS.shape[:5], -1)
        return array_bghnSnS.reshape(*array_bghnSnS.shape[:3], 1, -1, array_bghnSnS.shape[5])
    if not has_visited:
        return array_bghnSnS.reshape(*array_bghnSnS.shape[:5], -1)
    if array_bghnSnS.shape[3] == 1:
        array_bghnSnS = jnp.broadcast_to(
            array_bghnSnS, (*array_bghnSnS.shape[:3], chosen.computed_t.shape[0], *array_bghnSnS.shape[4:])
        )
    if chosen.visited.shape[0] == 1:
        picked = jax.vmap(lambda tile, visited: jnp.take(tile, visited, axis=4), in_axes=(3, 0), out_axes=3)
        return flatten_visited_tiles(picked(array_bghnSnS, chosen.visited[0]))
    array_bghnSnS = jnp.broadcast_to(
        array_bghnSnS, (array_bghnSnS.shape[0], chosen.visited.shape[0], *array_bghnSnS.shape[2:])
    )
    by_tile = jax.vmap(lambda tile, visited: jnp.take(tile, visited, axis=3), in_axes=(2, 0), out_axes=2)
    by_head = jax.vmap(by_tile, in_axes=(1, 0), out_axes=1)
    return flatten_visited_tiles(by_head(array_bghnSnS, chosen.visited))


def flatten_visited_tiles(array: Shaped[Array, '...']) -> Array:
    """Returns an array [..., w, S] as [..., w S]: the positions of all w visited tiles follow one another."""
    return array.reshape(*array.shape[:-2], -1)
