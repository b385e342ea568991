"""Which input tokens does an output depend on, by its gradient? Works for any function of token embeddings."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.errors import RunError

AT_ONCE = 8  # points of the path whose gradients are computed together
LEAST_POINTS, MOST_POINTS = 16, 512

Forward = Callable[..., Array]  # from embeddings [L, D] and further arguments to one number


class Attribution(NamedTuple):
    """The attribution of an output's change to tokens.

    Attributes:
        scores_L: the part of each token; they sum to about `change`.
        change: the output minus the output at the baseline.
        points: number of points of the path at which the gradient was computed.
    """

    scores_L: np.ndarray
    change: float
    points: int


class GradientTimesInput:
    """The gradient of an output times its embeddings, summed over their width, [L, D] -> [L]."""

    def __init__(self, forward: Forward) -> None:
        self.gradient = jax.jit(jax.grad(forward))

    def __call__(self, embeddings_LD: Array, *arguments: Any) -> np.ndarray:
        """Returns a score per token; `arguments` are handed to `forward` after the embeddings."""
        return np.asarray(jnp.sum(self.gradient(embeddings_LD, *arguments) * embeddings_LD, axis=-1))


class IntegratedGradients:
    """Integrated gradients of an output (Sundararajan et al. 2017, arXiv 1703.01365, equation 1).

    The integral along the straight path from the baseline uses Gauss-Legendre points. Their number is doubled until the
    scores add up to the output's change.

    Args:
        forward: a function from embeddings [L, D] and further arguments to one number.
        tolerance: allowed difference between the sum of the scores and the change, as a part of the change.
    """

    def __init__(self, forward: Forward, *, tolerance: float = 0.01) -> None:
        self.tolerance = tolerance
        self.forward = jax.jit(forward)

        @jax.jit
        def mean_gradient(first_LD: Array, last_LD: Array, points: tuple[Array, Array], *arguments: Any) -> Array:
            def at(place: Array) -> Array:
                return jax.grad(forward)(first_LD + place * (last_LD - first_LD), *arguments)

            places_P, shares_P = points
            return jnp.tensordot(shares_P, jax.vmap(at)(places_P), 1)

        self.mean_gradient = mean_gradient

    def __call__(self, embeddings_LD: Array, baseline_LD: Array, *arguments: Any) -> Attribution:
        """Returns the attribution to each token; `arguments` are handed to `forward` after the embeddings.

        Raises:
            RunError: the scores do not add up to the change with `MOST_POINTS` points.
        """
        ends = (self.forward(x_LD, *arguments) for x_LD in (baseline_LD, embeddings_LD))
        before, after = (float(one) for one in ends)
        points, change = LEAST_POINTS, after - before
        while points <= MOST_POINTS:
            scores_L = self.scores(embeddings_LD, baseline_LD, points, *arguments)
            # Rounding in float32 allows no smaller difference than a few units in the last place of the output.
            rounding = 8 * float(np.finfo(np.float32).eps) * max(abs(before), abs(after))
            gap = abs(float(scores_L.sum()) - change)
            if gap <= max(self.tolerance * abs(change), rounding):
                return Attribution(scores_L, change, points)
            points *= 2
        raise RunError(f'integrated gradients sum to {scores_L.sum():.6g}, but the output changes by {change:.6g}')

    def scores(self, embeddings_LD: Array, baseline_LD: Array, points: int, *arguments: Any) -> np.ndarray:
        """Returns the integral of the gradient times the path's direction, float64 [L], with this many points."""
        places_P, shares_P = np.polynomial.legendre.leggauss(points)
        mean_LD = np.zeros(embeddings_LD.shape)
        for start in range(0, points, AT_ONCE):
            part = slice(start, start + AT_ONCE)
            chosen = (jnp.float32((places_P[part] + 1) / 2), jnp.float32(shares_P[part] / 2))
            mean_LD += np.asarray(self.mean_gradient(baseline_LD, embeddings_LD, chosen, *arguments), np.float64)
        return np.sum(mean_LD * (np.asarray(embeddings_LD, np.float64) - np.asarray(baseline_LD)), axis=-1)
