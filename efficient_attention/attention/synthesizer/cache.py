"""The decoding cache of a causal synthesizer: softmax attention's cache, where learned tables replace queries and keys,
or are added as a bias.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache_spec import Bias, CacheSpec, LogitTerms, NewTokens
from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.mechanism import ensure_kind, raise_unsupported
from efficient_attention.attention.request import QueryKeyPair, Request
from efficient_attention.attention.synthesizer.definition import Synthesizer, equivalent_softmax, table_entries
from efficient_attention.attention.synthesizer.fast_attention import pad_width, softmax_queries_keys, values_per_head


def softmax_spec(softmax: Implementation, spec: CacheSpec) -> CacheSpec:
    """Returns the cache spec of the softmax attention that equals a synthesizer;
    raises NotImplementedError for positions beyond its tables.
    """
    mechanism = ensure_kind(Synthesizer, spec.mechanism)
    most = mechanism.length
    raise_unsupported(
        'synthesizer', {f'support for {spec.max_length} positions, only for up to {most}': spec.max_length > most}
    )
    width = mechanism.softmax_head_width(spec.width)
    return dataclasses.replace(
        spec, mechanism=equivalent_softmax(softmax, mechanism), key_heads=spec.heads, width=width
    )


def init(softmax: Implementation, spec: CacheSpec, batch: int, dtype: DTypeLike, rng: Array | None) -> Any:
    """Returns the synthesizer's empty decoding cache, before any token."""
    return softmax.init_cache(softmax_spec(softmax, spec), batch, dtype, rng)


def decode(
    softmax: Implementation, spec: CacheSpec, cache: Any, new: NewTokens, terms: LogitTerms
) -> tuple[Array, Any]:
    """Returns the synthesizer's attention outputs [B, n, H, K] for the new tokens, and the updated decoding cache."""
    raise_unsupported('synthesizer', {'additive scores': terms.additive is not None})
    vectors, places = (new.query, new.key, new.value), QueryKeyPair(new.positions, new.positions)
    request = Request(*vectors, spec.mechanism, None, places, None, learned=terms.learned)
    if ensure_kind(Synthesizer, spec.mechanism).reads_table_as_logits:
        terms = terms._replace(bias=add_table_to_bias(request.learned_operand('table'), terms.bias))
    query, key = softmax_queries_keys(request)
    new = new._replace(query=query, key=key, value=pad_width(values_per_head(request), query.shape[3]))
    out_BnHX, cache = softmax.decode(softmax_spec(softmax, spec), cache, new, terms._replace(learned=None))
    return out_BnHX[..., : spec.width], cache


def add_table_to_bias(table_HNN: Array, bias: Bias | None) -> Bias:
    """Returns a bias function of positions whose values are the learned table's entries plus the given bias."""

    def logits(query_b1L1: Any, key_b11M: Any) -> Array:
        found_bHLM = table_entries(table_HNN, jnp.asarray(query_b1L1)[:, 0, :, 0], jnp.asarray(key_b11M)[:, 0, 0])
        return found_bHLM if bias is None else found_bHLM + bias(query_b1L1, key_b11M)

    return logits
