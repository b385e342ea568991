"""Softmax attention by the requested backend, or by the first backend of 'auto' that supports the request."""

import functools
import logging
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.devices import cpu_core_count, device_count, device_tuning
from efficient_attention.attention.implementation import Result
from efficient_attention.attention.logits import query_chunks as logits
from efficient_attention.attention.logits.definition import attend_dense, request_pattern
from efficient_attention.attention.mechanism import ensure_kind
from efficient_attention.attention.patterns import head_patterns
from efficient_attention.attention.patterns.pattern import pattern_text
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax import cudnn, dense_loop, jax_nn, tiled
from efficient_attention.attention.softmax.definition import Softmax, count_tile_pairs

Backend = Callable[[Request], Result]


def dense_backend(request: Request) -> Result:
    """Returns output and log-sum-exp of `Softmax` with every option of a request, in a loop if that is faster."""
    if request.additive is not None:
        return logits.compute_attention(request)
    return dense_loop.attend_by_rows(request) if is_faster_by_rows(request) else attend_dense(request)


def is_faster_by_rows(request: Request) -> bool:
    """Returns whether to loop over rows: on one CPU device, if the scores exceed its caches and rows keep cores busy.

    Rows that are sharded over devices cannot be computed one after another without gathering them. A row smaller than a
    step brings no gain on two cores, where the time goes into distributing small operations. On one core every length
    gained.
    """
    count = cpu_core_count()
    step_bytes = device_tuning().dense_step_bytes * count
    if step_bytes == 0 or device_count() > 1:
        return False
    batch, queries, heads, _ = request.query.shape
    row_bytes = 4 * heads * queries * request.key.shape[1]
    return batch * row_bytes > step_bytes and (count == 1 or row_bytes >= step_bytes)


# A backend computes a request, or raises NotImplementedError that names the missing features.
BACKENDS: dict[str, Backend] = {
    'dense': dense_backend,
    'blocked': tiled.compute_attention,
    'jax_nn': jax_nn.compute_attention,
    'cudnn': cudnn.compute_attention,
}
AUTO_ORDER = ('dense', 'blocked')
# Largest number of pairs for which 'auto' uses the dense backend. Beyond it, only backends that the caller names build
# [B, H, L, M], except for the cases below.
MOST_DENSE_PAIRS = 512 * 512
# The same limit with a relative term, which `dense` shifts and stores next to the scores. Steps of four layers of 128
# with four streams, dense against blocked: 62 and 65 ms with 128 x 640 pairs, 178 and 126 ms with 256 x 768 (two
# cores of an AMD EPYC, jaxlib 0.10).
MOST_RELATIVE_PAIRS = 2**17
# The same limit in float32 on one CPU device, for patterns that keep at least half of the pairs. There `dense` loops
# over rows and heads and holds the pairs of one head. Forward and backward, 4 rows of 12 heads of 64, dense against
# blocked at 600, 1,024 and 1,448 positions: 168 and 395, 351 and 727, 900 and 1,750 ms; causal 135 and 204, 395 and
# 451, 684 and 989 ms. At 2,048 one causal row of 8 heads takes 327 and 224 ms. In bfloat16 neither is always faster
# (two cores of an Intel Xeon with AMX, jaxlib 0.10).
MOST_LOOPED_PAIRS = 2**21
# The same limit on one core, for patterns that keep all pairs. Dense against blocked, 8 rows of 2 heads of 32 at 1,448
# and 2,000 positions: 477 and 637, 860 and 1,296 ms; but causal 477 and 370, 922 and 737 ms (one core of an AMD EPYC,
# jaxlib 0.10).
MOST_LOOPED_PAIRS_OF_A_CORE = 2**22
TILED = ('blocked', 'cudnn')  # backends that never hold all pairs


def compute_attention(request: Request) -> tuple[Array, Array | None]:
    """Returns output and log-sum-exp by the requested backend, or by the first one of 'auto' that supports the call.

    Raises:
        NotImplementedError: no tried backend supports the request; the message names what each one lacks.
    """
    if request.backend != 'auto':
        return BACKENDS[request.backend](request)
    lacks = []
    for name in AUTO_ORDER if prefers_dense(request) else [name for name in AUTO_ORDER if name != 'dense']:
        try:
            result = BACKENDS[name](request)
        except NotImplementedError as error:
            lacks.append(f'{name}: {error}')
            continue
        log_choice(name, pattern_text(request_pattern(request)))
        return result
    raise NotImplementedError('; '.join(lacks))


def prefers_dense(request: Request) -> bool:
    """Returns whether 'auto' tries `dense` first: for few pairs, or for more if it loops over heads."""
    if request.additive is not None:
        return True  # `dense` computes additive scores a part at a time
    pairs = request.query.shape[1] * request.key.shape[1]
    if request.relative is not None:
        return pairs <= MOST_RELATIVE_PAIRS
    if may_hold_all_pairs('auto', request.query.shape[1], request.key.shape[1]):
        return True
    return pairs <= MOST_LOOPED_PAIRS_OF_A_CORE and request.bias is None and is_dense_loop_faster(request)


def is_dense_loop_faster(request: Request) -> bool:
    """Returns whether `dense` loops over this request and is faster than `blocked`, by the tiles that it would keep."""
    if request.query.dtype != jnp.float32 or not is_faster_by_rows(request):
        return False
    (_, queries, heads, _), keys = request.query.shape, request.key.shape[1]
    patterns = head_patterns(request_pattern(request), heads)
    tile = ensure_kind(Softmax, request.mechanism).tile
    kept = sum(count_tile_pairs(pattern, queries, keys, tile) for pattern in patterns)
    share = kept / (len(patterns) * queries * keys)
    return share >= 0.5 if queries * keys <= MOST_LOOPED_PAIRS else share >= 1.0 and cpu_core_count() == 1


def may_hold_all_pairs(backend: str, queries: int, keys: int) -> bool:
    """Returns whether a call may build arrays of all pairs of `queries` and `keys`, such as its bias."""
    return backend not in TILED and queries * keys <= MOST_DENSE_PAIRS


@functools.cache
def log_choice(backend: str, pattern: str) -> None:
    """Logs once for each pattern which backend 'auto' chose."""
    logging.getLogger(__name__).info('attention: Softmax over %s runs on the %s backend', pattern, backend)
