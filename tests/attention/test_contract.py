"""Tests the reference backend, with which every backend is compared, against the papers' definitions in float64
NumPy.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import DROPOUT_STREAM, attend, attention_weights
from efficient_attention.attention.dense_attention import MASKED, masked_softmax
from efficient_attention.attention.dropout import dropout_keep_mask
from efficient_attention.attention.favor import random_features as favor_features
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.logits.definition import scaled_logits
from efficient_attention.attention.lsh import hashing
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.parsing import parse_mechanism, parse_pattern
from efficient_attention.attention.partial_softmax import Partial, merge_partial_softmax
from efficient_attention.attention.patterns import RandomTiles, dense_mask
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention import contract
from tests.attention import paper_patterns as paper
from tests.attention.cells import quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close

pytestmark = pytest.mark.fast

B, L, H, K = 2, 13, 4, 8
RNG = jax.random.key(7)
PACKED = np.array([[3] * 5 + [1] * 4 + [0] * 2 + [3] * 2, [0] * 3 + [2] * 10], np.int32)


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return jax.device_put((scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32))


def arrays(keys: int = L, groups: int = H) -> tuple[jax.Array, ...]:
    """Returns query [B, L, H, K], key and value [B, M, G, K], whose logits differ by several units."""
    query, key = normal(0, B, L, H, K, scale=1.5), normal(1, B, keys, groups, K, scale=1.5)
    return query, key, normal(2, B, keys, groups, K)


def segment_arguments(queries: np.ndarray, keys: np.ndarray) -> dict[str, jax.Array]:
    return {'query_segments': jax.device_put(queries), 'key_segments': jax.device_put(keys)}


def exactly(*values: Any) -> list[np.ndarray]:
    return [np.asarray(value, np.float64) for value in values]


def row_of(row: int, *values: Any) -> list[np.ndarray]:
    return exactly(*(np.asarray(value)[row] for value in values))


def assert_same(result: Any, expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Checks outputs and log-sum-exps.

    The library has a finite number instead of -inf for a query without a key.
    """
    out, lse = expected
    assert_close(result[0], out)
    assert_close(result[1], np.where(np.isfinite(lse), lse, MASKED))


