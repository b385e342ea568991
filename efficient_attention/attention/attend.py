"""`attend`: checks and groups the arguments, and returns the attention output of whatever mechanism they name."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention import reference
from efficient_attention.attention.checks import (
    check_additive,
    check_bias,
    check_centres,
    check_keys,
    check_learned,
    check_mechanism,
    check_positions,
    check_relative,
    check_segments,
    check_vectors,
)
from efficient_attention.attention.device_mesh import device_mesh
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import room_of
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import (
    CallOptions,
    Dropout,
    Keywords,
    Numbers,
    Request,
    Sides,
    with_padding_zeroed,
)
from efficient_attention.attention.softmax.serve import BACKENDS as SOFTMAX_BACKENDS
from efficient_attention.attention.split_tokens.serve import is_split, serve_split

# What `backend` may be besides 'auto': the definition, and the ways to execute a `Softmax`.
BACKENDS = ('reference', *SOFTMAX_BACKENDS)
DROPOUT_STREAM = 0x64726F70  # folded into a key that dropout shares with a mechanism's own draws


@overload
def attend(
    query: Array,
    key: Array,
    value: Array,
    mechanism: Mechanism,
    *,
    return_lse: Literal[False] = False,
    **keywords: Unpack[Keywords],
) -> Array: ...


@overload
def attend(
    query: Array,
    key: Array,
    value: Array,
    mechanism: Mechanism,
    *,
    return_lse: Literal[True],
    **keywords: Unpack[Keywords],
) -> tuple[Array, Array]: ...


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
    query_segments: Int[Numbers, 'B L'] | None = None,
    key_segments: Int[Numbers, 'B M'] | None = None,
    query_positions: Int[Numbers, '#B L'] | None = None,
    key_positions: Int[Numbers, '#B M'] | None = None,
    dropout_rate: float = 0.0,
    rng: Array | None = None,
    dropout_rng: Array | None = None,
    backend: str = 'auto',
    return_lse: bool = False,
) -> Float[Array, 'B L H K'] | tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """The attention output, and with `return_lse` also the float32 log-sum-exp of each query's logits.

    Args:
        query: not yet scaled. Products with keys are multiplied by 1 / sqrt(K) where the mechanism's definition does
            so, which LSH, linear attention, additive scores and synthesizers without such products do not.
        key: H must be a multiple of its G heads; each serves H / G neighbouring query heads.
        value: like `key`.
        mechanism: what to compute, such as `Softmax(Causal())`.
        bias: added to the scaled logits: an array, or a function from query positions [1 or B, 1, L', 1] and key
            positions [1 or B, 1, 1, M'] to an array that broadcasts to [B, H, L', M'] (a `jax.tree_util.Partial`
            where its parameters need gradients), which only the dense backend evaluates on all pairs at once.
        relative: added to the scaled logits: products of a second query with a vector for each distance
            (Transformer-XL); positions must then count tokens of the text, as distances between them are looked up.
        additive: v of additive scores, v tanh(q + k) unscaled, in place of q k / sqrt(K) (Bahdanau et al. 2014, arXiv
            1409.0473).
        centres: where `LocalP` reads, in [0, 1] as a share of the keys of the query's segment.
        learned: the arrays that the mechanism learns, by name (`Mechanism.learned_operands`). What comes as the
            gradient of a running mean is the sums that it is made of.
        query_segments: a query reads only keys of its own segment. Segment 0 is padding, which no query reads: its
            queries, keys and values, even NaN, change no output and no gradient of other segments.
            Give both segment arguments or neither; queries of segment 0 give zeros. Numbers in [0, 2**31); one
            outside is refused in a NumPy array and in a JAX array on a CPU. It is not noticed in an array on another
            device, for which the check would have to wait, nor inside `jax.jit`, where no values are known yet.
        key_segments: see `query_segments`.
        query_positions: what the pattern sees; 0, 1, ... by default. As a NumPy array it is known before the program
            runs, so that a backend can leave out what the pattern forbids.
        key_positions: likewise; needed where a pattern compares positions and L differs from M.
        dropout_rate: probability in [0, 1) to drop a weight; needs `dropout_rng` or `rng`.
        rng: a typed key for mechanisms that draw something (LSH, FAVOR); for `Hard(sampled=True)`, and for `Sinkhorn`,
            whose sort has noise where it is given, also one a row.
        dropout_rng: a typed key, or one for each batch row [B]; `rng` by default.
        backend: how a `Softmax` is executed: 'auto' or a name in `BACKENDS`. Other mechanisms have one fast form, under
            'auto' and 'blocked', and their definition, 'reference'.
        return_lse: also return [B, H, L]; of `Hard(sampled=True)` the log-probabilities of what was drawn.

    A query that may read no key gives zeros, and zero gradients.

    Raises:
        ValueError: shapes or types that do not fit, half-given segments, a missing key, an unknown backend, or a
            combination that no backend serves.
        NotImplementedError: the named backend lacks something; the message says what.
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
    out, lse = attend_with(query, key, value, mechanism, options)
    return out if lse is None else (out, lse)


def attend_with(
    query: Float[Array, 'B L H K'],
    key: Float[Array, 'B M G K'],
    value: Float[Array, 'B M G K'],
    mechanism: Mechanism,
    options: CallOptions,
    keep_out: Callable[[Request], Request] = with_padding_zeroed,
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """As `attend`, with its keyword arguments in one object: the output, and the log-sum-exp if it is asked for.

    They are those of the definition for 'reference', else of the mechanism's fast form. `keep_out` zeroes padding.
    """
    request, backend = make_request(query, key, value, mechanism, options), options.backend
    if backend not in ('auto', 'reference', *SOFTMAX_BACKENDS):
        raise ValueError(f'unknown attention backend {backend!r}; known: auto, {", ".join(BACKENDS)}')
    if backend not in ('auto', 'reference', 'blocked') and not mechanism.form.has_backends:
        raise NotImplementedError(
            f'{backend} is a way to execute Softmax; {mechanism.name} has one fast form, under auto and blocked'
        )
    request, mesh = keep_out(request), device_mesh()
    try:
        if backend == 'reference':
            out, lse = reference.serve(request)
        elif mesh is not None and is_split(mesh):
            out, lse = serve_split(request, mesh, room_of(mechanism))
        else:
            out, lse = room_of(mechanism).serve(request)
    except NotImplementedError as error:
        if backend != 'auto':
            raise
        raise ValueError(f'no attention backend serves {mechanism}: {error}') from None
    if options.return_lse and lse is None:
        raise NotImplementedError(f'{mechanism} has no log-sum-exp on the {backend} backend')
    return out, (lse if options.return_lse else None)


def make_request(query: Array, key: Array, value: Array, mechanism: Mechanism, options: CallOptions) -> Request:
    """The request of a call to `attend_with` with these arguments, checked and completed; raises what `attend` raises.

    It has positions, segments of both sides or None, and dropout only where its rate is above 0.
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
    check_keys(mechanism, query.shape[0], options.dropout_rate, options.rng, options.dropout_rng)
    is_one = options.key_segments is options.query_segments  # and stays one array, as LSH asks for
    query_segments_BL = as_int32(options.query_segments)
    segments = Sides(query_segments_BL, query_segments_BL if is_one else as_int32(options.key_segments))
    positions = Sides(
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
        segments=None if options.query_segments is None else segments,
        positions=positions,
        dropout=dropout,
        bias=with_four_axes(options.bias),
        relative=options.relative,
        additive=options.additive,
        centres=options.centres,
        learned=options.learned,
        rng=options.rng,
        return_lse=options.return_lse,
        backend=options.backend,
    )


def as_int32(segments: Any) -> Any:
    """Checked segments; those of NumPy become int32, since JAX would narrow wider numbers with a warning."""
    return jnp.asarray(segments.astype(np.int32)) if isinstance(segments, np.ndarray) else segments


def with_four_axes(bias: Any) -> Any:
    """An array of bias as [1 or B, 1 or H, 1 or L, 1 or M]; a function or None as it is."""
    return bias if bias is None or callable(bias) else bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def dropout_key(mechanism: Mechanism, rng: Array | None, dropout_rng: Array | None) -> Array | None:
    """`dropout_rng` if given, else `rng`, or a key made of `rng` where the mechanism draws something from that one."""
    if dropout_rng is not None or rng is None:
        return dropout_rng
    return jax.random.fold_in(rng, DROPOUT_STREAM) if mechanism.draws.always else rng


def positions_or_default(positions_bL: Numbers | None, length: int) -> Numbers:
    """The given positions, or 0, 1, ... as [1, length]; rows that are known and all alike become one row."""
    if positions_bL is None:
        return np.arange(length, dtype=np.int32)[None]
    if isinstance(positions_bL, np.ndarray) and (positions_bL == positions_bL[:1]).all():
        return positions_bL[:1]
    return positions_bL


def attention_weights(
    query: Float[Array, 'B L H K'], key: Float[Array, 'B M G K'], mechanism: Mechanism, **keywords: Unpack[Keywords]
) -> Float[Array, 'B H L M']:
    """The weights by which each query sums the values, for any mechanism: rows sum to 1, to 0 without keys.

    LocalP's sum to at most 1; those of Linformer and Nystrom may be negative and sum to other numbers.

    FAVOR's are its implicit matrix, LSH's the union over rounds. Needs memory for all pairs: for pictures and tests.
    Takes `attend`'s keyword arguments but those below; raises what it raises.

    Raises:
        TypeError: one of `backend`, `return_lse`, `dropout_rate` and `dropout_rng`, which would change nothing here.
    """
    unused = sorted({'backend', 'return_lse', 'dropout_rate', 'dropout_rng'} & set(keywords))
    if unused:
        raise TypeError(f'attention_weights takes no {", ".join(unused)}: these are the weights before dropout')
    return weights_with(query, key, mechanism, CallOptions(**keywords))


def weights_with(query: Array, key: Array, mechanism: Mechanism, options: CallOptions) -> Float[Array, 'B H L M']:
    """As `attention_weights`, with its keyword arguments in one object."""
    return reference.weights(with_padding_zeroed(make_request(query, key, key, mechanism, options)))[0]
