"""Softmax attention by the backend that is asked for, or by the first one of 'auto' that serves the request."""

import functools
import logging
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.devices import cores, device_count, device_forms
from efficient_attention.attention.logits import serve as logits
from efficient_attention.attention.logits.definition import pattern_of, serve_dense
from efficient_attention.attention.mechanism import of_kind
from efficient_attention.attention.patterns import head_patterns
from efficient_attention.attention.patterns.pattern import pattern_text
from efficient_attention.attention.request import Request
from efficient_attention.attention.room import Result
from efficient_attention.attention.softmax import cudnn, dense_loop, jax_nn, tiled
from efficient_attention.attention.softmax.definition import Softmax, kept_pairs

Backend = Callable[[Request], Result]


def dense_backend(request: Request) -> Result:
    """Output and log-sum-exp of `Softmax` with every option of a request, in a loop where that is faster."""
    if request.additive is not None:
        return logits.serve(request)
    return dense_loop.attend_by_rows(request) if is_faster_by_rows(request) else serve_dense(request)


def is_faster_by_rows(request: Request) -> bool:
    """Whether to loop: on one CPU device, where all scores exceed its caches and a row's keep its cores busy.

    Rows that are spread over devices could not be visited one after another without gathering them. A row that is less
    than a step is no gain on two cores: there the time goes into handing small operations to them. On one core every
    length gained.
    """
    count = cores()
    step_bytes = device_forms().dense_step_bytes * count
    if step_bytes == 0 or device_count() > 1:
        return False
    batch, queries, heads, _ = request.query.shape
    row_bytes = 4 * heads * queries * request.key.shape[1]
    return batch * row_bytes > step_bytes and (count == 1 or row_bytes >= step_bytes)


# A backend serves a request or raises NotImplementedError that names what it lacks.
BACKENDS: dict[str, Backend] = {
    'dense': dense_backend,
    'blocked': tiled.serve,
    'jax_nn': jax_nn.serve,
    'cudnn': cudnn.serve,
}
AUTO_ORDER = ('dense', 'blocked')
# Pairs of positions up to which 'auto' takes the dense backend; beyond them nothing builds [B, H, L, M] unless it is
# named.
MOST_DENSE_PAIRS = 512 * 512
# The same where each pair has a relative term, which `dense` shifts and keeps beside the scores. Steps of four layers
# of 128 with four streams, dense against blocked: 62 and 65 ms with 128 x 640 pairs, 178 and 126 ms with 256 x 768
# (two cores of an AMD EPYC, jaxlib 0.10).
MOST_RELATIVE_PAIRS = 2**17
# The same in float32 on one CPU device, where `dense` visits rows and heads one after another and holds the pairs of
# one head, of patterns that keep at least half of them. Forward and backward, 4 rows of 12 heads of 64, dense against
# blocked at 600, 1,024 and 1,448 positions: 168 and 395, 351 and 727, 900 and 1,750 ms, causal 135 and 204, 395 and
# 451, 684 and 989 ms; at 2,048 one causal row of 8 heads takes 327 and 224 ms. In bfloat16 neither is always faster
# (two cores of an Intel Xeon with AMX, jaxlib 0.10).
MOST_LOOPED_PAIRS = 2**21
# The same on one core, of patterns that keep all pairs: 8 rows of 2 heads of 32 at 1,448 and 2,000 positions 477 and
# 637, 860 and 1,296 ms, but causal 477 and 370, 922 and 737 ms (one core of an AMD EPYC, jaxlib 0.10).
MOST_LOOPED_PAIRS_OF_A_CORE = 2**22
TILED = ('blocked', 'cudnn')  # backends that never hold all pairs


def serve(request: Request) -> tuple[Array, Array | None]:
    """Output and log-sum-exp; raises NotImplementedError with what the backend lacks, or what each one lacks."""
    if request.backend != 'auto':
        return BACKENDS[request.backend](request)
    lacks = []
    for name in AUTO_ORDER if prefers_dense(request) else [name for name in AUTO_ORDER if name != 'dense']:
        try:
            result = BACKENDS[name](request)
        except NotImplementedError as error:
            lacks.append(f'{name}: {error}')
            continue
        log_choice(name, pattern_text(pattern_of(request)))
        return result
    raise NotImplementedError('; '.join(lacks))


def prefers_dense(request: Request) -> bool:
    """Whether 'auto' asks `dense` first: for few pairs, and for more where its loop holds those of one head alone."""
    if request.additive is not None:
        return True  # `dense` builds no more than a part of them at a time
    pairs = request.query.shape[1] * request.key.shape[1]
    if request.relative is not None:
        return pairs <= MOST_RELATIVE_PAIRS
    if may_hold_all_pairs('auto', request.query.shape[1], request.key.shape[1]):
        return True
    return pairs <= MOST_LOOPED_PAIRS_OF_A_CORE and request.bias is None and beats_tiles_in_a_loop(request)


def beats_tiles_in_a_loop(request: Request) -> bool:
    """Whether `dense` loops over this request and the tiles that `blocked` keeps are too many for it to be faster."""
    if request.query.dtype != jnp.float32 or not is_faster_by_rows(request):
        return False
    (_, queries, heads, _), keys = request.query.shape, request.key.shape[1]
    patterns = head_patterns(pattern_of(request), heads)
    tile = of_kind(Softmax, request.mechanism).tile
    kept = sum(kept_pairs(pattern, queries, keys, tile) for pattern in patterns)
    share = kept / (len(patterns) * queries * keys)
    return share >= 0.5 if queries * keys <= MOST_LOOPED_PAIRS else share >= 1.0 and cores() == 1


def may_hold_all_pairs(backend: str, queries: int, keys: int) -> bool:
    """Whether a call may build arrays of all pairs of so many queries and keys, its bias among them."""
    return backend not in TILED and queries * keys <= MOST_DENSE_PAIRS


@functools.cache
def log_choice(backend: str, pattern: str) -> None:
    """Logs once for each pattern which backend 'auto' took."""
    logging.getLogger(__name__).info('attention: Softmax over %s runs on the %s backend', pattern, backend)
