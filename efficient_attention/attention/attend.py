"""Defines `attend`, which computes attention by any mechanism, and `attention_weights`,
which returns the weights of all query-key pairs.

Both check and complete their arguments, then call the mechanism's implementation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention import reference_backend
from efficient_attention.attention.checks import (
    check_additive,
    check_bias,
    check_centres,
    check_learned,
    check_mechanism,
    check_positions,
    check_relative,
    check_rng_keys,
    check_segments,
    check_vectors,
)
from efficient_attention.attention.device_mesh import device_mesh
from efficient_attention.attention.foreign_keywords import refuse_foreign_keywords
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import get_implementation
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import (
    AttendKeywords,
    CallOptions,
    Dropout,
    Lengths,
    Numbers,
    QueryKeyPair,
    ReplacePadding,
    Request,
    with_padding_zeroed,
)
from efficient_attention.attention.sequence_parallel.sharded_attention import attend_sharded, has_sequence_axis
from efficient_attention.attention.softmax.backend_choice import BACKENDS as SOFTMAX_BACKENDS

# `backend` of `attend` is 'auto', 'reference' (the dense definition), or a way to execute softmax attention.
BACKENDS = ('reference', *SOFTMAX_BACKENDS)
DROPOUT_STREAM = 0x64726F70  # folded into `rng` to get the dropout key, if the mechanism also samples from `rng`


@overload
def attend(
    query: Array,
    key: Array,
    value: Array,
    mechanism: Mechanism,
    *,
    return_lse: Literal[False] = False,
    **keywords: Unpack[AttendKeywords],
) -> Array: ...


@overload
def attend(
    query: Array,
    key: Array,
    value: Array,
    mechanism: Mechanism,
    *,
    return_lse: Literal[True],
    **keywords: Unpack[AttendKeywords],
) -> tuple[Array, Array]: ...


@refuse_foreign_keywords
def attend(
    query: Float[Array, 'B L H K'],
    key: Float[Array, 'B M G K'],
    value: Float[Array, 'B M G K'],
    mechanism: Mechanism,
    *,
    bias: Float[Array, '#B #H #L #M'] | Callable[[Any, Any], Any] | None = None,
    relative: Relative | None = None,
    additive: Float[Array, 'H K'] | None = None,
    centres: Float[Array, 'B L H'] | None = None,
    learned: Mapping[str, Array] | None = None,
    query_segments: Int[Numbers, 'B L'] | Lengths | None = None,
    key_segments: Int[Numbers, 'B M'] | Lengths | None = None,
    query_positions: Int[Numbers, '#B L'] | None = None,
    key_positions: Int[Numbers, '#B M'] | None = None,
    dropout_rate: float = 0.0,
    rng: Array | None = None,
    dropout_rng: Array | None = None,
    backend: str = 'auto',
    return_lse: bool = False,
) -> Float[Array, 'B L H K'] | tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Returns the attention output and, with `return_lse`, the float32 log-sum-exp of each query's logits.

    Args:
        query: not yet scaled. Most mechanisms multiply query-key products by 1 / sqrt(K). LSH, linear attention,
            additive scores and synthesizers without such products do not.
        key: G heads, a divisor of H; each key head is shared by H / G neighbouring query heads.
        value: same shape as `key`.
        mechanism: which attention to compute, such as `Softmax(Causal())`.
        bias: added to the scaled logits; an array or a function of positions. The function gets query positions
            [1 or B, 1, L', 1] and key positions [1 or B, 1, 1, M'] and returns an array that broadcasts to
            [B, H, L', M']. If its parameters need gradients, pass a `jax.tree_util.Partial`. Only the dense backend
            evaluates the function on all pairs at once.
        relative: added to the scaled logits: products of a second query with a vector for each distance
            (Transformer-XL). Positions must then count tokens, because distances between positions are looked up.
        additive: the vector v of additive scores. Logits are v tanh(q + k), unscaled, in place of q k / sqrt(K)
            (Bahdanau et al. 2014, arXiv 1409.0473).
        centres: for `LocalP`, the centre of each query's window: a fraction in [0, 1] of the keys of its segment.
        learned: the mechanism's learned arrays by name (`Mechanism.learned_operands`). For a running mean, the returned
            gradient is the sums from which the mean is updated, not a derivative (see `LearnedOperand`).
        query_segments: a query reads only keys of its own segment. Give both segment arguments or neither.
            Segment 0 is padding: its queries give zeros. Its queries, keys and values, even NaN, change no output and
            no gradient of other segments. Numbers are in [0, 2**31). Numbers outside this range are rejected in NumPy
            arrays and in JAX arrays on a CPU. They are not detected on other devices, where the check would have to
            wait for the device, nor inside `jax.jit`, where values are unknown. If each row holds one text followed by
            padding, give its length as `Lengths(lengths_B)`: the result is the same, and more backends support it.
        key_segments: see `query_segments`.
        query_positions: the positions that the pattern compares; 0, 1, ... by default. The values of a NumPy array are
            known at trace time, so a backend can skip pairs that the pattern forbids.
        key_positions: like `query_positions`; required where a pattern compares positions and L differs from M.
        dropout_rate: probability in [0, 1) of dropping a weight; requires `dropout_rng` or `rng`.
        rng: a typed key for mechanisms that sample (LSH, FAVOR). `Hard(sampled=True)` and `Sinkhorn` also accept one
            key per batch row. `Sinkhorn` adds noise to its sort only if a key is given.
        dropout_rng: a typed key, or one per batch row [B]; `rng` by default.
        backend: how a `Softmax` is executed: 'auto' or a name in `BACKENDS`. Other mechanisms have two forms: the fast
            one ('auto' or 'blocked') and the definition ('reference').
        return_lse: also return the log-sum-exp [B, H, L]. `Hard(sampled=True)` returns the log-probabilities of its
            samples instead.

    A query that may read no key gives zeros, and zero gradients.

    Raises:
        ValueError: shapes or types that do not fit, only one of the two segment arguments, a missing key, an unknown
            backend, or a combination that no backend supports.
        NotImplementedError: the named backend does not support the call; the message names the missing feature.
    """
    options = CallOptions(
        bias=bias,
        relative=relative,
        additive=additive,
        centres=centres,
        learned=learned,
        query_segments=query_segments,
        key_segments=key_segments,
        query_positions=query_positions,
        key_positions=key_positions,
        dropout_rate=dropout_rate,
        rng=rng,
        dropout_rng=dropout_rng,
        backend=backend,
        return_lse=return_lse,
    )
    out, lse = attend_with_options(query, key, value, mechanism, options)
    return out if lse is None else (out, lse)


