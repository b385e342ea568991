"""Tests relative-position logits against the paper's formula, as a dense term and in tiles, with every other option."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.attention.relative import Relative, relative_logits, table_row_by_distance
from tests.attention.cells import quick
from tests.tolerances import assert_close

B, H, K = 2, 2, 8


def inputs(queries, keys, rows, *, groups=H, dtype=jnp.float32):
    shapes = (B, queries, H, K), (B, keys, groups, K), (B, keys, groups, K), (B, queries, H, K), (rows, H, K)
    rng = np.random.default_rng(3)
    return [jax.device_put(rng.normal(size=shape).astype(dtype)) for shape in shapes]


def term_on_all_pairs(p, table, query_positions, key_positions, first=0):
    """Computes p_i r_(i - j) / sqrt(K), the definition, from one vector for each pair, [L, M, H, K]."""
    distance = query_positions[:, None] - key_positions[None, :]
    r_LMHK = table[np.clip(distance - first, 0, len(table) - 1)]
    return jnp.einsum('BLHK,LMHK->BHLM', p, r_LMHK) / math.sqrt(K)


@pytest.mark.parametrize('first, rows', [(0, 90), (0, 40), (0, 7), (-20, 50), (3, 1), (3, 2), (60, 5), (-90, 5)])
def test_the_dense_term_is_the_formula(first, rows):
    _, _, _, p, table = inputs(17, 40, rows)
    query, key = np.arange(23, 40), np.arange(40)

    @quick
    def run(p, table, *traced):
        relative = Relative(p, table, first)
        found = [relative_logits(relative, *places) for places in ((query[None], key[None]), traced)]
        return found, [term_on_all_pairs(p, table, query, key, first)] * 2

    # Positions are known before the program runs, and only while it runs.
    assert_close(*run(p, table, query[None], key[None]))


def test_distances_beyond_the_table_take_its_last_rows():
    _, _, _, p, table = inputs(3, 9, 4)
    rows = table_row_by_distance(Relative(p, table), jnp.arange(6, 9)[None], jnp.arange(9)[None])
    np.testing.assert_array_equal(rows[0, 2], [3, 3, 3, 3, 3, 3, 2, 1, 0])


CASES = {
    # Each case: queries, keys, rows of the table, its first distance, pattern.
    'causal': (130, 130, 130, 0, 'causal'),
    'one tile': (20, 20, 20, 0, 'causal'),
    'memory': (70, 200, 200, 0, 'causal'),
    'clamped': (150, 250, 30, 0, 'causal'),
    'window': (200, 200, 60, 0, 'causal & window(70)'),
    'window with memory': (100, 165, 66, 0, 'causal & window(64)'),
    'both ways': (130, 130, 100, -40, 'window(60)'),
    'full': (70, 130, 190, -60, 'full'),
    'far ahead': (66, 66, 3, 40, 'full'),
}


@pytest.mark.parametrize('case', CASES)
def test_output_and_gradients_equal_the_formula(case):
    queries, keys, rows, first, pattern = CASES[case]
    arrays = inputs(queries, keys, rows)
    places = np.arange(keys - queries, keys)[None], np.arange(keys)[None]
    mechanism = ea.parse_mechanism(pattern)
    weight = np.random.default_rng(9).normal(size=(B, queries, H, K)).astype(np.float32)

    def own(q, k, v, p, table, backend):
        relative = Relative(p, table, first)
        out, lse = ea.attend(
            q, k, v, mechanism, relative=relative, query_positions=places[0], key_positions=places[1],
            backend=backend, return_lse=True,
        )  # fmt: skip
        return (out * weight).sum() + lse.sum(), (out, lse)

    def formula(q, k, v, p, table):
        bias = term_on_all_pairs(p, table, places[0][0], places[1][0], first)
        out, lse = ea.attend(
            q, k, v, mechanism, bias=bias, query_positions=places[0], key_positions=places[1],
            backend='reference', return_lse=True,
        )  # fmt: skip
        return (out * weight).sum() + lse.sum(), (out, lse)

    @quick
    def run(*arrays):
        of_own, of_formula = (jax.grad(one, argnums=range(5), has_aux=True) for one in (own, formula))
        return {backend: of_own(*arrays, backend) for backend in ('blocked', 'dense')}, of_formula(*arrays)

    found, (expected_gradient, expected) = run(*arrays)
    for gradient, result in found.values():
        assert_close(result, expected)
        assert_close(gradient, expected_gradient, gradient=True)


def test_with_grouped_heads_bias_segments_and_dropout():
    q, k, v, p, table = inputs(140, 140, 140, groups=1)
    segments = np.repeat(np.array([1, 2, 0], np.int32), [90, 40, 10])[None].repeat(B, 0)
    options = {
        'query_segments': segments,
        'key_segments': segments,
        'dropout_rate': 0.3,
        'dropout_rng': jax.random.key(1),
    }
    places = np.arange(140)
    bias = np.sin(np.arange(140, dtype=np.float32))[None, None, None]

    def own(p, table, backend):
        return ea.attend(
            q, k, v, ea.Softmax(ea.Causal()), backend=backend, bias=jnp.asarray(bias),
            relative=Relative(p, table), **options,
        )  # fmt: skip

    def formula(p, table):
        both = bias + term_on_all_pairs(p, table, places, places)
        return ea.attend(q, k, v, ea.Softmax(ea.Causal()), backend='reference', bias=both, **options)

    @quick
    def run(p, table):
        of_own, of_formula = (
            jax.value_and_grad(lambda *x, one=one: jnp.sin(one(*x)).sum(), argnums=(0, 1)) for one in (own, formula)
        )
        return [of_own(p, table, backend) for backend in ('blocked', 'dense')], of_formula(p, table)

    found, expected = run(p, table)
    assert_close(found, [expected] * 2, gradient=True)


def test_half_precision_stays_near_the_float32_term():
    arrays = inputs(130, 130, 130, dtype=jnp.bfloat16)

    def loss(dtype, backend, q, k, v, p, table):
        q, k, v, p, table = (x.astype(dtype) for x in (q, k, v, p, table))
        out = ea.attend(q, k, v, ea.Softmax(ea.Causal()), relative=Relative(p, table), backend=backend)
        assert out.dtype == dtype
        return jnp.square(out.astype(jnp.float32)).mean()

    @quick
    def both(*arrays):
        differentiate = jax.grad(loss, argnums=range(2, 7))
        return differentiate(jnp.bfloat16, 'blocked', *arrays), differentiate(jnp.float32, 'reference', *arrays)

    assert_close(*both(*arrays), dtype='bfloat16', gradient=True)


def test_no_gradient_flows_to_later_positions():
    q, k, v, p, table = inputs(130, 130, 130)

    def read(v, k):
        out = ea.attend(q, k, v, ea.Softmax(ea.Causal()), relative=Relative(p, table), backend='blocked')
        return out[:, 70].sum()

    for gradient in jax.device_get(quick(jax.grad(read, argnums=(0, 1)))(v, k)):
        assert not gradient[:, 71:].any() and gradient[:, :71].any()


@pytest.mark.parametrize(
    'change, message',
    [
        ({'query': (1, 130, H, K)}, 'must be'),
        ({'table': (5, H + 1, K)}, 'must be'),
        ({'dtype': jnp.bfloat16}, 'one dtype'),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    q, k, v, p, table = inputs(130, 130, 130)
    p = jnp.zeros(change.get('query', p.shape))
    table = jnp.zeros(change.get('table', table.shape), change.get('dtype', jnp.float32))
    with pytest.raises(ValueError, match=message):
        ea.attend(q, k, v, ea.Softmax(ea.Causal()), relative=Relative(p, table))


def test_other_mechanisms_have_no_relative_term():
    q, k, v, p, table = inputs(20, 20, 20)
    with pytest.raises(ValueError, match='no relative term'):
        ea.attend(q, k, v, ea.FAVOR(), relative=Relative(p, table), rng=jax.random.key(0))
    with pytest.raises(NotImplementedError, match='relative'):
        ea.attend(q, k, v, ea.Softmax(ea.Causal()), relative=Relative(p, table), backend='jax_nn')
