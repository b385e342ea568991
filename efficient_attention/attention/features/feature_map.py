"""Maps queries and keys to features, and scales the features so that they stay within the range of float32.

Features are kept as logarithms until a stabiliser has been subtracted. The stabiliser never changes a result:
numerator and denominator of a query share it, and no gradient goes through it. For keys it is the largest logarithm of
each feature. Queries add that logarithm and subtract their own largest one.

The Performer's code instead takes one maximum over all features and positions of the keys. It also adds 1e-6 to every
feature so that no denominator vanishes, which pulls all weights towards their mean. Here denominators are at least 1 if
every key is read, so nothing is added.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.dense_attention import MASKED

LOWEST_LOG = -1e30  # the logarithm of a feature that is 0; the sum of two such numbers is still finite
SMALLEST_DENOMINATOR = 1e-30  # a smaller denominator gives only noise as a quotient, although float32 can hold 1e-38


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """Maps a query or a key [..., K] to the logarithms of its R positive features, float32 [..., R].

    A feature that is 0 has the logarithm `LOWEST_LOG`. A query that shares no non-zero feature with any key reads
    nothing.

    Args:
        log_features: the map, a function of [..., K] and of `projection`, defined by a mechanism. Static: two calls
            share a compiled program only if they pass the same function.
        projection: random rows [R, K], or another argument of the function; None if nothing is sampled.
        has_zeros: whether features may be 0, as relu features are. Static.
    """

    log_features: Callable[[Array, Any], Array] = dataclasses.field(metadata={'static': True})
    projection: Any = None  # an Array, or a placeholder while JAX flattens trees of arrays
    has_zeros: bool = dataclasses.field(default=False, metadata={'static': True})

    def map_to_log_features(self, x: Float[Array, '*batch K']) -> Float[Array, '*batch _']:
        """Returns the logarithms of the features phi(x) of queries or keys."""
        return self.log_features(x, self.projection)

    def feature_count(self, width: int) -> int:
        """Returns the number of features R for a head of this width, without computing any feature."""
        return jax.eval_shape(self.map_to_log_features, jax.ShapeDtypeStruct((width,), jnp.float32)).shape[0]


def query_features(logs: Shaped[Array, '...'], stabiliser: Shaped[Array, '...']) -> tuple[Array, Array]:
    """Returns the features of queries, scaled to fit keys whose features were divided by exp(stabiliser), and the
    logarithm of the scale.

    All arrays are [..., R], the scale [...].
    """
    shifted = logs + stabiliser
    scale = jax.lax.stop_gradient(shifted.max(axis=-1))
    return jnp.exp(shifted - scale[..., None]), scale


def key_features(logs: Shaped[Array, '...'], stabiliser: Shaped[Array, '...']) -> Array:
    """Returns the features [..., R] of keys, divided by exp(stabiliser); masked keys have features of zero."""
    return jnp.where(logs > MASKED / 2, jnp.exp(logs - stabiliser), 0.0)


def mask_keys(logs_BGMR: Array, valid_BM: Array | None) -> Float[Array, 'B G M R']:
    """Returns the log features of keys, with MASKED for invalid keys;
    None as `valid_BM` means that all keys are valid.
    """
    return logs_BGMR if valid_BM is None else jnp.where(valid_BM[:, None, :, None], logs_BGMR, MASKED)


def invert_denominators(denominator: Shaped[Array, '...'], scale: Shaped[Array, '...']) -> tuple[Array, Array]:
    """Returns 1 / denominator and the log-sum-exp; zeros and MASKED for queries whose denominator is too small."""
    has_key = (denominator > SMALLEST_DENOMINATOR) & (scale > LOWEST_LOG / 2)
    safe = jnp.where(has_key, denominator, 1.0)
    return jnp.where(has_key, 1.0 / safe, 0.0), jnp.where(has_key, jnp.log(safe) + scale, MASKED)


def divide_sums(
    numerator: Shaped[Array, '...'], denominator: Shaped[Array, '...'], scale: Shaped[Array, '...']
) -> tuple[Array, Array]:
    """Returns attention outputs, numerator / denominator, and the log-sum-exp;
    zeros and MASKED for queries whose denominator is too small.
    """
    has_key = (denominator > SMALLEST_DENOMINATOR) & (scale > LOWEST_LOG / 2)
    safe = jnp.where(has_key, denominator, 1.0)
    # The gradient divides by the squared denominator, which would overflow unless the denominator is scaled to 1.
    unit = 1.0 / jax.lax.stop_gradient(safe)
    out = (numerator * unit[..., None]) / (safe * unit)[..., None]
    lse = jnp.where(has_key, jnp.log(safe) + scale, MASKED)
    return jnp.where(has_key[..., None], out, 0.0), lse
