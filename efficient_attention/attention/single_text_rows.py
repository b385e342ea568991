"""Checks and masks for mechanisms that first mix all tokens of a row; each row must then hold one text and padding."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.request import Request


def check_single_text_rows(request: Request, **lacks: bool) -> None:
    """Raises a NotImplementedError that names each requested feature that the mechanism lacks: a feature in `lacks`, a
    bias, a log-sum-exp, or too many keys.
    """
    mechanism, keys = request.mechanism, request.key.shape[1]
    lacks = {name.replace('_', ' '): is_asked for name, is_asked in lacks.items()}
    lacks |= {'additive bias': request.bias is not None, 'log-sum-exp': request.return_lse}
    if mechanism.requirements.longest:
        lacks[f'support for {keys} keys, only for up to {mechanism.requirements.longest}'] = (
            keys > mechanism.requirements.longest
        )
    raise_unsupported(mechanism.name, lacks)


def row_segment(request: Request) -> Int[Array, 'B'] | None:
    """Returns the segment number of the text in each row, 0 if all keys are padding;
    None if the request has no segments.
    """
    return None if request.segments is None else request.segments.key.max(axis=1)


def valid_keys(request: Request) -> Bool[Array, 'B M'] | None:
    """Returns which keys are not padding; None means that all keys are valid."""
    return None if request.segments is None else jnp.not_equal(request.segments.key, 0)


def valid_queries(request: Request) -> Bool[Array, 'B L'] | None:
    """Returns which queries belong to the text of their row; None means all queries."""
    text_B = row_segment(request)
    if text_B is None or request.segments is None:
        return None
    query_BL = request.segments.query
    return (query_BL == text_B[:, None]) & (query_BL != 0)


def mask_queries_without_keys(out_BLHX: Float[Array, 'B L H X'], request: Request) -> Float[Array, 'B L H X']:
    """Returns attention results with zeros for queries outside the row's text, and NaN in rows that hold several texts.

    NaN replaces an error, because the number of texts is known only while the program runs, when no error can be
    raised.
    """
    text_B, valid_BL = row_segment(request), valid_queries(request)
    if text_B is None or valid_BL is None or request.segments is None:
        return out_BLHX
    out_BLHX = jnp.where(valid_BL[..., None, None], out_BLHX, 0.0)
    return jnp.where(is_single_segment_row(request.segments.key)[:, None, None, None], out_BLHX, jnp.nan)


def is_single_segment_row(segments_BM: Int[Array, 'B M']) -> Bool[Array, 'B']:
    """Returns whether each row holds at most one text; padding (segment 0) is not counted."""
    return ((segments_BM == 0) | (segments_BM == segments_BM.max(axis=1, keepdims=True))).all(axis=1)


def repeat_key_heads(x_BMGK: Float[Array, 'B M G K'], heads: int) -> Float[Array, 'B M H K']:
    """Returns keys or values repeated for each query head; neighbouring query heads share a key head."""
    return x_BMGK if x_BMGK.shape[2] == heads else jnp.repeat(x_BMGK, heads // x_BMGK.shape[2], axis=2)
