"""FAVOR's causal sums over chunks of positions, with no array of all positions by all features on a CPU.

There is a masked product inside each chunk and the sums over all keys before it; the maxima that scale the features run
along with the sums, so what comes later scales nothing but its own chunk. A query whose keys all lie more than a factor
1e30 below later ones of its chunk, in every feature, would be lost to that scale; where the program meets one, it
computes all again with the logarithms of each pair inside a chunk, slower and without that limit. With segments in
runs, a chunk's sums before it are those of the one segment that is open at its start.

Everything here has key heads G first and the h = H / G query heads of each behind it; C is the size of a chunk.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_kind import device_kind
from efficient_attention.attention.favor.features import FeatureMap, key_features, mask_keys, query_features, quotient
from efficient_attention.attention.weights import MASKED, masked_softmax

Outputs = tuple[Array, Array]
Step = Callable[[Any, 'Chunk'], tuple[Any, Outputs]]
Combine = Callable[[Any, Any], Any]
Read = Callable[[Array, 'Keys', Array, Array | None], Outputs]


class FavorState(NamedTuple):
    """Sums over the keys read so far, of features divided by exp(stabiliser), for G key heads in float32.

    `sums` [B, G, R, K] holds phi(k) v, `normaliser` [B, G, R] holds phi(k), `stabiliser` [B, G, R] the largest log
    feature of any key.
    """

    sums: Array
    normaliser: Array
    stabiliser: Array


class Tokens(NamedTuple):
    """What attends and is read: query [B, L, H, K], key and value [B, L, G, K], valid and segments [B, L].

    Keys that are not valid are not read; all are by default. Equal segments must be neighbours, and a query reads its
    own alone.
    """

    query: Array
    key: Array
    value: Array
    valid: Array | None = None
    segments: Array | None = None


class Chunk(NamedTuple):
    """Neighbouring positions: query [B, G, h, C, K], key and value [B, G, C, K], valid and segments [B, C] or None."""

    query: Array
    key: Array
    value: Array
    valid: Array | None
    segments: Any


def init_state(batch: int, key_heads: int, features: int, width: int) -> FavorState:
    """The state before any key."""
    rows = (batch, key_heads, features)
    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    return FavorState(zeros((*rows, width)), zeros(rows), jnp.full(rows, MASKED, jnp.float32))


def rescale(state: FavorState, stabiliser_BGR: Array) -> FavorState:
    """The same sums, divided by exp of another stabiliser that is nowhere smaller."""
    shrink = jnp.exp(state.stabiliser - stabiliser_BGR)
    return FavorState(state.sums * shrink[..., None], state.normaliser * shrink, stabiliser_BGR)


def scale_keys(state: FavorState, key_logs_BGCR: Array) -> tuple[FavorState, Array]:
    """The state rescaled to the largest log features of it and of new keys, and the features of these on that scale."""
    highest_BGR = jax.lax.stop_gradient(key_logs_BGCR.max(axis=2))
    state = rescale(state, jnp.maximum(state.stabiliser, highest_BGR))
    return state, key_features(key_logs_BGCR, state.stabiliser[:, :, None])


def add_keys(state: FavorState, key_BGCR: Array, value_BGCK: Array) -> FavorState:
    """The state with keys added whose features are on its scale."""
    sums = state.sums + jnp.einsum('BGCR,BGCK->BGRK', key_BGCR, value_BGCK)
    return state._replace(sums=sums, normaliser=state.normaliser + key_BGCR.sum(axis=2))


def combine(left: FavorState, right: FavorState) -> FavorState:
    """The state that has read the keys of both."""
    stabiliser = jnp.maximum(left.stabiliser, right.stabiliser)
    left, right = rescale(left, stabiliser), rescale(right, stabiliser)
    return FavorState(left.sums + right.sums, left.normaliser + right.normaliser, stabiliser)


# Positions into chunks and back


def cut(x: Array, size: int) -> Array:
    """[n, B, C, ...] from [B, L, ...], padded with zeros to chunks of `size` positions."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size)) + ((0, 0),) * (x.ndim - 2))
    return x.reshape(x.shape[0], -1, size, *x.shape[2:]).swapaxes(0, 1)


