"""Chooses the backend of softmax attention: the requested backend,
or the first backend of 'auto' that supports the request.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.choice_log import Refusal, note_choice
from efficient_attention.attention.devices import cpu_core_count, device_count, device_tuning
from efficient_attention.attention.implementation import Result
from efficient_attention.attention.logits import query_chunks as logits
from efficient_attention.attention.logits.definition import attend_dense, request_pattern
from efficient_attention.attention.mechanism import UnsupportedError, ensure_kind
from efficient_attention.attention.patterns import head_patterns
from efficient_attention.attention.patterns.pattern import pattern_text
from efficient_attention.attention.request import ReplacePadding, Request
from efficient_attention.attention.softmax import blocked_backend, cudnn, dense_loop, jax_nn, mosaic, splash
from efficient_attention.attention.softmax.definition import Softmax, count_tile_pairs

Backend = Callable[[Request], Result]


def dense_backend(request: Request) -> Result:
    """Computes the backend `dense` of softmax attention, in a loop over batch rows if that is faster;
    returns output and log-sum-exp.
    """
    if request.additive is not None:
        return logits.compute_attention(request)
    return dense_loop.attend_by_rows(request) if is_row_loop_faster(request) else attend_dense(request)


def is_row_loop_faster(request: Request) -> bool:
    """Returns whether dense attention is faster row by row: on one CPU device, if the batch's scores exceed the CPU's
    caches and one row is large enough.

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


# A backend computes a request, or raises a NotImplementedError that names the missing features.
BACKENDS: dict[str, Backend] = {
    'dense': dense_backend,
    'blocked': blocked_backend.compute_attention,
    'jax_nn': jax_nn.compute_attention,
    'cudnn': cudnn.compute_attention,
    'mosaic': mosaic.compute_attention,
    'splash': splash.compute_attention,
}
AUTO_ORDER = ('cudnn', 'mosaic', 'splash', 'dense', 'blocked')
# Largest number of query-key pairs for which 'auto' uses the backend `dense`, which builds arrays [B, H, L, M].
# The cases below have other limits; a backend that the caller names has no limit.
MOST_DENSE_PAIRS = 512 * 512
# Largest number of query-key pairs for `dense` with a relative term; `dense` stores this term next to the scores.
# A model with four layers of width 128 and four text streams was measured on two cores of an AMD EPYC (jaxlib 0.10).
# A step with 128 x 640 pairs takes 62 ms by `dense` and 65 ms by `blocked`; with 256 x 768 pairs 178 and 126 ms.
MOST_RELATIVE_PAIRS = 2**17
# Largest number of query-key pairs for `dense` in float32 on one CPU device, for patterns that keep nearly all pairs.
# On one CPU device `dense` loops over rows and heads, so it holds only the pairs of one head.
# Forward and backward passes were measured on an idle AMD EPYC without AVX-512 (jaxlib 0.10), first on two cores, then
# on one core:
# 4 rows of 12 heads of width 64, 600 positions: `dense` 327, 434 ms, `blocked` 418, 747 ms; causal 283, 411 and 317,
# 453 ms.
# The same, 1,024 positions: `dense` 993, 1,422 ms, `blocked` 1,049, 1,309 ms; causal 990, 1,430 and 645, 846 ms.
# The same, 1,448 positions: `dense` 1,743, 2,729 ms, `blocked` 2,066, 2,630 ms; causal 1,455, 2,137 and 1,289,
# 1,788 ms.
# 1 row of 8 heads of width 64, 2,048 positions: `dense` 683, 928 ms, `blocked` 452, 681 ms.
# In bfloat16 neither `dense` nor `blocked` is always faster.
MOST_LOOPED_PAIRS = 2**21
# Smallest share of all query-key pairs in the tiles of such a pattern. A causal pattern keeps at most 0.75 of the pairs
# when a row has two tiles or more.
FEWEST_LOOPED_SHARE = 0.8
# Smallest row length, squared, for which 'auto' uses a backend: its number of query-key pairs.
FEWEST_POSITIONS = {
    # The limit was not timed. It is an estimate: for shorter rows, the start of a kernel's step (0.35 microseconds)
    # takes longer than the memory traffic of the scores.
    'splash': 256,
    # A tile of queries. Below it, padding is computed.
    'mosaic': 128,
}
TILED = ('blocked', 'cudnn', 'mosaic', 'splash')  # backends that never hold all query-key pairs in memory


