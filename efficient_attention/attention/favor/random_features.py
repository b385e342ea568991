"""Samples FAVOR's random features, whose products estimate a kernel,
and maps vectors to the features of two kernels: softmax and relu.

Source: Choromanski et al. 2020, arXiv 2009.14794; the paper's m is our R, its d our K. With w one of R Gaussian rows
and x' = x / K^(1/4), the feature exp(w x' - |x'|^2 / 2) is positive and E[phi(q) phi(k)] = exp(q k / sqrt(K)).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

RELU_FLOOR = 1e-3  # added to each feature of the relu kernel, as in the paper's released code


def draw_features(rng: Array, features: int, width: int, orthogonal: bool) -> Float[Array, 'R K']:
    """Returns the sampled float32 Gaussian rows [R, K] of a random projection;
    with `orthogonal`, each block of K rows is orthogonal.

    Source: section 2.4. Directions come from a uniformly random orthogonal matrix. Norms are independent and
    chi-distributed with K degrees of freedom, so each single row is exactly Gaussian.
    """
    blocks = -(-features // width) if orthogonal else 0
    # Directions and norms come from one sample, because XLA takes half a second to compile each sampling operation.
    normal = jax.random.normal(rng, (features + blocks * width, width), jnp.float32)
    rows_RK, squares_nKK = normal[:features], normal[features:].reshape(blocks, width, width)
    if not orthogonal:
        return rows_RK
    q_nKK, r_nKK = jnp.linalg.qr(squares_nKK)
    # A Gaussian matrix's Q factor is uniform only after its columns are multiplied by the signs of R's diagonal.
    signs_nK = jnp.where(jnp.diagonal(r_nKK, axis1=1, axis2=2) < 0.0, -1.0, 1.0)
    directions_RK = (q_nKK * signs_nK[:, None, :]).swapaxes(1, 2).reshape(blocks * width, width)[:features]
    return directions_RK * jnp.linalg.norm(rows_RK, axis=1, keepdims=True)


def log_softmax_features(x: Float[Array, '*batch K'], projection_RK: Float[Array, 'R K']) -> Float[Array, '*batch R']:
    """Returns the log features of the softmax kernel in float32: w x' - |x'|^2 / 2 with x' = x / K^(1/4).

    The factor R^(-1/2) is left out, because it cancels in the quotient.
    """
    if x.dtype == jnp.bfloat16:
        return log_softmax_features_of_bfloat16(x, projection_RK)
    x = x.astype(jnp.float32) * x.shape[-1] ** -0.25
    return project(x, projection_RK) - 0.5 * jnp.square(x).sum(axis=-1, keepdims=True)


@jax.custom_vjp
def log_softmax_features_of_bfloat16(
    x: Float[Array, '*batch K'], projection_RK: Float[Array, 'R K']
) -> Float[Array, '*batch R']:
    """Returns the log features of the softmax kernel in float32, from a product with bfloat16 operands.

    The projection is the sum of two bfloat16 parts up to 2^-17 of its size. The gradient of x is rounded to bfloat16
    before it is multiplied, and the projection gets no gradient.
    """
    width = x.shape[-1]
    high_RK, low_RK = split_into_bfloat16(projection_RK * width**-0.25)
    parts_RX, x_twice = (jnp.concatenate(both, axis=-1) for both in ((high_RK, low_RK), (x, x)))
    product = jnp.einsum('...X,RX->...R', x_twice, parts_RX, preferred_element_type=jnp.float32)
    return product - 0.5 * width**-0.5 * jnp.square(x.astype(jnp.float32)).sum(axis=-1, keepdims=True)


def forward(x: Float[Array, '*batch K'], projection_RK: Float[Array, 'R K']) -> tuple[Array, tuple[Array, Array]]:
    """Returns the results of `log_softmax_features_of_bfloat16`, and the arrays saved for the backward pass."""
    return log_softmax_features_of_bfloat16(x, projection_RK), (x, projection_RK)


def backward(saved: tuple[Array, Array], dlogs: Float[Array, '*batch R']) -> tuple[Array, Array]:
    """Returns the gradient of x, and zeros for the projection, which is not trained."""
    x, projection_RK = saved
    width = x.shape[-1]
    high_RK = split_into_bfloat16(projection_RK * width**-0.25)[0]
    # The added column of ones sums the gradients of the R logarithms, in the same product.
    columns_RV = jnp.concatenate([high_RK, jnp.ones_like(high_RK[:, :1])], axis=-1)
    both = jnp.einsum('...R,RV->...V', dlogs.astype(x.dtype), columns_RV, preferred_element_type=jnp.float32)
    dx = both[..., :-1] - width**-0.5 * both[..., -1:] * x.astype(jnp.float32)
    return dx.astype(x.dtype), jnp.zeros_like(projection_RK)


log_softmax_features_of_bfloat16.defvjp(forward, backward)


def split_into_bfloat16(x: Float[Array, '...']) -> tuple[Array, Array]:
    """Returns two bfloat16 arrays whose sum is a float32 array, up to 2^-17 of its size."""
    high = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)  # XLA may remove a pair of conversions
    return high.astype(jnp.bfloat16), (x - high).astype(jnp.bfloat16)


def log_relu_features(x: Float[Array, '*batch K'], projection_RK: Float[Array, 'R K']) -> Float[Array, '*batch R']:
    """Returns the log features of the relu kernel in float32: log(relu(w x) + 1e-3), where x is not scaled."""
    return jnp.log(jax.nn.relu(project(x.astype(jnp.float32), projection_RK)) + RELU_FLOOR)


def project(x: Float[Array, '*batch K'], projection_RK: Float[Array, 'R K']) -> Float[Array, '*batch R']:
    """Returns the products of each vector with each row of the random projection, in full float32.

    An error in a logarithm is a relative error of the feature, so no accelerator may round the operands here.
    """
    return jnp.einsum('...K,RK->...R', x, projection_RK, precision=jax.lax.Precision.HIGHEST)


# The keys of this dict are the allowed values of `FAVOR.kernel`.
KERNELS: dict[str, Callable[[Array, Array], Array]] = {'softmax': log_softmax_features, 'relu': log_relu_features}
