"""Tests the blocked backend's programs: no array of all pairs, memory linear in the length, heads in their order.

test_attend.py tests that the backend equals the reference.
"""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal, Full, Pattern, PerHead, RandomTiles, Window
from efficient_attention.attention.softmax.blocked_backend import head_groups, pick_heads, static_positions
from efficient_attention.attention.softmax.definition import Softmax
from tests.tolerances import assert_close

TILE = 16  # Tiles of 16 positions give tables with many tiles at short lengths.
PRESETS = ('longformer(256, 1)', 'bigbird(64, 3)', 'sparse_fixed(128, 8)', 'sparse_strided(128)')
PRIMITIVES = ('causal & window(256)', 'block(512)', 'strided(128)', 'full')
# This halves the compile time; tests of the program itself compile it as users do.
QUICKLY = {'xla_backend_optimization_level': 0}


@functools.cache
def compile_gradient(text: str, length: int) -> jax.stages.Compiled:
    """Compiles the forward and backward pass of B 1, H 2, K 16, without a run."""
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    mechanism = parse_mechanism(text)
    loss = jax.grad(lambda q, k, v: attend(q, k, v, mechanism, backend='blocked').sum(), (0, 1, 2))
    return jax.jit(loss).lower(x, x, x).compile()


def largest_buffer(program: jax.stages.Compiled) -> int:
    """Returns the elements of the largest array that any instruction of a compiled program makes."""
    shapes = re.findall(r'\b(?:f|bf|s|u|pred)\d*\[([\d,]+)\]', program.as_text())
    return max(math.prod(map(int, shape.split(','))) for shape in shapes)


@pytest.mark.parametrize('text', [*PRESETS, 'full'])
def test_no_buffer_holds_all_pairs_at_16k(text: str):
    """The scores of a chunk are the largest array of the forward and backward pass, a hundredth of all pairs.

    The presets are made of the primitives.
    """
    assert largest_buffer(compile_gradient(text, 2**14)) <= 2**28 / 100


def test_a_dense_program_does_hold_all_pairs():
    """Shows that `largest_buffer` would find an array of all pairs."""
    x = jax.ShapeDtypeStruct((1, 512, 2, 16), jnp.float32)
    program = jax.jit(lambda q: attend(q, q, q, Softmax(), backend='dense')).lower(x).compile()
    assert largest_buffer(program) >= 512 * 512


def growth(text: str, lengths: list[int]) -> list[float]:
    """Returns the factors between the program's temporary memory at each length and the maximum at shorter lengths.

    A shorter length may need less memory than a still shorter one: where steps of whole tiles fit worse, or where heads
    begin to take turns.
    """
    sizes = [compile_gradient(text, length).memory_analysis().temp_size_in_bytes for length in lengths]
    factors = [size / max(sizes[:number]) for number, size in enumerate(sizes) if number]
    print(f'{text}: {sizes} bytes, factors {np.round(factors, 2)}')
    return factors


@pytest.mark.parametrize('text', ['longformer(256, 1)', 'bigbird(64, 3)', 'full'])
def test_memory_grows_linearly(text: str):
    assert max(growth(text, [2**13, 2**14])) <= 2.2


@pytest.mark.slow
@pytest.mark.parametrize('text', [*PRESETS, *PRIMITIVES, 'causal'])
def test_memory_grows_linearly_up_to_64k(text: str):
    """Memory grows at most 2.2 times for each doubling of the length; on a CPU, 2.03 times was measured."""
    assert max(growth(text, [2**power for power in range(12, 17)])) <= 2.2


