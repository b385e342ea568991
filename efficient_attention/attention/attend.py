"""`attend`: checks the arguments, picks a backend, returns the attention output."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention import reference
from efficient_attention.attention.checks import (
    check_bias,
    check_keys,
    check_mechanism,
    check_positions,
    check_relative,
    check_segments,
    check_vectors,
)
from efficient_attention.attention.mechanism import Mechanism, Softmax
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import Positions, Request
from efficient_attention.attention.softmax import cudnn, dense_loop, jax_nn
from efficient_attention.attention.softmax import tiled as blocked
from efficient_attention.attention.text_form import pattern_text

Backend = Callable[[Request], tuple[Array, Array | None]]

# A backend serves a request or raises NotImplementedError that names what it lacks.
BACKENDS: dict[str, Backend] = {
    'reference': reference.serve,
    'dense': dense_loop.serve,
    'blocked': blocked.serve,
    'jax_nn': jax_nn.serve,
    'cudnn': cudnn.serve,
}
AUTO_ORDER = ('dense', 'blocked')
# Pairs of positions up to which 'auto' takes the dense backend; beyond them nothing builds [L, M] unless it is named.
MOST_DENSE_PAIRS = 512 * 512
DROPOUT_STREAM = 0x64726F70  # folded into a key that dropout shares with a mechanism's own draws


@overload
def attend(
    query: Array, key: Array, value: Array, mechanism: Mechanism, *, return_lse: Literal[False] = False, **options: Any
) -> Array: ...


@overload
def attend(
    query: Array, key: Array, value: Array, mechanism: Mechanism, *, return_lse: Literal[True], **options: Any
) -> tuple[Array, Array]: ...


# The overloads spell out only what decides the return type.
def attend(  # type: ignore[misc]
    query: Float[Array, 'B L H K'],
    key: Float[Array, 'B M G K'],
    value: Float[Array, 'B M G K'],
    mechanism: Mechanism,
    *,
    bias: Float[Array, '#B #H #L #M'] | Callable[[Any, Any], Any] | None = None,
    relative: Relative | None = None,
    query_segments: Int[Positions, 'B L'] | None = None,
    key_segments: Int[Positions, 'B M'] | None = None,
    query_positions: Int[Positions, '#B L'] | None = None,
    key_positions: Int[Positions, '#B M'] | None = None,
    dropout_rate: float = 0.0,
    rng: Array | None = None,
    dropout_rng: Array | None = None,
    backend: str = 'auto',
    return_lse: bool = False,
) -> Float[Array, 'B L H K'] | tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """The attention output, and with `return_lse` also the float32 log-sum-exp of each query's logits.

    Args:
        query: scaled by 1 / sqrt(K) inside, but for LSH, whose keys are unit vectors.
        key: H must be a multiple of its G heads; each serves H / G neighbouring query heads.
        value: like `key`.
        mechanism: what to compute, such as `Softmax(Causal())`.
        bias: added to the scaled logits: an array, or a function from query positions [1 or B, 1, L', 1] and key
            positions [1 or B, 1, 1, M'] to an array that broadcasts to [B, H, L', M'] (a `jax.tree_util.Partial`
            where its parameters need gradients), which no backend evaluates on all pairs at once unless it is dense.
        relative: added to the scaled logits: products of a second query with a vector for each distance
            (Transformer-XL); positions must then be whole numbers of the text, not only of one order.
        query_segments: a query reads keys of its own segment alone; segment 0 is padding, which nobody reads.
            Give both segment arguments or neither; queries of segment 0 give zeros. Numbers in [0, 2**31); one
            outside is refused in a NumPy array and in a JAX array on a CPU, but not in one on another device (a look
            would wait for it) nor in one whose values are not known yet (inside `jax.jit`).
        key_segments: see `query_segments`.
        query_positions: what the pattern sees; 0, 1, ... by default. As a NumPy array it is known before the program
            runs, so that a backend can leave out what the pattern forbids.
        key_positions: likewise; needed where a pattern compares positions and L differs from M.
        dropout_rate: probability in [0, 1) to drop a weight; needs `dropout_rng` or `rng`.
        rng: a typed key for mechanisms that draw something (LSH, FAVOR).
        dropout_rng: a typed key, or one for each batch row [B]; `rng` by default.
        backend: 'auto' or a name in `BACKENDS`.
        return_lse: also return [B, H, L].

    A query that may read no key gives zeros, and zero gradients.

    Raises:
        ValueError: shapes or types that do not fit, half-given segments, a missing key, an unknown backend, or a
            combination that no backend serves.
        NotImplementedError: the named backend lacks something; the message says what.
    """
    request = make_request(
        query,
        key,
        value,
        mechanism,
        bias=bias,
        relative=relative,
        query_segments=query_segments,
        key_segments=key_segments,
        query_positions=query_positions,
        key_positions=key_positions,
        dropout_rate=dropout_rate,
        rng=rng,
        dropout_rng=dropout_rng,
        return_lse=return_lse,
    )
    out, lse = dispatch(request, backend)
    if not return_lse:
        return out
    if lse is None:
        raise NotImplementedError(f'{mechanism} has no log-sum-exp on the {backend} backend')
    return out, lse


def make_request(
    query: Array,
    key: Array,
    value: Array,
    mechanism: Mechanism,
    *,
    query_segments: Positions | None = None,
    key_segments: Positions | None = None,
    query_positions: Positions | None = None,
    key_positions: Positions | None = None,
    dropout_rate: float = 0.0,
    rng: Array | None = None,
    dropout_rng: Array | None = None,
    bias: Any = None,
    relative: Relative | None = None,
    return_lse: bool = False,
) -> Request:
    """The arguments of `attend`, checked and completed; raises ValueError as `attend` says."""
    check_mechanism(mechanism)
    check_vectors(query, key, value, mechanism)
    check_segments(query, key, query_segments, key_segments)
    check_positions(query, key, mechanism, query_positions, key_positions)
    check_bias(query, key, bias)
    check_relative(query, mechanism, relative)
    check_keys(mechanism, query.shape[0], dropout_rate, rng, dropout_rng)
    return Request(
        query=query,
        key=key,
        value=value,
        mechanism=mechanism,
        bias=with_four_axes(bias),
        relative=relative,
        query_segments=as_int32(query_segments),
        key_segments=as_int32(key_segments),
        query_positions=positions_or_default(query_positions, query.shape[1]),
        key_positions=positions_or_default(key_positions, key.shape[1]),
        dropout_rate=dropout_rate,
        rng=rng,
        dropout_rng=dropout_key(mechanism, rng, dropout_rng),
        return_lse=return_lse,
    )


def as_int32(segments: Any) -> Any:
    """Checked segments; NumPy's wider whole numbers, which JAX would narrow with a warning, as int32."""
    return jnp.asarray(segments.astype(np.int32)) if isinstance(segments, np.ndarray) else segments


def with_four_axes(bias: Any) -> Any:
    """An array of bias as [1 or B, 1 or H, 1 or L, 1 or M]; a function or None as it is."""
    return bias if bias is None or callable(bias) else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def dropout_key(mechanism: Mechanism, rng: Array | None, dropout_rng: Array | None) -> Array | None:
    """The key of dropout: its own, or one made of `rng`, from which the mechanism may draw something else."""
    if dropout_rng is not None or rng is None:
        return dropout_rng
    return jax.random.fold_in(rng, DROPOUT_STREAM) if mechanism.needs_rng else rng


def positions_or_default(positions: Positions | None, length: int) -> Positions:
    """`positions`, or 0, 1, ... as [1, length]; known rows that are all alike become one."""
    if positions is None:
        return np.arange(length, dtype=np.int32)[None]
    if isinstance(positions, np.ndarray) and (positions == positions[:1]).all():
        return positions[:1]
    return positions


def attention_weights(
    query: Float[Array, 'B L H K'], key: Float[Array, 'B M G K'], mechanism: Mechanism, **options: Any
) -> Float[Array, 'B H L M']:
    """The weights by which each query sums the values, for any mechanism: rows sum to 1, or to 0 without keys.

    FAVOR's are its implicit matrix, LSH's the union over rounds. Needs memory for all pairs: for pictures and tests.
    Takes `attend`'s keyword arguments but those below; raises what it raises.

    Raises:
        TypeError: one of `backend`, `return_lse`, `dropout_rate` and `dropout_rng`, which would change nothing here.
    """
    unused = sorted({'backend', 'return_lse', 'dropout_rate', 'dropout_rng'} & set(options))
    if unused:
        raise TypeError(f'attention_weights takes no {", ".join(unused)}: these are the weights before dropout')
    return reference.weights(make_request(query, key, key, mechanism, **options))[0]


def dispatch(request: Request, backend: str) -> tuple[Array, Array | None]:
    """Output and log-sum-exp from the named backend, or from the first one of `AUTO_ORDER` that serves the request."""
    if backend != 'auto':
        if backend not in BACKENDS:
            raise ValueError(f'unknown attention backend {backend!r}; known: auto, {", ".join(BACKENDS)}')
        return BACKENDS[backend](request)
    lacks = []
    is_small = request.query.shape[1] * request.key.shape[1] <= MOST_DENSE_PAIRS
    for name in AUTO_ORDER if is_small else [name for name in AUTO_ORDER if name != 'dense']:
        try:
            result = BACKENDS[name](request)
        except NotImplementedError as error:
            lacks.append(f'{name}: {error}')
            continue
        log_choice(name, describe(request.mechanism))
        return result
    raise ValueError(f'no attention backend serves {request.mechanism}: {"; ".join(lacks)}')


def describe(mechanism: Mechanism) -> str:
    """A mechanism in a few words: its name, and the pattern where it has one."""
    pattern = f' over {pattern_text(mechanism.pattern)}' if isinstance(mechanism, Softmax) else ''
    return f'{type(mechanism).__name__}{pattern}'


@functools.cache
def log_choice(backend: str, mechanism: str) -> None:
    """Says once for each pair which backend 'auto' took."""
    logging.getLogger(__name__).info('attention: %s runs on the %s backend', mechanism, backend)
