"""Sinkhorn attention against its float64 definition, as full attention of few blocks, and what it does not look at."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.sinkhorn.sorting import gumbel_noise
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError
from tests.attention import contract, contract_rows
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.room_checks import check_bfloat16, check_definition, check_dropout, largest_array
from tests.attention.test_attend import LENGTHS
from tests.tolerances import assert_close

FORMS = ('sinkhorn(40, 26)', 'sinkhorn(40, 26, cut=2)', 'sinkhorn(40, 26, causal=True)')
SMALL = ('sinkhorn(4, 6)', 'sinkhorn(4, 6, cut=2)', 'sinkhorn(4, 6, causal=True)')


def run(text: str, *arrays: jax.Array, **options: Any) -> jax.Array:
    """The fast form, with drawn operands unless others are given."""
    mechanism = parse_mechanism(text)
    options.setdefault('learned', drawn_operands(mechanism, *arrays[0].shape[2:]))
    return quick(functools.partial(attend, mechanism=mechanism))(*arrays, **options)


def defined(
    mechanism: Any, query: np.ndarray, key: np.ndarray, learned: dict[str, np.ndarray], valid: np.ndarray
) -> np.ndarray:
    return contract_rows.sinkhorn_weights(query, key, learned['sort'], valid, valid, options=mechanism)


@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize('text', FORMS)
def test_it_is_the_float64_definition_forward_and_in_gradients(text: str, length: int):
    check_definition(text, length, defined)


@pytest.mark.parametrize('text', ['sinkhorn(4, 4, 5)', 'sinkhorn(4, 4, causal=True)'])
def test_gradients_stay_finite_where_the_sort_is_sure(text: str):
    """In a row that ends inside a block, whose last slots then hold hardly any share at some places."""
    mechanism, segments = parse_mechanism(text), jnp.asarray((np.arange(16) < 10)[None], jnp.int32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, sort: jax.Array) -> jax.Array:
        options: dict[str, Any] = {'query_segments': segments, 'key_segments': segments, 'learned': {'sort': sort}}
        return attend(q, k, v, mechanism, **options).sum()

    gradients_of = quick(jax.grad(loss, (0, 1, 2, 3)))
    for draw in (0, 2, 3, 7, 13):  # some of them gave NaN before a smallest sum of shares was asked for
        *arrays, sort = jax.random.normal(jax.random.key(draw), (4, 1, 16, 2, 8))
        for scale in (20.0, 30.0, 100.0):
            gradients = gradients_of(*arrays, scale * sort[0, :8, :, :4].swapaxes(0, 1) / np.sqrt(32))
            assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize('dtype', [jnp.float16, jnp.bfloat16])
def test_shares_of_16_bits_cancel_where_a_slot_has_hardly_any(dtype: Any):
    """Of a sharp sort of a row that ends inside a block: out of them comes no gradient that is not there."""
    mechanism = parse_mechanism('sinkhorn(4, 4, temperature=0.1)')
    q, k, v = (jax.random.normal(jax.random.key(seed), (1, 13, 1, 8)).astype(dtype) for seed in (0, 1, 2))
    sort = 8.0 * drawn_operands(mechanism, 1, 8)['sort']

    def loss(k: jax.Array, sort: jax.Array, backend: str) -> jax.Array:
        out = attend(q, k, v, mechanism, learned={'sort': sort}, backend=backend)
        return jnp.square(out.astype(jnp.float32)).sum()

    found, expected = (
        quick(jax.grad(functools.partial(loss, backend=backend), (0, 1)))(k, sort) for backend in ('auto', 'reference')
    )
    assert jnp.abs(expected[0]).max() > 1.0 and jnp.abs(expected[1]).max() < 0.01
    assert jnp.abs(found[0] - expected[0]).max() < 0.1 and jnp.abs(found[1] - expected[1]).max() < 0.01


@pytest.mark.parametrize('backend', ['reference', 'auto'])
@pytest.mark.parametrize('tokens', [slice(8, 16), slice(5, 14), slice(0, 6)], ids=str)
def test_behind_padding_the_cut_takes_the_first_places_with_tokens(backend: str, tokens: slice):
    mechanism, (q, k, v) = parse_mechanism('sinkhorn(4, 6, cut=1)'), inputs(16)[0]
    sort, valid = drawn_operands(mechanism, 4, 8)['sort'], np.zeros(16, bool)
    valid[tokens] = True
    options: dict[str, Any] = {'query_segments': jnp.asarray([valid] * 2, jnp.int32), 'learned': {'sort': sort}}
    options['key_segments'] = options['query_segments']
    out = quick(functools.partial(attend, mechanism=mechanism, backend=backend))(q, k, v, **options)
    for row in range(2):
        arrays = [np.asarray(x, np.float64) for x in (q[row], k[row], sort)]
        weights = contract_rows.sinkhorn_weights(*arrays, valid, valid, options=mechanism)
        np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(valid, (4, 16)))
        assert_close(out[row], contract.mixed(weights, np.asarray(v[row], np.float64)))


@pytest.mark.parametrize('text', SMALL)
def test_noise_of_the_key_is_that_of_the_definition_and_there_is_none_without(text: str):
    mechanism, (q, k, v) = parse_mechanism(text), inputs(22)[0]
    sort, rng = drawn_operands(mechanism, 4, 8)['sort'], jax.random.key(9)
    noise = np.asarray(gumbel_noise(rng, 2, jnp.arange(4), 6), np.float64)
    out, all_true = run(text, q, k, v, rng=rng), np.ones(22, bool)
    for row in range(2):
        arrays = [np.asarray(x, np.float64) for x in (q[row], k[row], sort)]
        weights = contract_rows.sinkhorn_weights(*arrays, all_true, all_true, options=mechanism, noise=noise[row])
        assert_close(out[row], contract.mixed(weights, np.asarray(v[row], np.float64)))
    assert jnp.abs(out - run(text, q, k, v)).max() > 1e-3
    rows = jax.vmap(lambda row: jax.random.fold_in(rng, row))(jnp.arange(2))
    assert_close(run(text, q[1:, :13], k[1:, :13], v[1:, :13], rng=rows[1:]), alone_in_padding(text, q, k, v, rows)[1:])
    with pytest.raises(ValueError, match=r'rng holds \(3,\) keys; it must be one, or one for each of 2 rows'):
        attend(q, k, v, mechanism, learned={'sort': sort}, rng=jax.random.split(rng, 3))


def alone_in_padding(text: str, q: jax.Array, k: jax.Array, v: jax.Array, rngs: jax.Array) -> jax.Array:
    """The first 13 outputs of rows that are padding behind them."""
    segments = jnp.asarray([[1] * 13 + [0] * 9] * 2)
    return run(text, q, k, v, rng=rngs, query_segments=segments, key_segments=segments)[:, :13]


@pytest.mark.parametrize(
    'text, pattern', [('sinkhorn(20, 1)', None), ('sinkhorn(32, 4, cut=1)', None), ('sinkhorn(20, 3, causal=True)', 1)]
)
def test_of_one_block_it_is_full_attention(text: str, pattern: int | None):
    """A block beside itself, or sorted alone, has the weights of that block."""
    q, k, v = inputs(20)[0]
    assert_close(run(text, q, k, v), attend(q, k, v, Softmax(Causal()) if pattern else Softmax()))


def test_a_sort_that_is_sure_puts_one_block_beside_the_own():
    """Blocks 0, 1, 2 read themselves and 1, 2, 0; with cut=1 all read block 1."""
    (q, _, v), order = inputs(12)[0], [1, 2, 0]
    places = np.arange(12).reshape(3, 4)
    k = inputs(12)[0][1].at[..., :3].set(0.0)
    for i in range(3):
        k = k.at[:, places[i], :, i].set(1.0)  # the first three entries tell the sort which block it is
    sort = jnp.zeros((4, 8, 3)).at[:, jnp.arange(3), jnp.asarray(order)].set(30.0)
    out = run('sinkhorn(4, 3)', q, k, v, learned={'sort': sort})
    for i in range(3):
        read = np.concatenate([places[i], places[order[i]]])
        assert_close(out[:, places[i]], attend(q[:, places[i]], k[:, read], v[:, read], Softmax()))
    cut = run('sinkhorn(4, 3, cut=1)', q, k, v, learned={'sort': sort})
    assert_close(cut, attend(q, k[:, 4:8], v[:, 4:8], Softmax()))


@pytest.mark.parametrize('text', SMALL)
def test_weights_are_a_distribution_and_mix_the_values_as_attend_does(text: str):
    q, k, v = inputs(22)[0]
    mechanism = parse_mechanism(text)
    segments = jnp.asarray([[1] * 22, [1] * 9 + [0] * 13])
    options = {'query_segments': segments, 'key_segments': segments, 'learned': drawn_operands(mechanism, 4, 8)}
    weights = quick(functools.partial(attention_weights, mechanism=mechanism))(q, k, **options)
    np.testing.assert_allclose(weights.sum(-1), jnp.broadcast_to(segments[:, None] > 0, (2, 4, 22)), atol=1e-5)
    assert (weights >= 0.0).all()
    assert_close(jnp.einsum('BHLM,BMHK->BLHK', weights, v), run(text, q, k, v, **options))


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
def test_the_causal_form_reads_no_later_token_and_its_gradient_to_them_is_exactly_zero(backend: str):
    """Blocks are left off at every place: a first, an inner and a last token of a block."""
    mechanism, (q, k, v) = parse_mechanism('sinkhorn(4, 6, causal=True)'), inputs(22)[0]
    learned, rng = drawn_operands(mechanism, 4, 8), jax.random.key(2)

    def call(*arrays: jax.Array) -> jax.Array:
        return attend(*arrays, mechanism, learned=learned, backend=backend, rng=rng)

    out = quick(call)(q, k, v)
    gradient = quick(lambda place: jax.grad(lambda *x: jnp.sin(call(*x)[:, place]).sum(), (0, 1, 2))(q, k, v))
    for place in (0, 3, 4, 9, 16, 21):
        later = jnp.arange(22)[None, :, None, None] > place
        changed = quick(call)(*(jnp.where(later, 1.0 - 3.0 * x, x) for x in (q, k, v)))
        np.testing.assert_array_equal(changed[:, : place + 1], out[:, : place + 1])
        gradients = gradient(place)
        assert all(not x[:, place + 1 :].any() for x in gradients)
        assert gradients[2][:, place].all() and (gradients[2][:, 0].all() or place < 4)


@pytest.mark.parametrize('text', ['sinkhorn(6, 9)', 'sinkhorn(6, 9, cut=2)', 'sinkhorn(6, 9, causal=True)'])
def test_bfloat16_stays_near_the_float32_reference(text: str):
    check_bfloat16(text)


def test_dropout_of_slots_drops_its_share_and_keeps_the_mean():
    check_dropout('sinkhorn(4, 6)')


@pytest.mark.parametrize('text', ['sinkhorn(64, 256)', 'sinkhorn(64, 256, causal=True)', 'sinkhorn(64, 256, cut=2)'])
def test_no_array_is_as_large_as_all_pairs(text: str):
    """16,384 positions, forward and backward: the largest array is that of the slots that all queries read."""
    assert largest_array(text, 16_384) <= 2 * 16_384 * 128


@pytest.mark.parametrize(
    'text, line',
    [
        ('sinkhorn(0, 4)', 'sinkhorn block is 0; it must be at least 1'),
        ('sinkhorn(4, 0)', 'sinkhorn blocks is 0; it must be at least 1'),
        ('sinkhorn(4, -2)', 'sinkhorn blocks is -2; it must be at least 1'),
        ('sinkhorn(4, 4, 0)', 'sinkhorn iterations is 0; it must be at least 1'),
        ('sinkhorn(4, 4, temperature=0.0)', 'sinkhorn temperature is 0.0; it must be a number above 0'),
        ('sinkhorn(4, 4, temperature=-0.5)', 'sinkhorn temperature is -0.5; it must be a number above 0'),
        ('sinkhorn(4, 4, temperature=1e999)', 'sinkhorn temperature is inf; it must be a number above 0'),
        ('sinkhorn(4, 4, temperature=True)', 'sinkhorn temperature is True; it must be a number, such as 0.75'),
        ('sinkhorn(4.0, 4)', 'sinkhorn block is 4.0; it must be a whole number'),
        ('sinkhorn(4, 4, cut=0.5)', 'sinkhorn cut is 0.5; it must be a whole number'),
        ('sinkhorn(4, 4, cut=5)', 'sinkhorn cut is 5; it must be at most 4, its blocks'),
        ('sinkhorn(4, 4, cut=-1)', 'sinkhorn cut is -1; it must be at least 0'),
        ('sinkhorn(4, 4, cut=1, causal=True)', 'sinkhorn cut is 1; it must be 0 in the causal form'),
        ('sinkhorn(4, 4, causal=1)', 'sinkhorn causal is 1; it must be True or False'),
        ('sinkhorn(length=9)', r'sinkhorn takes \(block=64, blocks=8, iterations=8, temperature=0.75, cut=0, causal'),
    ],
)
def test_bad_texts_are_named(text: str, line: str):
    with pytest.raises(InputError, match=line):
        parse_mechanism(text)


def test_the_causal_form_goes_by_the_place_in_the_row():
    q, k, v = inputs(20)[0]
    mechanism = parse_mechanism('sinkhorn(4, 6, causal=True)')
    options: dict[str, Any] = {'learned': drawn_operands(mechanism, 4, 8), 'query_positions': jnp.arange(20)[None]}
    with pytest.raises(ValueError, match=r'sinkhorn has no causal form for other positions than 0, 1, \.\.\.'):
        attend(q, k, v, mechanism, **options)