def cut_queries(query_BLHK: Array, groups: int, size: int) -> Array:
    """Float32 [n, B, G, h, C, K]."""
    chunks = cut(query_BLHK.astype(jnp.float32), size)
    return jnp.moveaxis(chunks.reshape(*chunks.shape[:3], groups, -1, chunks.shape[-1]), 2, 4)


def cut_keys(key_BMGK: Array, size: int) -> Array:
    """Float32 [n, B, G, C, K]."""
    return cut(key_BMGK.astype(jnp.float32), size).swapaxes(2, 3)


def cut_mask(valid_BM: Array | None, batch: int, length: int, size: int) -> Array | None:
    """Booleans [n, B, C], false where chunks reach beyond the length; None where all are true."""
    if valid_BM is None:
        if length % size == 0:
            return None
        valid_BM = jnp.ones((batch, length), bool)
    return cut(valid_BM, size)


def cut_tokens(tokens: Tokens, size: int) -> Chunk:
    """The tokens in chunks of `size`, an axis in front."""
    batch, length = tokens.query.shape[:2]
    return Chunk(
        cut_queries(tokens.query, tokens.key.shape[2], size),
        cut_keys(tokens.key, size),
        cut_keys(tokens.value, size),
        cut_mask(tokens.valid, batch, length, size),
        None if tokens.segments is None else cut(tokens.segments, size),
    )


def join(chunks: Array, length: int) -> Array:
    """[B, L, H, ...] from [n, B, G, h, C, ...]."""
    count, batch, groups, heads, size, *rest = chunks.shape
    chunks = jnp.moveaxis(jnp.moveaxis(chunks, 0, 1), 4, 2)
    return chunks.reshape(batch, count * size, groups * heads, *rest)[:, :length]


def read_state(query_BGhCR: Array, state: FavorState) -> tuple[Array, Array]:
    """Numerator [B, G, h, C, K] and denominator [B, G, h, C] of queries over the state's keys."""
    numerator = jnp.einsum('BGhCR,BGRK->BGhCK', query_BGhCR, state.sums)
    return numerator, jnp.einsum('BGhCR,BGR->BGhC', query_BGhCR, state.normaliser)


# Causal


def attend_causal(
    tokens: Tokens,
    state: FavorState,
    features: FeatureMap,
    size: int,
    *,
    reads: str = 'earlier',
    parallel: bool | None = None,
) -> tuple[Outputs, FavorState]:
    """Float32 outputs [B, L, H, K] and log-sum-exp [B, L, H] of queries that read earlier keys, and the state after.

    The other two values of `reads` divide the keys of a query's segment into two parts, for a form that is not causal.

    Args:
        tokens: L >= 1 positions.
        state: of keys that come before all of them.
        features: of queries and keys.
        size: positions of a chunk, at most.
        reads: 'earlier' = a query reads itself and what comes before; and with segments also
            'chunk' = what comes before and its whole chunk, 'later' = what comes after its chunk.
        parallel: all chunks at once rather than one after another; by default where the device is no CPU.
    """
    batch, length = tokens.query.shape[:2]
    segments_BL = tokens.segments
    chunks = cut_tokens(tokens, min(size, length))
    walk = all_at_once if (device_kind() != 'cpu' if parallel is None else parallel) else one_by_one
    if segments_BL is not None and reads == 'later':
        run = Run(state, segments_BL[:, -1], jnp.ones(batch, bool))
        last, outputs = walk(
            functools.partial(later_step, features=features), combine_runs, run, jax.tree.map(jnp.flipud, chunks)
        )
        out, lse = (join(jnp.flipud(x), length) for x in outputs)
        return (out, lse), last.state
    step: Any = functools.partial(plain_step, features=features)
    start: Any = state
    merge: Combine = combine
    if segments_BL is not None:
        step = functools.partial(segment_step, features=features, reads=reads)
        start, merge = Run(state, segments_BL[:, 0], jnp.ones(batch, bool)), combine_runs
    after, outputs = walk(functools.partial(step, read=read_chunk), merge, start, chunks)
    out, lse = (join(x, length) for x in outputs)
    if reads == 'earlier':

        @jax.checkpoint
        def again() -> Outputs:
            _, (out, lse) = one_by_one(functools.partial(step, read=read_chunk_exactly), merge, start, chunks)
            return join(out, length), join(lse, length)

        is_lost = (lse <= MASKED / 2) & has_key(state, tokens.valid, segments_BL, (batch, length))[..., None]
        out, lse = jax.lax.cond(is_lost.any(), again, lambda: (out, lse))
    return (out, lse), after.state if isinstance(after, Run) else after


