"""Defines `FeatureAttention`, the base class of mechanisms with a feature map,
and computes the dense weights that the features imply.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import causal_mask, masked_softmax, same_segment
from efficient_attention.attention.features.feature_map import LOWEST_LOG, FeatureMap
from efficient_attention.attention.mechanism import Capabilities, Mechanism, Requirements, raise_unsupported
from efficient_attention.attention.request import Request


class FeatureAttention(Mechanism):
    """Linear attention phi(q) (phi(k)^T v) / phi(q) sum phi(k) with some feature map phi.

    Each subclass has two fields. `causal`: a query reads keys up to its own position, through chunks and a running
    state. `chunk`: how many positions are computed at once in the causal form, and for rows with several segments.
    """

    causal: bool
    chunk: int

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires positions only in the causal form; in the noncausal form every query reads all keys of its
        segment.
        """
        return Requirements(positions=self.causal)

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """Supports sequence parallel attention, because devices can add their sums over keys;
        has no dropout, because weights are never computed.
        """
        return Capabilities(has_dropout=False, splits_tokens=True)


def feature_weights(request: Request, features: FeatureMap) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns the dense attention weights that a feature map implies, phi(q) phi(k) divided by its sum over the allowed
    keys, and None, because there is no log-sum-exp.

    The weights are a masked softmax of log(phi(q) phi(k)). Each logarithm is a log-sum-exp over the features, computed
    query by query.
    """
    raise_unsupported(request.mechanism.name, {'additive bias': request.bias is not None})
    key_BMHK = jnp.repeat(request.key, request.query.shape[2] // request.key.shape[2], axis=2)
    query_logs_BHLR, key_logs_BHMR = (
        features.map_to_log_features(x.swapaxes(1, 2).astype(jnp.float32)) for x in (request.query, key_BMHK)
    )

    @jax.checkpoint
    def of_query(query_logs_BHR: Array) -> Array:
        return jax.nn.logsumexp(query_logs_BHR[:, :, None] + key_logs_BHMR, axis=-1)

    logits_LBHM = jax.lax.map(of_query, jnp.moveaxis(query_logs_BHLR, 2, 0))
    logits_BHLM = jnp.moveaxis(logits_LBHM, 0, 2)
    allowed_bhLM = same_segment(request) & (logits_BHLM > LOWEST_LOG / 2)
    allowed_bhLM = allowed_bhLM & causal_mask(request) if request.mechanism.is_causal else allowed_bhLM
    return masked_softmax(logits_BHLM, allowed_bhLM)[0], None
