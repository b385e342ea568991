"""The decoding cache of a causal synthesizer: softmax's cache, with other queries and keys, or with a bias."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache_spec import Bias, CacheSpec, LogitTerms, NewTokens
from efficient_attention.attention.mechanism import of_kind, refuse
from efficient_attention.attention.request import Request, Sides
from efficient_attention.attention.room import Room
from efficient_attention.attention.synthesizer.definition import Synthesizer, entries, softmax_of
from efficient_attention.attention.synthesizer.serve import compared, values, widened


def softmax_spec(softmax: Room, spec: CacheSpec) -> CacheSpec:
    """Returns the equivalent softmax spec; raises NotImplementedError for positions beyond the tables."""
    mechanism = of_kind(Synthesizer, spec.mechanism)
    most = mechanism.length
    refuse('synthesizer', {f'support for {spec.max_length} positions, only for up to {most}': spec.max_length > most})
    width = mechanism.compared_width(spec.width)
    return dataclasses.replace(spec, mechanism=softmax_of(softmax, mechanism), key_heads=spec.heads, width=width)


def init(softmax: Room, spec: CacheSpec, batch: int, dtype: DTypeLike, rng: Array | None) -> Any:
    """Returns the cache before any token."""
    return softmax.init_cache(softmax_spec(softmax, spec), batch, dtype, rng)


def decode(softmax: Room, spec: CacheSpec, cache: Any, new: NewTokens, terms: LogitTerms) -> tuple[Array, Any]:
    """Returns outputs [B, n, H, K] of the new tokens, and the cache that includes them."""
    refuse('synthesizer', {'additive scores': terms.additive is not None})
    vectors, places = (new.query, new.key, new.value), Sides(new.positions, new.positions)
    request = Request(*vectors, spec.mechanism, None, places, None, learned=terms.learned)
    if of_kind(Synthesizer, spec.mechanism).reads_table_as_logits:
        terms = terms._replace(bias=with_table(request.operand('table'), terms.bias))
    query, key = compared(request)
    new = new._replace(query=query, key=key, value=widened(values(request), query.shape[3]))
    out_BnHX, cache = softmax.decode(softmax_spec(softmax, spec), cache, new, terms._replace(learned=None))
    return out_BnHX[..., : spec.width], cache


def with_table(table_HNN: Array, bias: Bias | None) -> Bias:
    """Returns a function of positions that gives the table's entries plus the bias."""

    def logits(query_b1L1: Any, key_b11M: Any) -> Array:
        found_bHLM = entries(table_HNN, jnp.asarray(query_b1L1)[:, 0, :, 0], jnp.asarray(key_b11M)[:, 0, 0])
        return found_bHLM if bias is None else found_bHLM + bias(query_b1L1, key_b11M)

    return logits
