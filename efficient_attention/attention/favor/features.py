"""Random features whose products estimate a kernel: how FAVOR draws them, maps positions to them and scales them.

Source: Choromanski et al. 2020, arXiv 2009.14794; their m is our R, their d our K. With w one of R Gaussian rows and
x' = x / K^(1/4), the feature exp(w x' - |x'|^2 / 2) is positive and E[phi(q) phi(k)] = exp(q k / sqrt(K)).

Features are kept as logarithms until something has been subtracted, and what is subtracted never changes a result:
numerator and denominator of a query share it, and no gradient goes through it. Keys lose the largest logarithm of
each feature; queries gain it and then lose their own largest one. The paper's code takes one maximum over all features
and positions of the keys instead, and adds 1e-6 to every feature so that no denominator vanishes, which pulls all
weights towards their mean. Where every key is read our denominators are at least 1, so nothing is added.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.weights import MASKED

RELU_FLOOR = 1e-3  # added to the features of the relu kernel, as the paper's released code has it
SMALLEST_DENOMINATOR = 1e-30  # float32 holds 1e-38; a smaller quotient of sums would be noise


def draw_features(rng: Array, features: int, width: int, orthogonal: bool) -> Float[Array, 'R K']:
    """Float32 Gaussian rows; with `orthogonal`, blocks of K rows at right angles, their norms still Gaussian's.

    Source: section 2.4. Directions are those of a uniformly random orthogonal matrix, norms independent and
    chi-distributed with K degrees of freedom, so that each row alone is an exact Gaussian.
    """
    blocks = -(-features // width) if orthogonal else 0
    # One draw for directions and norms: each costs XLA half a second to compile.
    normal = jax.random.normal(rng, (features + blocks * width, width), jnp.float32)
    rows_RK, squares_nKK = normal[:features], normal[features:].reshape(blocks, width, width)
    if not orthogonal:
        return rows_RK
    q_nKK, r_nKK = jnp.linalg.qr(squares_nKK)
    # A Gaussian matrix's Q factor is uniform only once the signs of the other factor's diagonal are multiplied back.
    signs_nK = jnp.where(jnp.diagonal(r_nKK, axis1=1, axis2=2) < 0.0, -1.0, 1.0)
    directions = (q_nKK * signs_nK[:, None, :]).swapaxes(1, 2).reshape(blocks * width, width)[:features]
    return directions * jnp.linalg.norm(rows_RK, axis=1, keepdims=True)


def redraw_key(rng: Array, step: int | Int[Array, ''], every: int) -> Array:
    """The key of the features at a training step: a new one each `every` steps, always the first where it is 0."""
    return jax.random.fold_in(rng, step // every if every else 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """What maps a query or a key to its features: a kernel's name, and its random rows [R, K] where it has any."""

    kernel: str = dataclasses.field(metadata={'static': True})
    projection: Any = None  # an Array, or what JAX puts in its place while it takes trees of arrays apart

    def count(self, width: int) -> int:
        """R, for heads of this width."""
        return width if self.projection is None else len(self.projection)

    def logs(self, x: Array) -> Array:
        """See `log_features`."""
        return log_features(x, self.projection, self.kernel)


def log_features(
    x: Float[Array, '*batch K'], projection: Float[Array, 'R K'] | None, kernel: str
) -> Float[Array, '*batch _']:
    """Logarithms of the features, float32 and without the factor R^(-1/2), which cancels in a quotient.

    'softmax': w x' - |x'|^2 / 2 with x' = x / K^(1/4). 'relu': log(relu(w x) + 1e-3), with x as it is. 'elu':
    log(elu(x) + 1), which draws nothing and has as many features as x has entries.
    """
    x = x.astype(jnp.float32)
    if kernel == 'elu':
        return jnp.where(x > 0.0, jnp.log1p(jnp.maximum(x, 0.0)), x)
    if kernel == 'softmax':
        x = x * x.shape[-1] ** -0.25
    # An error in a logarithm is a relative error of the feature, so no accelerator may round the operands here.
    projected = jnp.einsum('...K,RK->...R', x, projection, precision=jax.lax.Precision.HIGHEST)
    if kernel == 'relu':
        return jnp.log(jax.nn.relu(projected) + RELU_FLOOR)
    return projected - 0.5 * jnp.square(x).sum(axis=-1, keepdims=True)


def query_features(logs: Array, stabiliser: Array) -> tuple[Array, Array]:
    """Features of queries for keys whose features were divided by exp(stabiliser), and the logarithm of their scale."""
    shifted = logs + stabiliser
    scale = jax.lax.stop_gradient(shifted.max(axis=-1))
    return jnp.exp(shifted - scale[..., None]), scale


def key_features(logs: Array, stabiliser: Array) -> Array:
    """Features of keys divided by exp(stabiliser); masked keys have none."""
    return jnp.where(logs > MASKED / 2, jnp.exp(logs - stabiliser), 0.0)


def mask_keys(logs_BGMR: Array, valid_BM: Array | None) -> Array:
    """Log features with those of invalid keys at MASKED."""
    return logs_BGMR if valid_BM is None else jnp.where(valid_BM[:, None, :, None], logs_BGMR, MASKED)


def quotient(numerator: Array, denominator: Array, scale: Array) -> tuple[Array, Array]:
    """Outputs [..., K] and log-sum-exp [...] of queries; zeros and MASKED without a key that float32 can hold."""
    has_key = denominator > SMALLEST_DENOMINATOR
    safe = jnp.where(has_key, denominator, 1.0)
    # The gradient of a quotient divides by the square of the denominator, which overflows unless it is near 1.
    unit = 1.0 / jax.lax.stop_gradient(safe)
    out = (numerator * unit[..., None]) / (safe * unit)[..., None]
    lse = jnp.where(has_key, jnp.log(safe) + scale, MASKED)
    return jnp.where(has_key[..., None], out, 0.0), lse
