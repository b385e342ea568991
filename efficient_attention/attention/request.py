"""Defines the arguments of an attention call: `Lengths` of rows, and the checked `Request`,
which every mechanism's implementation receives.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Shaped

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative

Numbers = Array | np.ndarray


class Lengths(NamedTuple):
    """The segments of rows with one text each: row b has `lengths_B[b]` tokens of segment 1, then padding (segment 0).

    It means the same as the array `segments(L)`. `attend`, attention modules, layers, encoders, decoders and
    encoder-decoders accept it in place of segments [B, L]. The backend `cudnn` supports lengths but no segments.

    Attributes:
        lengths_B: integers from 0 to L, the number of tokens in each row.
    """

    lengths_B: Numbers

    def segments(self, length: int) -> Int[Array, 'B L']:
        """Returns the same segments as an int32 array [B, L]: 1 for tokens, 0 for padding."""
        return (jnp.arange(length)[None] < jnp.asarray(self.lengths_B)[:, None]).astype(jnp.int32)


AnySegments = Numbers | Lengths


def segments_and_lengths(segments: Any, length: int) -> tuple[Any, Array | None]:
    """Returns the segments as an array [B, L], and the lengths [B] of the rows.

    The lengths are None if the argument `segments` is not a `Lengths`.
    """
    if isinstance(segments, Lengths):
        return segments.segments(length), jnp.asarray(segments.lengths_B)
    return segments, None


def lengths_or_segments(segments_BL: Any, lengths_B: Any) -> Any:
    """Returns the lengths if they are known, else the segments; the reverse of `segments_and_lengths`."""
    return segments_BL if lengths_B is None else Lengths(lengths_B)


def segments_of_batch(batch: Mapping[str, Any], side: str = '') -> Any:
    """Returns the segments of a batch: its 'lengths' if each row has one text, else its array 'segments'.

    `side` precedes the names of the arrays, such as 'source_'.

    Raises:
        ValueError: both are NumPy arrays, and the lengths contradict the segments.
    """
    lengths_B = batch.get(f'{side}lengths')
    if lengths_B is None:
        return batch[f'{side}segments']
    check_lengths(batch, side)
    return Lengths(lengths_B)


def check_lengths(batch: Mapping[str, Any], side: str = '') -> None:
    """Raises ValueError if the lengths of a batch contradict its segments; only NumPy arrays are compared.

    `side` precedes the names of the arrays, such as 'source_'. Their shapes are [..., L] and [...].
    """
    segments, lengths = batch.get(f'{side}segments'), batch.get(f'{side}lengths')
    if not (isinstance(segments, np.ndarray) and isinstance(lengths, np.ndarray)):
        return
    is_token = np.arange(segments.shape[-1]) < lengths[..., None]
    for row in map(tuple, np.argwhere((segments != is_token).any(axis=-1))):
        raise ValueError(
            f'{side}lengths of row {", ".join(map(str, row))} is {lengths[row]}, but {side}segments of this row is not '
            f'{lengths[row]} times 1 and then 0'
        )


class QueryKeyPair(NamedTuple):
    """A pair of values, such as segments or positions: one for the queries and one for the keys."""

    query: Any
    key: Any


class Dropout(NamedTuple):
    """Dropout of attention weights: the probability in (0, 1) that a weight is dropped, and a typed PRNG key, or one
    PRNG key per row [B].
    """

    rate: float
    rng: Any


class ShardPlacement(NamedTuple):
    """The place of one device's block of queries and keys in the whole rows, if sequence parallelism shards the rows
    over devices.

    A request with a placement has positions that count from the block's start and are known at trace time. The fields
    of the placement depend on the device's number, so they are known only while the program runs.
    """

    keys: int  # number of keys in the whole rows
    first: QueryKeyPair  # int32 [], indices of the block's first query and key in the whole rows
    shift: QueryKeyPair  # int32 [], added to positions before masks and bias functions read them
    first_head: Array | int = 0  # index of the block's first query head


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallOptions:
    """The keyword arguments of `attend` in one object, for callers inside the package; `attend` documents them."""

    bias: Any = None
    relative: Relative | None = None
    additive: Array | None = None
    centres: Array | None = None
    learned: Mapping[str, Array] | None = None
    query_segments: AnySegments | None = None
    key_segments: AnySegments | None = None
    query_positions: Numbers | None = None
    key_positions: Numbers | None = None
    dropout_rate: float = 0.0
    rng: Array | None = None
    dropout_rng: Array | None = None
    backend: str = 'auto'
    return_lse: bool = False
    layer: Array | int | None = None  # number of the layer that calls, for a pattern of several layers


class AttendKeywords(TypedDict, total=False):
    """The types of the keyword arguments of `attend` except `return_lse`, for type checkers."""

    bias: Any
    relative: Relative | None
    additive: Array | None
    centres: Array | None
    learned: Mapping[str, Array] | None
    query_segments: AnySegments | None
    key_segments: AnySegments | None
    query_positions: Numbers | None
    key_positions: Numbers | None
    dropout_rate: float
    rng: Array | None
    dropout_rng: Array | None
    backend: str


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of an attention call.

    Positions are always present. Segments are given for both queries and keys, or are None. Lengths [B] are given in
    addition to segments if both came as `Lengths`. Dropout is present only at a rate above 0.

    Shapes: query [B, L, H, K]; key and value [B, M, G, K] with H a multiple of G; segments int [B, L] and [B, M]. The
    bias broadcasts to [B, H, L, M] or is a function of positions. Positions are int [1 or B, L] and [1 or B, M]: NumPy
    arrays if they are known at trace time (as the default positions are), else JAX arrays.
    """

    query: Array
    key: Array
    value: Array
    mechanism: Mechanism
    segments: QueryKeyPair | None
    positions: QueryKeyPair
    dropout: Dropout | None
    bias: Any = None
    relative: Relative | None = None
    additive: Array | None = None  # the vector v [H, K] of additive scores v tanh(q + k)
    centres: Array | None = None  # [B, L, H]: window centres, as fractions of the number of keys in the segment
    learned: Mapping[str, Array] | None = None  # learned arrays by name, as `Mechanism.learned_operands` declares them
    rng: Array | None = None
    lengths: QueryKeyPair | None = None
    return_lse: bool = False
    backend: str = 'auto'  # how softmax attention is executed
    place: ShardPlacement | None = None  # place of this device's shard; None if the request holds whole rows
    layer: Array | int | None = None  # number of the layer that calls, for a pattern of several layers

    @property
    def has_default_positions(self) -> bool:
        """Whether queries and keys are known at trace time to have the positions 0, 1, ..."""
        return all(
            isinstance(positions, np.ndarray) and np.array_equal(positions, np.arange(positions.shape[1])[None])
            for positions in self.positions
        )

    def learned_operand(self, name: str) -> Array:
        """Returns the mechanism's learned array of this name, in float32."""
        assert self.learned is not None
        return jnp.asarray(self.learned[name], jnp.float32)

    @property
    def full_row_key_count(self) -> int:
        """The number of keys in the whole rows, before rows are sharded;
        some patterns place their tiles by this number.
        """
        return self.key.shape[1] if self.place is None else self.place.keys

    @property
    def full_row_positions(self) -> QueryKeyPair:
        """The positions of queries and keys in the whole rows, before rows are sharded; masks and bias functions read
        these positions.
        """
        if self.place is None:
            return self.positions
        return QueryKeyPair(
            *(jnp.asarray(x) + shift for x, shift in zip(self.positions, self.place.shift, strict=True))
        )

    def global_indices(self, axis: str) -> Array:
        """Returns the int32 indices of heads, queries or keys within the whole rows,
        which dropout hashes to random bits.

        `axis` is 'head', 'query' or 'key'.
        """
        size = self.key.shape[1] if axis == 'key' else self.query.shape[1 if axis == 'query' else 2]
        if self.place is None:
            return jnp.arange(size)
        return jnp.arange(size) + (self.place.first_head if axis == 'head' else getattr(self.place.first, axis))