def compute_attention(request: Request, keep_out: ReplacePadding | None = None) -> tuple[Array, Array | None]:
    """Returns softmax attention's output and log-sum-exp by the requested backend,
    or by the first backend of 'auto' that supports the request.

    `keep_out` replaces padding tokens by zeros; None if that is already done.

    Raises:
        NotImplementedError: no tried backend supports the request; the message names the missing features of each
            backend.
    """
    if request.backend != 'auto':
        result = compute_by(request.backend, request, keep_out)
        note_choice(request.backend, pattern_text(request_pattern(request)), {})
        return result
    refusals: dict[str, Refusal] = {}
    for name in auto_order(request):
        try:
            check_enough_pairs(name, request)
            result = compute_by(name, request, keep_out)
        except NotImplementedError as error:
            refusals[name] = Refusal(str(error), error.features if isinstance(error, UnsupportedError) else ())
            continue
        note_choice(name, pattern_text(request_pattern(request)), refusals)
        return result
    raise NotImplementedError('; '.join(f'{name}: {refusal.message}' for name, refusal in refusals.items()))


def compute_by(name: str, request: Request, keep_out: ReplacePadding | None) -> Result:
    """Returns the result of the backend with this name. If the gradients of its results are finite, the gradients of
    `mosaic` are already zero for padding.
    """
    return BACKENDS[name](request if keep_out is None else keep_out(request, name != 'mosaic'))


def auto_order(request: Request) -> list[str]:
    """Returns the backends that 'auto' tries for this request, in order.

    It tries `cudnn` and `mosaic` only on GPUs, and `splash` only on TPUs.
    """
    tuning = device_tuning()
    skipped = set() if tuning.has_cudnn else {'cudnn', 'mosaic'}
    if tuning.splash_tile == 0:
        skipped.add('splash')
    if not prefers_dense(request):
        skipped.add('dense')
    return [name for name in AUTO_ORDER if name not in skipped]


def check_enough_pairs(name: str, request: Request) -> None:
    """Raises NotImplementedError if the rows are so short that 'auto' does not use the backend with this name."""
    fewest = FEWEST_POSITIONS.get(name, 0)
    if request.query.shape[1] * request.key.shape[1] < fewest**2:
        raise NotImplementedError(f'auto takes {name} only for rows of {fewest} positions or more')


def prefers_dense(request: Request) -> bool:
    """Returns whether 'auto' tries the backend `dense` before `blocked`: for few query-key pairs, or for more pairs if
    `dense` loops over heads.
    """
    if request.additive is not None:
        return True  # `dense` computes additive scores for a few queries at a time
    pairs = request.query.shape[1] * request.key.shape[1]
    if request.relative is not None:
        return pairs <= MOST_RELATIVE_PAIRS
    if may_hold_all_pairs('auto', request.query.shape[1], request.key.shape[1]):
        return True
    return pairs <= MOST_LOOPED_PAIRS and request.bias is None and is_dense_loop_faster(request)


def is_dense_loop_faster(request: Request) -> bool:
    """Returns whether the backend `dense` computes this request in a loop and is then faster than `blocked`, judged by
    the share of tiles that `blocked` keeps.
    """
    if request.query.dtype != jnp.float32 or not is_row_loop_faster(request):
        return False
    (_, queries, heads, _), keys = request.query.shape, request.key.shape[1]
    patterns = head_patterns(request_pattern(request).by_layer()[0], heads)  # layers keep nearly equally many tiles
    tile = ensure_kind(Softmax, request.mechanism).tile
    kept = sum(count_tile_pairs(pattern, queries, keys, tile) for pattern in patterns)
    return kept >= FEWEST_LOOPED_SHARE * len(patterns) * queries * keys


def may_hold_all_pairs(backend: str, queries: int, keys: int) -> bool:
    """Returns whether a call with this backend may build arrays of all query-key pairs, such as a bias."""
    return backend not in TILED and queries * keys <= MOST_DENSE_PAIRS
