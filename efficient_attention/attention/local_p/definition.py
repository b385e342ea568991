"""Defines local-p attention: each query predicts a position in the source and reads the keys around this position."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from efficient_attention.attention.dense_attention import same_segment
from efficient_attention.attention.distributions import DISTRIBUTIONS
from efficient_attention.attention.implementation import Result
from efficient_attention.attention.logits import definition as logits
from efficient_attention.attention.logits.definition import FLOAT32, HIGHEST, Weights, scaled_logits
from efficient_attention.attention.logits.query_chunks import compute_attention as serve_logits
from efficient_attention.attention.mechanism import Capabilities, KeyAccess, Mechanism, Requirements, ensure_kind
from efficient_attention.attention.request import Request
from efficient_attention.errors import require, require_at_least


@dataclasses.dataclass(frozen=True)
class LocalP(Mechanism):
    """Local-p attention: weights of the keys within `radius` of a predicted centre p,
    times a Gaussian of the distance to p.

    At key position s the Gaussian is exp(-(s - p)^2 / (2 (radius / 2)^2)); the product is not normalised again. The
    centre is p = S c, with c in (0, 1) that each query predicts (`centres` of `attend`) and S the number of keys in its
    segment; s is a key's position in its text. The gradient reaches c only through the Gaussian.

    Source: Luong et al. 2015, arXiv 1508.04025, section 3.2, equations 9 and 10, where the radius is 10.

    Args:
        radius: D, positions.
        distribution: the distribution of weights within the window: 'softmax' (the paper's), 'sparsemax', 'entmax' or
            'hard'.
    """

    name = 'local_p'
    requirements = Requirements(centres=True)
    capabilities = Capabilities(has_logits=True)
    # Centres are positions in another sequence; self-attention uses `window`, because a token knows its own position.
    key_access = KeyAccess(other_sequence=True, own_row=False)

    radius: int = 10
    distribution: str = 'softmax'

    def __post_init__(self) -> None:
        require_at_least(1, 'local_p radius', self.radius)
        known = f'one of {", ".join(DISTRIBUTIONS)}'
        require(self.distribution in DISTRIBUTIONS, 'local_p distribution', self.distribution, known)


def dense_weights(request: Request, dtype: Any = FLOAT32, precision: jax.lax.Precision | None = HIGHEST) -> Weights:
    """Returns local-p's dense attention weights, whose sum per query is at most 1, and None,
    because there is no log-sum-exp.
    """
    mechanism = ensure_kind(LocalP, request.mechanism)
    offsets_BHLM = offsets_from_centre(request)
    is_near_BHLM = same_segment(request) & (jnp.abs(offsets_BHLM) <= mechanism.radius)
    distribute = DISTRIBUTIONS[mechanism.distribution]
    weights_BHLM, _ = distribute(scaled_logits(request, dtype, precision), is_near_BHLM)
    return weights_BHLM * jnp.exp(-2.0 * jnp.square(offsets_BHLM / mechanism.radius)), None


def offsets_from_centre(request: Request) -> Float[Array, 'B H L M']:
    """Returns the distance s - p, in positions, of each key s from the predicted centre p of each query."""
    assert request.centres is not None
    keys = request.full_row_key_count
    if request.segments is None:
        keys_BL1 = jnp.full((1, 1, 1), keys, jnp.float32)
    else:
        keys_BL1 = same_segment(request)[:, 0].sum(axis=-1, dtype=jnp.float32)[..., None]
    places_BHL = (request.centres.astype(jnp.float32) * keys_BL1).swapaxes(1, 2)
    positions_bM = jnp.asarray(request.full_row_positions.key, jnp.float32)
    return positions_bM[:, None, None] - places_BHL[..., None]


def compute_attention(request: Request) -> Result:
    """Returns the output of local-p attention; supports every option of a request, and has no log-sum-exp."""
    return serve_logits(request, dense_weights)


def multiply_adds(mechanism: LocalP, length: int, heads: int, width: int) -> int:
    """Returns local-p's multiply-adds for one row; all query-key pairs count,
    because centres are known only while the program runs.

    The products that predict centres belong to the module and are not counted here.
    """
    return logits.multiply_adds(mechanism, length, heads, width)