# ---- The content of padding tokens, even NaN or infinity, changes no result. ----


def without_padding(
    x: Shaped[Array, 'B L *rest'], segments_BL: Int[Array, 'B L'], masks_gradient: bool = True
) -> Shaped[Array, 'B L *rest']:
    """Returns `x` with zeros at padding tokens (segment 0), which also get a zero gradient.

    A mask on the weights is not enough: zero times NaN is NaN, in the output and in the gradient of the other factor.
    With `masks_gradient=False`, the gradient is not masked again: that of padding tokens must already be zero.
    """
    is_token_BL = jnp.not_equal(segments_BL, 0).reshape(*segments_BL.shape, *(1,) * (x.ndim - 2))
    return (zeroed if masks_gradient else zeroed_with_given_gradient)(is_token_BL, x)


def zeroed(keeps: Shaped[Array, '...'], x: Shaped[Array, '...']) -> Array:
    """Returns `x`, with zeros where `keeps` is False."""
    return jnp.where(keeps, x, jnp.zeros_like(x))


zeroed_with_given_gradient = jax.custom_vjp(zeroed)
zeroed_with_given_gradient.defvjp(lambda keeps, x: (zeroed(keeps, x), None), lambda _, dx: (None, dx))


def with_padding_zeroed(request: Request, masks_gradient: bool = True) -> Request:
    """Returns the attention request with zeros at padding tokens in all query,
    key and value arrays; unchanged without segments. `masks_gradient` is that of `without_padding`.
    """
    if request.segments is None:
        return request
    key, value = (without_padding(x, request.segments.key, masks_gradient) for x in (request.key, request.value))
    return dataclasses.replace(with_query_padding_zeroed(request, masks_gradient), key=key, value=value)


def with_query_padding_zeroed(request: Request, masks_gradient: bool = True) -> Request:
    """Returns the attention request with zeros at padding tokens in only the query arrays; unchanged without
    segments. `masks_gradient` is that of `without_padding`, for the queries themselves.
    """
    if request.segments is None:
        return request
    segments_BL, relative, centres = request.segments.query, request.relative, request.centres
    if relative is not None:
        relative = dataclasses.replace(relative, query=without_padding(relative.query, segments_BL))
    return dataclasses.replace(
        request,
        query=without_padding(request.query, segments_BL, masks_gradient),
        relative=relative,
        centres=None if centres is None else without_padding(centres, segments_BL),
    )


# (request, masks_gradient) -> request: `with_padding_zeroed` or `with_query_padding_zeroed`
ReplacePadding = Callable[[Request, bool], Request]
