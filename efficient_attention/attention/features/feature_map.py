"""Maps of queries and keys to features, and the scaling that keeps features within float32.

Features are kept as logarithms until something has been subtracted, and what is subtracted never changes a result:
numerator and denominator of a query share it, and no gradient goes through it. Keys lose the largest logarithm of
each feature; queries gain it and then lose their own largest one. The Performer's code takes one maximum over all
features and positions of the keys instead, and adds 1e-6 to every feature so that no denominator vanishes, which pulls
all weights towards their mean. Where every key is read our denominators are at least 1, so nothing is added.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.weights import MASKED

LOWEST_LOG = -1e30  # of a feature that is 0; sums of two are finite, and beside any other it is nothing
SMALLEST_DENOMINATOR = 1e-30  # float32 holds 1e-38; a smaller quotient of sums would be noise


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """Maps a query or a key [..., K] to the logarithms of its R positive features, float32 [..., R].

    A feature that is 0 has the logarithm `LOWEST_LOG`. A query that has no feature with any key reads nothing.

    Args:
        log_features: the map, a function of [..., K] and of `projection`, defined by a mechanism's room. Static: two
            calls share a compiled program where they pass the same function.
        projection: random rows [R, K], or what else the function takes; None where nothing is drawn.
        has_zeros: whether features may be 0, as those of relu are. Static.
    """

    log_features: Callable[[Array, Any], Array] = dataclasses.field(metadata={'static': True})
    projection: Any = None  # an Array, or what JAX puts in its place while it takes trees of arrays apart
    has_zeros: bool = dataclasses.field(default=False, metadata={'static': True})

    def logs(self, x: Float[Array, '*batch K']) -> Float[Array, '*batch _']:
        """Logarithms of the features of queries or keys."""
        return self.log_features(x, self.projection)

    def count(self, width: int) -> int:
        """R, the number of features of a head of this width; found from shapes, without computing."""
        return jax.eval_shape(self.logs, jax.ShapeDtypeStruct((width,), jnp.float32)).shape[0]


def query_features(logs: Shaped[Array, '...'], stabiliser: Shaped[Array, '...']) -> tuple[Array, Array]:
    """Features of queries for keys whose features were divided by exp(stabiliser), and the logarithm of their scale.

    All arrays are [..., R], the scale [...].
    """
    shifted = logs + stabiliser
    scale = jax.lax.stop_gradient(shifted.max(axis=-1))
    return jnp.exp(shifted - scale[..., None]), scale


def key_features(logs: Shaped[Array, '...'], stabiliser: Shaped[Array, '...']) -> Array:
    """Features [..., R] of keys divided by exp(stabiliser); masked keys have zeros."""
    return jnp.where(logs > MASKED / 2, jnp.exp(logs - stabiliser), 0.0)


def mask_keys(logs_BGMR: Array, valid_BM: Array | None) -> Float[Array, 'B G M R']:
    """Log features with those of invalid keys at MASKED; `None`: all are valid."""
    return logs_BGMR if valid_BM is None else jnp.where(valid_BM[:, None, :, None], logs_BGMR, MASKED)


def quotient(
    numerator: Shaped[Array, '...'], denominator: Shaped[Array, '...'], scale: Shaped[Array, '...']
) -> tuple[Array, Array]:
    """Outputs [..., K] and log-sum-exp [...] of queries; zeros and MASKED without a key that float32 can hold."""
    has_key = (denominator > SMALLEST_DENOMINATOR) & (scale > LOWEST_LOG / 2)
    safe = jnp.where(has_key, denominator, 1.0)
    # The gradient of a quotient divides by the square of the denominator, which overflows unless it is near 1.
    unit = 1.0 / jax.lax.stop_gradient(safe)
    out = (numerator * unit[..., None]) / (safe * unit)[..., None]
    lse = jnp.where(has_key, jnp.log(safe) + scale, MASKED)
    return jnp.where(has_key[..., None], out, 0.0), lse
