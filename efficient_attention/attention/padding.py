"""Keeps the content of padding out of every product: not even NaN or infinity there changes a result.

A mask is not enough: zero times NaN is NaN, in the output and in the gradient of the other factor.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, Shaped

from efficient_attention.attention.request import Request


def without_padding(x: Shaped[Array, 'B L *rest'], segments_BL: Int[Array, 'B L']) -> Shaped[Array, 'B L *rest']:
    """`x` with zeros where the segment is 0, and with a gradient of zero there."""
    is_token_BL = jnp.not_equal(segments_BL, 0)
    return jnp.where(is_token_BL.reshape(*is_token_BL.shape, *(1,) * (x.ndim - 2)), x, jnp.zeros_like(x))


def keep_padding_out(request: Request) -> Request:
    """The request with zeros in all arrays of queries and keys where the segment is 0; unchanged without segments."""
    if request.segments is None:
        return request
    segments_BM = request.segments.key
    key, value = (without_padding(x, segments_BM) for x in (request.key, request.value))
    return dataclasses.replace(keep_queries_out(request), key=key, value=value)


def keep_queries_out(request: Request) -> Request:
    """The request with zeros only in the arrays of queries where the segment is 0; unchanged without segments."""
    if request.segments is None:
        return request
    segments_BL, relative, centres = request.segments.query, request.relative, request.centres
    if relative is not None:
        relative = dataclasses.replace(relative, query=without_padding(relative.query, segments_BL))
    return dataclasses.replace(
        request,
        query=without_padding(request.query, segments_BL),
        relative=relative,
        centres=None if centres is None else without_padding(centres, segments_BL),
    )
