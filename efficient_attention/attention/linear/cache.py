"""The decoding cache of causal linear attention: sums of phi(k) v and of phi(k) over the keys. The size of these sums
does not depend on the length.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.cache_spec import CacheSpec, NewTokens
from efficient_attention.attention.features.cache import SumsCache, decode_sums, init_sums
from efficient_attention.attention.features.cosine import append_positions, cosine_map
from efficient_attention.attention.linear.definition import ELU, Linear, check_positions
from efficient_attention.attention.mechanism import ensure_kind


def init(spec: CacheSpec, batch: int, *_: Any) -> SumsCache:
    """Returns linear attention's empty decoding cache, with sums of zero."""
    mechanism = ensure_kind(Linear, spec.mechanism)
    if mechanism.kind == 'elu':
        return init_sums(spec, batch, ELU)
    check_positions(spec.max_length, mechanism)
    return init_sums(dataclasses.replace(spec, width=spec.width + 1), batch, cosine_map(mechanism.length))


def decode(spec: CacheSpec, cache: SumsCache, new: NewTokens, *_: Any) -> tuple[Array, SumsCache]:
    """Returns linear attention's outputs [B, n, H, K] for the new tokens, and the updated decoding cache."""
    mechanism, dtype = ensure_kind(Linear, spec.mechanism), new.query.dtype
    if mechanism.kind == 'elu':
        return decode_sums(cache, new, mechanism.chunk)
    places_Bn, is_token_Bn = new.positions, new.segments != 0
    placed = {'query': append_positions(new.query, new.positions), 'key': append_positions(new.key, new.positions)}
    new = new._replace(value=append_positions(new.value, jnp.zeros_like(new.positions)), **placed)
    out_BnHX, cache = decode_sums(cache, new, mechanism.chunk)
    is_beyond_Bn = (places_Bn >= mechanism.length) & is_token_Bn
    return jnp.where(is_beyond_Bn[..., None, None], jnp.nan, out_BnHX[..., :-1]).astype(dtype), cache