def has_key(state: FavorState, valid_BL: Array | None, segments_BL: Array | None, shape: tuple[int, int]) -> Array:
    """Booleans [B, L]: whether a query may read some key, of the state or among its segment's up to its own place."""
    valid = jnp.ones(shape, bool) if valid_BL is None else valid_BL
    numbers = jnp.arange(shape[1])[None]
    last_key = jax.lax.cummax(jnp.where(valid, numbers, -1), axis=1)
    if segments_BL is None:
        return (last_key >= 0) | (state.stabiliser > MASKED / 2).any(axis=(1, 2))[:, None]
    is_first = jnp.pad(segments_BL[:, 1:] != segments_BL[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return last_key >= jax.lax.cummax(jnp.where(is_first, numbers, 0), axis=1)


def one_by_one(step: Step, _: Combine, start: Any, chunks: Chunk) -> tuple[Any, Outputs]:
    """The last carry of `step` over the chunks, and all outputs.

    Recomputing a chunk in the backward pass costs a CPU less than reading its features [C, R] back from memory.
    """
    return jax.lax.scan(jax.checkpoint(step, prevent_cse=False), start, chunks)


def all_at_once(step: Step, combine: Combine, start: Any, chunks: Chunk) -> tuple[Any, Outputs]:
    """The same without a walk: what each chunk alone adds, then what comes before each, then all outputs."""
    step = jax.checkpoint(step)

    def alone(chunk: Chunk) -> Any:
        return step(empty_like(start, chunk), chunk)[0]

    carries = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, jax.vmap(alone)(chunks))
    carries = jax.lax.associative_scan(jax.vmap(combine), carries)
    before, last = jax.tree.map(lambda x: x[:-1], carries), jax.tree.map(lambda x: x[-1], carries)
    return last, jax.vmap(lambda carry, chunk: step(carry, chunk)[1])(before, chunks)


def empty_like(carry: Any, chunk: Chunk) -> Any:
    """A carry of the same kind before any key, next to `chunk`."""
    if isinstance(carry, Run):
        return Run(empty_like(carry.state, chunk), chunk.segments[:, 0], jnp.ones_like(carry.whole))
    return init_state(*carry.sums.shape)


def plain_step(before: FavorState, chunk: Chunk, *, features: FeatureMap, read: Read) -> tuple[FavorState, Outputs]:
    """The state after a chunk, and outputs [B, G, h, C, K] and log-sum-exp [B, G, h, C] of its queries."""
    key_logs = mask_keys(features.logs(chunk.key), chunk.valid)
    state, key_BGCR = scale_keys(before, key_logs)
    query_logs = features.logs(chunk.query)
    keys = Keys(before, state, key_logs, key_BGCR, chunk.value)
    return add_keys(state, key_BGCR, chunk.value), read(query_logs, keys, earlier(chunk), None)


def earlier(chunk: Chunk) -> Array:
    """Which position of a chunk is or comes before which: [1, C, C]."""
    size = chunk.key.shape[2]
    return jnp.tril(jnp.ones((1, size, size), bool))


def heads_together(x: Array) -> Array:
    """[B, G, h, ...] as [B, G h, ...]."""
    return x.reshape(x.shape[0], -1, *x.shape[3:])


class Keys(NamedTuple):
    """What the queries of a chunk read: the state before it, the same on the scale of the chunk, and the chunk's keys
    as logarithms and, on that scale, as features [B, G, C, R], with their values."""

    before: FavorState
    scaled: FavorState
    logs: Array
    features: Array
    values: Array


def read_chunk(query_logs_BGhCR: Array, keys: Keys, allowed_bCC: Array, reads_B11C: Array | None) -> Outputs:
    """Outputs and log-sum-exp of queries over the allowed keys of their chunk and, where `reads_B11C`, the state."""
    query_BGhCR, scale = query_features(query_logs_BGhCR, keys.scaled.stabiliser[:, :, None, None])
    inside = jnp.einsum('BGhCR,BGcR->BGhCc', query_BGhCR, keys.features)
    inside = jnp.where(allowed_bCC[:, None, None], inside, 0.0)
    before, total_before = read_state(query_BGhCR, keys.scaled)
    if reads_B11C is not None:
        before, total_before = jnp.where(reads_B11C[..., None], before, 0.0), jnp.where(reads_B11C, total_before, 0.0)
    numerator = before + jnp.einsum('BGhCc,BGcK->BGhCK', inside, keys.values)
    return quotient(numerator, total_before + inside.sum(axis=-1), scale)


def read_chunk_exactly(query_logs_BGhCR: Array, keys: Keys, allowed_bCC: Array, reads_B11C: Array | None) -> Outputs:
    """`read_chunk` without a common scale: pairs inside the chunk by their logarithms, one query at a time."""

    @jax.checkpoint
    def pair_logits(query_BGhR: Array) -> Array:
        return jax.nn.logsumexp(query_BGhR[:, :, :, None] + keys.logs[:, :, None], axis=-1)

    logits = jnp.moveaxis(jax.lax.map(pair_logits, jnp.moveaxis(query_logs_BGhCR, 3, 0)), 0, 3)
    exists = (keys.logs > MASKED / 2).any(axis=-1)[:, :, None, None]
    allowed_BGhCC = jnp.broadcast_to(allowed_bCC[:, None, None] & exists, logits.shape)
    weights, inside_lse = (
        x.reshape(*logits.shape[:3], *x.shape[2:])
        for x in masked_softmax(*map(heads_together, (logits, allowed_BGhCC)))
    )
    inside = jnp.einsum('BGhCc,BGcK->BGhCK', weights, keys.values)
    query_BGhCR, scale = query_features(query_logs_BGhCR, keys.before.stabiliser[:, :, None, None])
    numerator, denominator = read_state(query_BGhCR, keys.before)
    denominator = denominator if reads_B11C is None else jnp.where(reads_B11C, denominator, 0.0)
    before, before_lse = quotient(numerator, denominator, scale)
    out = before + jax.nn.sigmoid(inside_lse - before_lse)[..., None] * (inside - before)
    return out, jnp.logaddexp(inside_lse, before_lse)


# Causal, with segments


class Run(NamedTuple):
    """The state of the segment `last` [B] at the end of some positions; `whole` [B] where they hold no other."""

    state: FavorState
    last: Array
    whole: Array


def combine_runs(left: Run, right: Run) -> Run:
    """What `left` and then `right` leave: the sums of the last segment, over both where it reaches back into `left`."""
    joins_B = right.whole & (left.last == right.last)
    return Run(combine(keep_rows(left.state, joins_B), right.state), right.last, left.whole & joins_B)


def keep_rows(state: FavorState, keep_B: Array) -> FavorState:
    """The state with all other rows as before any key."""
    keep = keep_B[:, None, None]
    sums = jnp.where(keep[..., None], state.sums, 0.0)
    return FavorState(sums, jnp.where(keep, state.normaliser, 0.0), jnp.where(keep, state.stabiliser, MASKED))


def segment_step(
    run: Run, chunk: Chunk, *, features: FeatureMap, read: Read, reads: str = 'earlier'
) -> tuple[Run, Outputs]:
    """As `plain_step`, where queries read their own segment alone, all of it that is in the chunk for 'chunk'."""
    segments_BC = chunk.segments
    open_BC, last_BC = segments_BC == run.last[:, None], segments_BC == segments_BC[:, -1:]
    key_logs = mask_keys(features.logs(chunk.key), chunk.valid)
    before, key_logs, levels_BGC = level_segments(run.state, key_logs, segments_BC, open_BC)
    state, key_BGCR = scale_keys(before, key_logs)
    query_logs = features.logs(chunk.query)
    allowed = segments_BC[:, :, None] == segments_BC[:, None, :]
    allowed = allowed & earlier(chunk) if reads == 'earlier' else allowed
    keys = Keys(before, state, key_logs, key_BGCR, chunk.value)
    out, lse = read(query_logs, keys, allowed, open_BC[:, None, None])
    # The sums go on for the last segment, no longer relative to its level.
    stabiliser = state.stabiliser + levels_BGC[:, :, -1:]
    state = keep_rows(state, open_BC[:, -1])._replace(stabiliser=stabiliser)
    state = add_keys(state, jnp.where(last_BC[:, None, :, None], key_BGCR, 0.0), chunk.value)
    whole_B = run.whole & open_BC[:, -1] & last_BC.all(axis=1)
    return Run(state, segments_BC[:, -1], whole_B), (out, lse + levels_BGC[:, :, None])


def later_step(run: Run, chunk: Chunk, *, features: FeatureMap) -> tuple[Run, Outputs]:
    """As `segment_step` on chunks from the last to the first, where queries read what comes after their chunk."""
    segments_BC, state = chunk.segments, run.state
    open_BC, first_BC = segments_BC == run.last[:, None], segments_BC == segments_BC[:, :1]
    query_BGhCR, scale = query_features(features.logs(chunk.query), state.stabiliser[:, :, None, None])
    numerator, denominator = read_state(query_BGhCR, state)
    outputs = quotient(numerator, jnp.where(open_BC[:, None, None], denominator, 0.0), scale)
    valid_BC = first_BC if chunk.valid is None else first_BC & chunk.valid
    key_logs = mask_keys(features.logs(chunk.key), valid_BC)
    state, key_BGCR = scale_keys(keep_rows(state, open_BC[:, 0]), key_logs)
    whole_B = run.whole & open_BC[:, 0] & first_BC.all(axis=1)
    return Run(add_keys(state, key_BGCR, chunk.value), segments_BC[:, 0], whole_B), outputs


def level_segments(
    state: FavorState, key_logs_BGCR: Array, segments_BC: Array, open_BC: Array
) -> tuple[FavorState, Array, Array]:
    """State and log features of keys relative to the largest log feature of their segment, and that level [B, G, C].

    Without it, the segment with the largest features would push its neighbours in a chunk below what float32 holds.
    """
    peaks_BGC = jax.lax.stop_gradient(key_logs_BGCR.max(axis=-1))
    same_B1CC = (segments_BC[:, :, None] == segments_BC[:, None, :])[:, None]
    own_BGC = jnp.where(same_B1CC, peaks_BGC[:, :, None, :], MASKED).max(axis=-1)
    open_BG = jnp.where(open_BC[:, None], peaks_BGC, MASKED).max(axis=-1)
    open_BG = jnp.maximum(open_BG, state.stabiliser.max(axis=-1))
    levels_BGC = jnp.where(open_BC[:, None], open_BG[..., None], own_BGC)
    # A segment without keys has no level; with 0 its logarithms stay at MASKED.
    levels_BGC, open_BG = (jnp.where(level > MASKED / 2, level, 0.0) for level in (levels_BGC, open_BG))
    relative = state._replace(stabiliser=state.stabiliser - open_BG[..., None])
    return relative, key_logs_BGCR - levels_BGC[..., None], levels_BGC