@pytest.mark.slow
@pytest.mark.parametrize('text', ['lsh(64, 4)', 'lsh(64, 4, causal=True)', 'favor(64)', 'favor(64, causal=True)'])
def test_memory_of_lsh_and_favor_with_segments_grows_linearly_up_to_64k(text: str):
    mechanism, sizes = parse_mechanism(text), []
    for length in (2**power for power in range(12, 17)):
        x, ids = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32), jax.ShapeDtypeStruct((1, length), jnp.int32)

        def loss(q: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
            options = {'rng': jax.random.key(0), 'query_segments': segments, 'key_segments': segments}
            return attend(q, q, v, mechanism, backend='blocked', **options).sum()

        program = jax.jit(jax.grad(loss, (0, 1))).lower(x, x, ids).compile()
        sizes.append(program.memory_analysis().temp_size_in_bytes)
    factors = [later / earlier for earlier, later in itertools.pairwise(sizes)]
    assert max(factors) <= 2.2, f'{text}: {sizes} bytes, factors {np.round(factors, 2)}'


def test_vmap_equals_a_larger_batch():
    """jax.vmap adds a further axis, also in the backward pass and with segments."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 3, 2, 40, 2, 8)).astype(np.float32)
    segments = (np.arange(40)[None] // np.array([[7], [40], [13]]) + 1).astype(np.int32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        pair = jnp.broadcast_to(segments, q.shape[:2])
        out = attend(q, k, v, Softmax(Window(5), TILE), backend='blocked', query_segments=pair, key_segments=pair)
        return (out**2).sum()

    mapped = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2))), compiler_options=QUICKLY)(q, k, v, segments[:, None])
    flat = [x.reshape(6, 40, 2, 8) for x in (q, k, v)]
    whole = jax.jit(jax.grad(loss, (0, 1, 2)), compiler_options=QUICKLY)(*flat, np.repeat(segments, 2, axis=0))
    assert_close(mapped, tuple(np.asarray(x).reshape(3, 2, 40, 2, 8) for x in whole), gradient=True)


def test_positions_known_early_and_late_give_the_same():
    """NumPy positions leave tiles out; JAX positions mask them."""
    q, k, v = (jax.random.normal(rng, (1, 33, 2, 8)) for rng in jax.random.split(jax.random.key(0), 3))
    positions = np.arange(33, dtype=np.int32)[None]

    def run(positions: object) -> jax.Array:
        mechanism = Softmax(Causal() & Window(3), TILE)
        return attend(q, k, v, mechanism, backend='blocked', query_positions=positions, key_positions=positions)

    assert_close(jax.jit(lambda: run(positions))(), jax.jit(run)(jnp.asarray(positions)))


def test_queries_far_from_all_keys_give_zeros():
    q, k = np.ones((1, 20, 2, 8), np.float32), np.ones((1, 30, 2, 8), np.float32)
    far = {'query_positions': np.arange(20, dtype=np.int32)[None] + 100, 'return_lse': True}
    out, lse = jax.jit(lambda q, k: attend(q, k, k, Softmax(Window(3), TILE), backend='blocked', **far))(q, k)
    assert not out.any() and (lse == MASKED).all() and lse.shape == (1, 2, 20)


# ---- heads ----


@pytest.mark.parametrize(
    'pattern, groups',
    [
        (Causal(), [((0, 1, 2, 3), 1)]),
        (PerHead(Causal(), Full()), [((0, 1), 1), ((2, 3), 1)]),
        (PerHead(Causal(), Full(), Full(), Causal()), [((0, 3), 1), ((1, 2), 1)]),
        (RandomTiles(1, 4).for_key_count(16), [((0, 1, 2, 3), 4)]),
        (PerHead(RandomTiles(1, 4).for_key_count(16), Full()), [((0, 1), 2), ((2, 3), 1)]),
    ],
)
def test_heads_that_differ_only_in_what_they_draw_share_a_schedule(pattern: Pattern, groups: list):
    found = head_groups(pattern, 4)
    assert [(heads, len(patterns)) for heads, patterns in found] == groups
    for heads, patterns in found:
        of_heads = patterns if len(patterns) > 1 else patterns * len(heads)
        assert all(one == pattern.for_head(head, 4) for head, one in zip(heads, of_heads, strict=True))


def test_heads_come_back_in_order():
    """Heads that share a pattern are not neighbours, and each key head has several query heads."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 20, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    pattern = PerHead(Causal(), Full(), Window(2), Causal())

    @jax.jit
    def both_ways(*arrays: jax.Array) -> tuple:
        alone = []
        for head, head_pattern in enumerate(pattern.patterns):
            own = [x[:, :, [number]] for x, number in zip(arrays, (head, head // 2, head // 2), strict=True)]
            out, lse = attend(*own, Softmax(head_pattern), backend='reference', return_lse=True)
            alone.append((out[:, :, 0], lse[:, 0]))
        return attend(*arrays, Softmax(pattern, TILE), backend='blocked', return_lse=True), alone

    (out, lse), alone = jax.device_get(both_ways(*arrays))
    for head, expected in enumerate(alone):
        assert_close((out[:, :, head], lse[:, head]), expected)


def test_pick_heads_repeats_key_heads():
    x = jnp.arange(2.0)[None, None, :, None]
    assert pick_heads(x, (1, 3), 4)[0, 0, :, 0].tolist() == [0.0, 1.0]
    assert pick_heads(x, (0, 1, 2, 3), 4)[0, 0, :, 0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_positions_that_are_known_are_bytes():
    positions = np.arange(3)[None] + 5
    assert static_positions(positions, False) == np.array([5, 6, 7], np.int32).tobytes()
    assert static_positions(positions, True) == np.array([0, 1, 2], np.int32).tobytes()
    assert static_positions(jnp.asarray(positions), False) == 3
    assert static_positions(np.stack([positions[0]] * 2), False) == 3  # The positions of rows may differ.


def test_a_mechanism_that_it_does_not_know_is_refused():
    q = jnp.ones((1, 3, 2, 8))
    with pytest.raises(NotImplementedError, match='Mechanism has no implementation'):
        attend(q, q, q, Mechanism(), backend='blocked')


@pytest.mark.parametrize('text', ['causal', 'lsh(16, 2)', 'favor(16)', 'favor(16, causal=True)'])
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_programs_of_64_bits_are_served(text: str, dtype: str):
    """Where JAX uses 64 bits by default, arrays that a mechanism makes keep their declared types."""
    mechanism = parse_mechanism(text)
    with jax.enable_x64(True):
        q, ids = jnp.ones((1, 40, 2, 8), dtype), jnp.ones((1, 40), 'int32')

        def loss(q: jax.Array) -> jax.Array:
            options = {'rng': jax.random.key(0), 'query_segments': ids, 'key_segments': ids, 'backend': 'blocked'}
            return attend(q, q, q, mechanism, **options).sum()

        assert jax.eval_shape(jax.grad(loss), q).dtype == dtype
