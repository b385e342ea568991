"""Defines `Hard`, hard attention over a pattern: all weight on the key with the largest logit, or on a sampled key."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, UInt32

from efficient_attention.attention.distributions.hard import gumbel_max_sample, hardmax
from efficient_attention.attention.dropout import hash_in_indices, row_seeds
from efficient_attention.attention.implementation import Result
from efficient_attention.attention.logits import definition as logits
from efficient_attention.attention.logits.definition import PatternAttention, Weights
from efficient_attention.attention.logits.query_chunks import compute_attention as serve_logits
from efficient_attention.attention.mechanism import Randomness
from efficient_attention.attention.request import Request
from efficient_attention.errors import require_truth_values

DRAW_STREAM = 0x64726177  # makes these random bits differ from dropout's random bits for the same random key


@dataclasses.dataclass(frozen=True)
class Hard(PatternAttention):
    """Hard attention: returns the value of one of the keys that `pattern` allows,
    by default the key with the largest logit.

    Weights give logits no gradient. With `sampled` and a key `rng`, one for all rows or one per row, each query and
    head samples its key from the softmax of the logits. `return_lse` then returns the log-probability of each sample in
    place of a log-sum-exp. The gradient of an expected loss is the gradient of the loss plus loss times the gradient of
    these log-probabilities (REINFORCE, Williams 1992). Without `rng` the key with the largest logit is read.

    Source: Xu et al. 2015, arXiv 1502.03044, section 4.1.
    """

    name = 'hard'

    sampled: bool = False

    def __post_init__(self) -> None:
        PatternAttention.__post_init__(self)
        require_truth_values('hard', sampled=self.sampled)

    @functools.cached_property
    def randomness(self) -> Randomness:
        """Declares that hard attention samples keys in training if `sampled` is set."""
        return Randomness(in_training=self.sampled)

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Returns one-hot weights, 1 for the allowed key with the largest logit, and None,
        because there is no log-sum-exp.
        """
        return hardmax(logits_BHLM, allowed_bhLM)


def dense_weights(request: Request, dtype: Any = logits.FLOAT32, precision: Any = logits.HIGHEST) -> Weights:
    """Returns the one-hot weights of hard attention, and for sampled keys also their log-probabilities."""
    if request.rng is None or not request.mechanism.randomness.in_training:
        return logits.dense_weights(request, dtype, precision)
    logits_BHLM = logits.scaled_logits(request, dtype, precision)
    return gumbel_max_sample(logits_BHLM, logits.allowed_pairs(request), random_bits_per_pair(request, request.rng))


def random_bits_per_pair(request: Request, rng: Array) -> UInt32[Array, 'B H L M']:
    """Returns random bits that depend only on the random key and on row, head, query and key indices; cutting the
    computation into parts does not change them.
    """
    seeds_B = hash_in_indices(row_seeds(rng, len(request.query)), jnp.full(1, DRAW_STREAM))[:, 0]
    return hash_in_indices(seeds_B, *map(request.global_indices, ('head', 'query', 'key')))


def compute_attention(request: Request) -> Result:
    """Returns the output of hard attention and, for sampled keys, their log-probabilities;
    supports every option of a request.
    """
    return serve_logits(request, dense_weights)
