"""What mechanisms share that mix the tokens of a row before any are compared: a row is one text, and padding."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.mechanism import refuse
from efficient_attention.attention.request import Request


def check_whole_rows(request: Request, **lacks: bool) -> None:
    """Raises NotImplementedError that names what these mechanisms lack, and `lacks` of one of them, if asked for."""
    mechanism, keys = request.mechanism, request.key.shape[1]
    lacks = {name.replace('_', ' '): is_asked for name, is_asked in lacks.items()}
    lacks |= {'additive bias': request.bias is not None, 'log-sum-exp': request.return_lse}
    if mechanism.needs.longest:
        lacks[f'room for {keys} keys, only for {mechanism.needs.longest}'] = keys > mechanism.needs.longest
    refuse(mechanism.name, lacks)


def text_of_row(request: Request) -> Int[Array, 'B'] | None:
    """The segment of each row's text, 0 where all keys are padding; None where no segments are given."""
    return None if request.segments is None else request.segments.key.max(axis=1)


def valid_keys(request: Request) -> Bool[Array, 'B M'] | None:
    """Which keys are no padding; None: all."""
    return None if request.segments is None else jnp.not_equal(request.segments.key, 0)


def valid_queries(request: Request) -> Bool[Array, 'B L'] | None:
    """Which queries are of the row's text; None: all."""
    text_B = text_of_row(request)
    if text_B is None or request.segments is None:
        return None
    query_BL = request.segments.query
    return (query_BL == text_B[:, None]) & (query_BL != 0)


def finish(out_BLHX: Float[Array, 'B L H X'], request: Request) -> Float[Array, 'B L H X']:
    """Results with zeros for queries that read nothing, and NaN in rows that hold several texts.

    How many texts there are is known while the program runs alone, when no error can be raised.
    """
    text_B, valid_BL = text_of_row(request), valid_queries(request)
    if text_B is None or valid_BL is None or request.segments is None:
        return out_BLHX
    out_BLHX = jnp.where(valid_BL[..., None, None], out_BLHX, 0.0)
    return jnp.where(is_one_text(request.segments.key)[:, None, None, None], out_BLHX, jnp.nan)


def is_one_text(segments_BM: Int[Array, 'B M']) -> Bool[Array, 'B']:
    """Whether a row holds no two texts; padding, segment 0, is none."""
    return ((segments_BM == 0) | (segments_BM == segments_BM.max(axis=1, keepdims=True))).all(axis=1)


def per_head(x_BMGK: Float[Array, 'B M G K'], heads: int) -> Float[Array, 'B M H K']:
    """Keys or values of each query head: neighbouring ones share theirs."""
    return x_BMGK if x_BMGK.shape[2] == heads else jnp.repeat(x_BMGK, heads // x_BMGK.shape[2], axis=2)
