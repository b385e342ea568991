"""Softmax attention by the backend that is asked for, or by the first one of 'auto' that serves the request."""

import functools
import logging
from collections.abc import Callable

from jax import Array

from efficient_attention.attention.logits.definition import pattern_of
from efficient_attention.attention.patterns.text_form import pattern_text
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax import cudnn, dense_loop, jax_nn, tiled

Backend = Callable[[Request], tuple[Array, Array | None]]

# A backend serves a request or raises NotImplementedError that names what it lacks.
BACKENDS: dict[str, Backend] = {
    'dense': dense_loop.serve,
    'blocked': tiled.serve,
    'jax_nn': jax_nn.serve,
    'cudnn': cudnn.serve,
}
AUTO_ORDER = ('dense', 'blocked')
# Pairs of positions up to which 'auto' takes the dense backend; beyond them nothing builds [L, M] unless it is named.
MOST_DENSE_PAIRS = 512 * 512
# The same where each pair has a relative term, which `dense` shifts and keeps beside the scores. Steps of four layers
# of 128 with four streams, dense against blocked: 62 and 65 ms with 128 x 640 pairs, 178 and 126 ms with 256 x 768
# (two cores of an AMD EPYC, jaxlib 0.10).
MOST_RELATIVE_PAIRS = 2**17
TILED = ('blocked', 'cudnn')  # backends that never hold all pairs


def serve(request: Request) -> tuple[Array, Array | None]:
    """Output and log-sum-exp; raises NotImplementedError with what the backend lacks, or what each one lacks."""
    if request.backend != 'auto':
        return BACKENDS[request.backend](request)
    lacks = []
    queries, keys = request.query.shape[1], request.key.shape[1]
    is_small = may_hold_all_pairs('auto', queries, keys) and (
        request.relative is None or queries * keys <= MOST_RELATIVE_PAIRS
    )
    is_dense = is_small or request.additive is not None  # of which `dense` builds no more than a part at a time
    for name in AUTO_ORDER if is_dense else [name for name in AUTO_ORDER if name != 'dense']:
        try:
            result = BACKENDS[name](request)
        except NotImplementedError as error:
            lacks.append(f'{name}: {error}')
            continue
        log_choice(name, pattern_text(pattern_of(request)))
        return result
    raise NotImplementedError('; '.join(lacks))


def may_hold_all_pairs(backend: str, queries: int, keys: int) -> bool:
    """Whether a call may build arrays of all pairs of so many queries and keys, its bias among them."""
    return backend not in TILED and queries * keys <= MOST_DENSE_PAIRS


@functools.cache
def log_choice(backend: str, pattern: str) -> None:
    """Logs once for each pattern which backend 'auto' took."""
    logging.getLogger(__name__).info('attention: Softmax over %s runs on the %s backend', pattern, backend)