def by_row(define: Callable[[int], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    return tuple(map(np.stack, zip(*map(define, range(B)), strict=True)))


# ---- patterns ----


def drawn(pattern: RandomTiles, keys: int) -> list[paper.Reads]:
    """Returns the tiles that the library drew for each head."""
    pattern = pattern.for_key_count(keys)
    chosen = [np.argwhere(pattern.for_head(head, H).chosen_key_tiles()) for head in range(H)]
    return [paper.tiles(pattern.size, {(int(a), int(b)) for a, b in pairs}) for pairs in chosen]


def bigbird(keys: int) -> list[paper.Reads]:
    fixed = paper.either(paper.block(3, 1, 1), paper.global_tokens(3, 3))
    return [paper.either(fixed, tiles) for tiles in drawn(RandomTiles(1, 3, near=1, ends=1), keys)]


PATTERNS: dict[str, paper.Reads] = {
    'full': paper.full(),
    'causal': paper.causal(),
    'prefix(5)': paper.prefix(5),
    'window(0)': paper.window(0),
    'window(2)': paper.window(2),
    'window(2, dilation=3)': paper.window(2, 3),
    'causal & window(3)': paper.both(paper.causal(), paper.window(3)),
    'block(4)': paper.block(4),
    'block(3, back=1)': paper.block(3, back=1),
    'block(2, back=1, ahead=2)': paper.block(2, back=1, ahead=2),
    'strided(4)': paper.strided(4),
    'summary(4, 1)': paper.summary(4, 1),
    'summary(5, 2)': paper.summary(5, 2),
    'global_tokens(2)': paper.global_tokens(2),
    'global_tokens(1, last=2)': paper.global_tokens(1, 2),
    'longformer(2, 1)': paper.either(paper.window(2), paper.global_tokens(1)),
    'longformer(1, 2, 3)': paper.either(paper.window(1, 3), paper.global_tokens(2)),
    'sparse_fixed(4, 1)': paper.sparse_fixed(4, 1),
    'sparse_strided(4)': paper.sparse_strided(4),
    'full - window(1)': paper.without(paper.full(), paper.window(1)),
    'listed_tiles(4, 0, 1, 2, 2)': paper.tiles(4, {(0, 1), (2, 2)}),
}
# Patterns that differ by head: from the number of keys to the pattern of each head.
BY_HEAD: dict[str, Callable[[int], list[paper.Reads]]] = {
    'random_tiles(2, 3)': lambda keys: drawn(RandomTiles(2, 3), keys),
    'bigbird(3, 1)': bigbird,
    'per_head(causal, window(1))': lambda _: [paper.causal()] * 2 + [paper.window(1)] * 2,
}


def heads_of(text: str, keys: int) -> list[paper.Reads]:
    return BY_HEAD[text](keys) if text in BY_HEAD else [PATTERNS[text]] * H


@pytest.mark.parametrize('text', [*PATTERNS, *BY_HEAD])
def test_patterns_read_what_their_papers_say(text: str):
    for length in (1, 4, 12, 13, 29):
        expected = paper.readable(heads_of(text, length), range(length), range(length))
        np.testing.assert_array_equal(dense_mask(parse_pattern(text), length, length, H), expected)


@pytest.mark.parametrize('text', [*PATTERNS, *BY_HEAD])
def test_attention_over_patterns(text: str):
    q, k, v = arrays()
    allowed = paper.readable(heads_of(text, L), range(L), range(L))

    def define(row: int) -> tuple[np.ndarray, np.ndarray]:
        query, key, value = row_of(row, q, k, v)
        weights, lse = contract.softmax(contract.scaled_logits(query, key), allowed)
        return contract.mixed(weights, value), lse

    assert_same(over_patterns()[text], by_row(define))


@functools.cache
def over_patterns() -> dict[str, tuple]:
    """Returns the reference's output and log-sum-exp for each pattern, computed in one program."""

    @quick
    def run(*arrays: jax.Array) -> dict[str, tuple]:
        return {text: reference(text)(*arrays) for text in (*PATTERNS, *BY_HEAD)}

    return jax.device_get(run(*arrays()))


def reference(text: str, **options: Any) -> Callable:
    """Returns the function from query, key and value to the reference's output and log-sum-exp."""
    return functools.partial(attend, mechanism=parse_mechanism(text), backend='reference', return_lse=True, **options)


# ---- options of softmax attention ----

SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
WIDER = 5  # So many more keys than queries exist where queries continue a text.
# Each option by itself, then several together; every cell is causal.
OPTIONS = ['plain', 'segments', 'bias', 'key bias', 'function bias', 'relative', 'dropout', 'one key head']
OPTIONS += ['two key heads', 'offset', 'row positions', 'row positions, relative']
OPTIONS += [
    'segments, bias, relative, dropout, two key heads',
    'function bias, relative, offset, one key head, segments',
]


def slope_bias(query: Any, key: Any) -> jax.Array:
    """Computes the bias of ALiBi (Press et al. 2021, arXiv 2108.12409): a penalty in proportion to the distance."""
    return -jnp.asarray(SLOPES)[None, :, None, None] * (query - key).astype(jnp.float32)


class Options:
    """The arguments that the words of a cell add to the call, and the logits and masks that they define."""

    def __init__(self, text: str) -> None:
        self.words = text.split(', ')
        groups = {'one key head': 1, 'two key heads': 2}
        self.keys = L + WIDER * bool({'offset', 'row positions'} & set(self.words))
        self.arrays = arrays(self.keys, min(groups.get(word, H) for word in self.words))
        self.key_positions = np.arange(self.keys)
        self.query_positions = np.arange(L)[None].repeat(B, 0) + self.keys - L
        if 'row positions' in self.words:
            self.query_positions[1] -= 9  # Some of these queries come before every key.
        segments = np.pad(PACKED, ((0, 0), (self.keys - L, 0)), constant_values=3)
        self.segments = segment_arguments(segments[:, self.keys - L :], segments)
        self.bias = {'bias': normal(3, B, H, L, self.keys), 'key bias': normal(4, B, 1, 1, self.keys)}
        self.relative = Relative(normal(5, B, L, H, K), normal(6, 6, H, K), first=2)
        self.rate = 0.3 * ('dropout' in self.words)

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of `attend`."""
        given: dict[str, Any] = {'query_positions': self.query_positions.astype(np.int32)}
        given |= self.segments if 'segments' in self.words else {}
        for word in {'bias', 'key bias', 'function bias'} & set(self.words):
            given['bias'] = self.bias.get(word, slope_bias)
        given |= {'relative': self.relative} if 'relative' in self.words else {}
        return given | ({'dropout_rate': self.rate, 'rng': RNG} if self.rate else {})

    def logits(self, row: int) -> np.ndarray:
        """Returns the logits [H, L, M] of one row, with all terms that are added to them."""
        logits = contract.scaled_logits(*row_of(row, *self.arrays[:2]))
        places = self.query_positions[row], self.key_positions
        for word, bias in self.bias.items():
            logits += np.asarray(bias, np.float64)[row] * (word in self.words)
        if 'function bias' in self.words:
            logits -= SLOPES[:, None, None] * (places[0][:, None] - places[1])
        if 'relative' in self.words:
            (query,), (table,) = row_of(row, self.relative.query), exactly(self.relative.table)
            logits += contract.relative_term(query, table, self.relative.first, *places)
        return logits

    def allowed(self, row: int) -> np.ndarray:
        """Returns the mask [H, L, M]: causal, and within segments where the cell has segments."""
        allowed = paper.readable([paper.causal()] * H, self.query_positions[row], self.key_positions)
        if 'segments' in self.words:
            allowed &= contract.same_segment(*(np.asarray(x)[row] for x in self.segments.values()))
        return allowed


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def kept(key: jax.Array, rate: float, *sizes: int) -> jax.Array:
    """Returns the dropout mask of all rows."""
    return dropout_keep_mask(key, rate, B, *map(jnp.arange, sizes))


@pytest.mark.parametrize('text', OPTIONS)
def test_every_option_of_softmax_attention(text: str):
    options = Options(text)
    keep = np.asarray(kept(RNG, options.rate, H, L, options.keys))

    def define(row: int) -> tuple[np.ndarray, np.ndarray]:
        weights, lse = contract.softmax(options.logits(row), options.allowed(row))
        (value,) = row_of(row, options.arrays[2])
        return contract.mixed(contract.dropped(weights, keep[row], options.rate), value), lse

    assert_same(quick(reference('causal', **options.arguments()))(*options.arrays), by_row(define))


def test_cells_hold_queries_without_keys_and_distances_beyond_the_table():
    """Checks that the arrays of the cells above contain these rare cases, which the cells themselves would not
    notice.
    """
    packed, continued = Options('segments'), Options('row positions')
    assert (~packed.allowed(0).any(-1)).any() and (~continued.allowed(1).any(-1)).any()
    distances = packed.query_positions[0][:, None] - packed.key_positions
    table = packed.relative
    ends = table.first, table.first + len(table.table) - 1
    for row in range(B):
        read = distances[packed.allowed(row)[0]]
        assert read.min() < ends[0]
    assert np.tril(distances).max() > ends[1]


def test_dropout_keeps_its_share_of_the_weights_and_scales_them():
    """Values that identify their key show each weight, so that the test needs no mask of the library."""
    q, k = normal(0, 1, 64, 2, 64), normal(1, 1, 64, 2, 64)
    names = np.broadcast_to(np.eye(64, dtype=np.float32)[None, :, None], k.shape)
    out, _ = quick(reference('full', dropout_rate=0.3, dropout_rng=RNG))(q, k, names)
    found = np.asarray(out)[0].swapaxes(0, 1)
    weights, _ = contract.softmax(contract.scaled_logits(*row_of(0, q, k)), np.ones((64, 64), bool))
    assert_close(found, np.where(found > 0, weights / 0.7, 0.0))
    share = (found > 0).mean()
    assert abs(share - 0.7) < 4 * np.sqrt(0.3 * 0.7 / found.size)


def test_weights_before_dropout_and_the_small_functions():
    q, k, v = arrays(groups=2)
    segments = segment_arguments(PACKED, PACKED)
    allowed = np.stack([contract.same_segment(PACKED[row], PACKED[row]) for row in range(B)])[:, None]

    @quick
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        logits = scaled_logits(make_request(q, k, v, Softmax()), jnp.dtype('float32'), jax.lax.Precision.HIGHEST)
        softmax = masked_softmax(logits, jnp.asarray(allowed))
        return logits, attention_weights(q, k, Softmax(), **segments), softmax

    logits, found, softmax = run(q, k, v)
    expected = np.stack([contract.scaled_logits(*row_of(row, q, k)) for row in range(B)])
    assert_close(logits, expected)
    weights, lse = by_row(lambda row: contract.softmax(expected[row], contract.same_segment(PACKED[row], PACKED[row])))
    assert_close(found, weights)
    assert_same(softmax, (weights, lse))


def test_merging_parts_is_softmax_over_their_union():
    q, k, v = arrays()
    segments = np.where(PACKED == 1, 0, PACKED)
    cuts = slice(0, 3), slice(3, 11), slice(11, L)

    @quick
    def merged(q: jax.Array, k: jax.Array, v: jax.Array) -> Partial:
        given = [segment_arguments(segments, segments[:, cut]) for cut in cuts]
        options = {'backend': 'reference', 'return_lse': True}
        parts = zip(cuts, given, strict=True)
        return merge_partial_softmax(
            [attend(q, k[:, cut], v[:, cut], Softmax(), **options, **more) for cut, more in parts]
        )

    def define(row: int) -> tuple[np.ndarray, np.ndarray]:
        query, key, value = row_of(row, q, k, v)
        own = contract.same_segment(segments[row], segments[row])
        weights, lse = contract.softmax(contract.scaled_logits(query, key), own)
        return contract.mixed(weights, value), lse

    assert_same(merged(q, k, v), by_row(define))


# ---- LSH ----


def lsh_defined(q: np.ndarray, v: np.ndarray, segments: np.ndarray, mechanism: LSH, keep: np.ndarray, rate: float):
    """Returns the definition's outputs and log-sum-exps of all rows, with the rotations that the library draws."""
    buckets = mechanism.buckets or 2 * max(1, q.shape[1] // mechanism.bucket_size)
    draw = functools.partial(hashing.draw_rotations, RNG, buckets, mechanism.rounds, H, K)
    rotations = exactly(*jax.jit(draw)())
    named = {name: getattr(mechanism, name) for name in ('causal', 'within_buckets', 'deduplicate')}

    def of_head(query: np.ndarray, row: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        by_round = [
            contract.lsh_buckets(query, [rotation[head, :, number] for rotation in rotations])
            for number in range(mechanism.rounds)
        ]
        return contract.lsh_weights(query, by_round, segments[row], mechanism.bucket_size, **named)

    def define(row: int) -> tuple[np.ndarray, np.ndarray]:
        query, value = row_of(row, q, v)
        heads = [of_head(query[:, head], row, head) for head in range(H)]
        weights, lse = (np.stack(x) for x in zip(*heads, strict=True))
        return contract.mixed(contract.dropped(weights, keep[row], rate), value), lse

    return by_row(define)


LSH_CELLS = {
    'plain': (LSH(4, 3), False, 0.0),
    'one chunk': (LSH(16, 2), True, 0.0),
    'causal': (LSH(4, 3, causal=True), True, 0.0),
    'own bucket': (LSH(4, 2, within_buckets=True), True, 0.0),
    'once': (LSH(4, 3, deduplicate=True, causal=True), False, 0.3),
    'two rotations': (LSH(4, 2, buckets=256, within_buckets=True, deduplicate=True), False, 0.0),
}


@pytest.mark.parametrize('cell', LSH_CELLS)
def test_lsh(cell: str):
    """The inputs have a query of zeros, and rows whose segments are in no order."""
    mechanism, is_packed, rate = LSH_CELLS[cell]
    q, _, v = map(np.array, arrays())
    q[0, 6, 1] = 0.0
    segments = PACKED if is_packed else np.ones_like(PACKED)
    options = segment_arguments(segments, segments) if is_packed else {}
    options |= {'rng': RNG, 'dropout_rate': rate, 'return_lse': True}
    run = quick(lambda q, v: attend(q, q, v, mechanism, backend='reference', **options))
    keep = np.asarray(kept(jax.random.fold_in(RNG, DROPOUT_STREAM), rate, H, L, L))
    assert_same(run(q, v), lsh_defined(q, v, segments, mechanism, keep, rate))


# ---- FAVOR+ ----

FAVOR_CELLS = {
    'segments': (FAVOR(24), 2, True, 3.0),
    'causal segments': (FAVOR(24, causal=True, chunk=4), 1, True, 3.0),
    'relu': (FAVOR(24, kernel='relu', orthogonal=False), H, True, 1.0),
    'long vectors': (FAVOR(24), H, False, 6.0),
    'causal long vectors': (FAVOR(24, causal=True, chunk=4), H, False, 4.0),
}


@pytest.mark.parametrize('cell', FAVOR_CELLS)
def test_favor(cell: str):
    """Tests the definition and the linear form, also with features outside float32's range and denominators near 0."""
    mechanism, groups, is_packed, scale = FAVOR_CELLS[cell]
    q, k, v = map(np.asarray, arrays(groups=groups))
    q, k = np.float32(scale) * q, np.float32(scale) * k
    segments = segment_arguments(PACKED, PACKED) if is_packed else {}
    draw = functools.partial(favor_features.draw_features, RNG, mechanism.features, K, mechanism.orthogonal)
    (projection,) = exactly(jax.jit(draw)())
    allowed = np.tril(np.ones((L, L), bool)) if mechanism.causal else np.ones((L, L), bool)

    def define(row: int) -> tuple[np.ndarray]:
        query, key, value = row_of(row, q, k, v)
        own = allowed & contract.same_segment(PACKED[row], PACKED[row]) if is_packed else allowed
        weights = contract.favor_weights(query, key, projection, mechanism.kernel, own)
        return (contract.mixed(weights, value),)

    run = quick(
        lambda q, k, v: [
            attend(q, k, v, mechanism, rng=RNG, backend=backend, **segments) for backend in ('reference', 'blocked')
        ]
    )
    (expected,) = by_row(define)
    # Logarithms of features exceed 100 where vectors are longest, and their rounding is an error of the weights:
    # 1.6e-5 relative to 1 + |value|, measured on a CPU with AVX-512, too near to a limit of 2e-5 for other CPUs.
    # The errors of the other cells are at most 3.5e-6.
    for out in run(q, k, v):
        assert_close(out, expected, gradient=cell == 'long vectors')


def test_a_pattern_that_allows_nothing_gives_zeros():
    q, k, v = arrays()
    out, lse = quick(reference('full - full'))(q, k, v)
    assert not np.asarray(out).any() and (np.asarray(lse) == np.float32(MASKED)).all()