def attend_with_options(
    query: Float[Array, 'B L H K'],
    key: Float[Array, 'B M G K'],
    value: Float[Array, 'B M G K'],
    mechanism: Mechanism,
    options: CallOptions,
    keep_out: ReplacePadding = with_padding_zeroed,
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """Computes `attend` with its keyword arguments in one object, and returns the output and the log-sum-exp or None.

    The backend 'reference' computes the mechanism's definition, every other backend its fast form. `keep_out` replaces
    the vectors of padding tokens by zeros.
    """
    request, backend = make_request(query, key, value, mechanism, options), options.backend
    if backend not in ('auto', 'reference', *SOFTMAX_BACKENDS):
        raise ValueError(f'unknown attention backend {backend!r}; known: auto, {", ".join(BACKENDS)}')
    if backend not in ('auto', 'reference', 'blocked') and not mechanism.capabilities.has_backends:
        raise NotImplementedError(
            f'{backend} is a way to execute Softmax; {mechanism.name} has one fast form, under auto and blocked'
        )
    mesh = device_mesh()
    try:
        if backend == 'reference':
            out, lse = reference_backend.compute_attention(keep_out(request, True))
        elif mesh is not None and has_sequence_axis(mesh):
            out, lse = attend_sharded(keep_out(request, True), mesh, get_implementation(mechanism))
        elif get_implementation(mechanism).zeroes_padding:
            out, lse = get_implementation(mechanism).compute(request, keep_out)
        else:
            out, lse = get_implementation(mechanism).compute(keep_out(request, True))
    except NotImplementedError as error:
        if backend != 'auto':
            raise
        raise ValueError(f'no attention backend supports {mechanism}: {error}') from None
    if options.return_lse and lse is None:
        raise NotImplementedError(f'{mechanism} has no log-sum-exp on the {backend} backend')
    return out, (lse if options.return_lse else None)


def make_request(query: Array, key: Array, value: Array, mechanism: Mechanism, options: CallOptions) -> Request:
    """Returns the checked arguments of an attention call as a `Request`,
    or raises the ValueErrors that `attend` documents.

    Missing positions are filled in. Segments are given for both queries and keys, or are None. Dropout is None at rate
    0.
    """
    check_mechanism(mechanism)
    check_vectors(query, key, value, mechanism)
    check_segments(query, key, options.query_segments, options.key_segments)
    check_positions(query, key, mechanism, options.query_positions, options.key_positions)
    check_bias(query, key, options.bias)
    check_relative(query, mechanism, options.relative)
    check_additive(query, mechanism, options.additive)
    check_centres(query, mechanism, options.centres)
    check_learned(query, mechanism, options.learned)
    check_rng_keys(mechanism, query.shape[0], options.dropout_rate, options.rng, options.dropout_rng)
    # LSH requires query and key segments to stay one object.
    is_one = has_one_array(options) and query.shape[1] == key.shape[1]
    query_segments_BL = as_int32(options.query_segments, query.shape[1])
    key_segments_BM = query_segments_BL if is_one else as_int32(options.key_segments, key.shape[1])
    positions = QueryKeyPair(
        positions_or_default(options.query_positions, query.shape[1]),
        positions_or_default(options.key_positions, key.shape[1]),
    )
    dropout = None
    if options.dropout_rate > 0.0:
        dropout = Dropout(options.dropout_rate, dropout_key(mechanism, options.rng, options.dropout_rng))
    return Request(
        query,
        key,
        value,
        mechanism,
        segments=None if options.query_segments is None else QueryKeyPair(query_segments_BL, key_segments_BM),
        lengths=lengths_of(options),
        positions=positions,
        dropout=dropout,
        bias=expand_bias_to_4d(options.bias),
        relative=options.relative,
        additive=options.additive,
        centres=options.centres,
        learned=options.learned,
        rng=options.rng,
        return_lse=options.return_lse,
        backend=options.backend,
        layer=options.layer,
    )


def lengths_of(options: CallOptions) -> QueryKeyPair | None:
    """Returns the int32 lengths [B] of queries and keys if both segment arguments are `Lengths`, else None."""
    query, key = options.query_segments, options.key_segments
    if not (isinstance(query, Lengths) and isinstance(key, Lengths)):
        return None
    lengths_B = jnp.asarray(query.lengths_B, jnp.int32)
    return QueryKeyPair(lengths_B, lengths_B if has_one_array(options) else jnp.asarray(key.lengths_B, jnp.int32))


def has_one_array(options: CallOptions) -> bool:
    """Returns whether the caller gave the same array object as segments of queries and of keys.

    Two `Lengths` with the same array object count as the same segments, and so do two missing arguments.
    """
    query, key = (x.lengths_B if isinstance(x, Lengths) else x for x in (options.query_segments, options.key_segments))
    is_one_form = isinstance(options.query_segments, Lengths) == isinstance(options.key_segments, Lengths)
    return is_one_form and query is key


def as_int32(segments: Any, length: int) -> Any:
    """Returns segments as a JAX array [B, length]; NumPy segments become int32,
    because JAX would warn when it narrows wider integers.
    """
    if isinstance(segments, Lengths):
        return segments.segments(length)
    return jnp.asarray(segments.astype(np.int32)) if isinstance(segments, np.ndarray) else segments


def expand_bias_to_4d(bias: Any) -> Any:
    """Returns a bias array with four axes, [1 or B, 1 or H, 1 or L, 1 or M], by adding leading axes of size 1;
    returns a function or None unchanged.
    """
    return bias if bias is None or callable(bias) else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def dropout_key(mechanism: Mechanism, rng: Array | None, dropout_rng: Array | None) -> Array | None:
    """Returns the random key for attention dropout: `dropout_rng` if given, else `rng`, or a key derived from `rng` if
    the mechanism itself samples from `rng`.
    """
    if dropout_rng is not None or rng is None:
        return dropout_rng
    return jax.random.fold_in(rng, DROPOUT_STREAM) if mechanism.randomness.always else rng


def positions_or_default(positions_bL: Numbers | None, length: int) -> Numbers:
    """Returns the given positions; None gives the positions 0, 1, ... as an array [1, length].

    If NumPy positions are equal in all rows, they are returned as one row.
    """
    if positions_bL is None:
        return np.arange(length, dtype=np.int32)[None]
    if isinstance(positions_bL, np.ndarray) and (positions_bL == positions_bL[:1]).all():
        return positions_bL[:1]
    return positions_bL


@refuse_foreign_keywords
def attention_weights(
    query: Float[Array, 'B L H K'],
    key: Float[Array, 'B M G K'],
    mechanism: Mechanism,
    **keywords: Unpack[AttendKeywords],
) -> Float[Array, 'B H L M']:
    """Returns the attention weights [B, H, L, M] by which each query sums the values, for any mechanism.

    Rows sum to 1, or to 0 for a query without keys. Exceptions: rows of `LocalP` sum to at most 1; weights of
    `Linformer` and `Nystrom` may be negative and their rows may have other sums. For FAVOR the weights are those that
    its random features imply; for LSH they cover the pairs of all hash rounds.

    The function needs memory for all pairs, so it is meant for pictures and tests. Takes the keyword arguments of
    `attend` except those listed below, and raises the same errors.

    Raises:
        TypeError: `backend`, `return_lse`, `dropout_rate` or `dropout_rng` was given; none of them changes the weights.
    """
    unused = sorted({'backend', 'return_lse', 'dropout_rate', 'dropout_rng'} & set(keywords))
    if unused:
        raise TypeError(f'attention_weights takes no {", ".join(unused)}: these are the weights before dropout')
    return weights_with_options(query, key, mechanism, CallOptions(**keywords))


def weights_with_options(
    query: Array, key: Array, mechanism: Mechanism, options: CallOptions
) -> Float[Array, 'B H L M']:
    """Computes `attention_weights` with its keyword arguments in one object."""
    return reference_backend.weights(with_padding_zeroed(make_request(query, key, key, mechanism, options)))[0]
