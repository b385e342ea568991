"""Tests Sinkhorn attention against its float64 definition, against full attention, and that it reads only allowed
tokens.
"""

import functools
from collections.abc import Callable
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
from tests.attention.implementation_checks import check_bfloat16, check_definition, check_dropout, largest_array
from tests.tolerances import assert_close

FORMS = ('sinkhorn(40, 9)', 'sinkhorn(40, 9, cut=2)', 'sinkhorn(40, 9, causal=True)')
# The lengths are within a block, exactly one block, two blocks, and as many as the sort allows.
LENGTHS = (1, 40, 65, 325)
SMALL = ('sinkhorn(4, 6)', 'sinkhorn(4, 6, cut=2)', 'sinkhorn(4, 6, causal=True)')


def run(text: str, *arrays: jax.Array, **options: Any) -> jax.Array:
    """Computes the fast form, with random learned operands unless others are given."""
    options.setdefault('learned', learned_by(text, *arrays[0].shape[2:]))
    return compiled(text)(*arrays, **options)


@functools.cache
def compiled(text: str, backend: str = 'auto') -> Callable:
    return quick(functools.partial(attend, mechanism=parse_mechanism(text), backend=backend))


@functools.cache
def learned_by(text: str, heads: int = 4, width: int = 8) -> dict[str, jax.Array]:
    return drawn_operands(parse_mechanism(text), heads, width)


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
    """The row ends inside a block, so that some of the last sorted slots have hardly any share."""
    mechanism, segments = parse_mechanism(text), jnp.asarray((np.arange(16) < 10)[None], jnp.int32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, sort: jax.Array) -> jax.Array:
        options: dict[str, Any] = {'query_segments': segments, 'key_segments': segments, 'learned': {'sort': sort}}
        return attend(q, k, v, mechanism, **options).sum()

    gradients_of = quick(jax.grad(loss, (0, 1, 2, 3)))
    for draw in (0, 2, 3, 7, 13):  # Some of these draws gave NaN before sums of shares had a lower bound.
        *arrays, sort = np.asarray(jax.random.normal(jax.random.key(draw), (4, 1, 16, 2, 8)))
        for scale in (20.0, 30.0, 100.0):
            gradients = gradients_of(*arrays, np.float32(scale / np.sqrt(32)) * sort[0, :8, :, :4].swapaxes(0, 1))
            assert all(np.isfinite(gradient).all() for gradient in jax.device_get(gradients))


@pytest.mark.parametrize('dtype', [jnp.float16, jnp.bfloat16])
def test_shares_of_16_bits_cancel_where_a_slot_has_hardly_any(dtype: Any):
    """A sharp sort of a row that ends inside a block gives tiny shares, whose 16-bit rounding must not become
    gradients.
    """
    mechanism = parse_mechanism('sinkhorn(4, 4, temperature=0.1)')
    q, k, v = (jax.random.normal(jax.random.key(seed), (1, 13, 1, 8)).astype(dtype) for seed in (0, 1, 2))
    sort = 8.0 * np.asarray(drawn_operands(mechanism, 1, 8)['sort'])

    def loss(k: jax.Array, sort: jax.Array, backend: str) -> jax.Array:
        out = attend(q, k, v, mechanism, learned={'sort': sort}, backend=backend)
        return jnp.square(out.astype(jnp.float32)).sum()

    found, expected = (
        [np.asarray(x, np.float32) for x in quick(jax.grad(functools.partial(loss, backend=backend), (0, 1)))(k, sort)]
        for backend in ('auto', 'reference')
    )
    assert np.abs(expected[0]).max() > 1.0 and np.abs(expected[1]).max() < 0.01
    assert np.abs(found[0] - expected[0]).max() < 0.1 and np.abs(found[1] - expected[1]).max() < 0.01


@pytest.mark.parametrize('backend', ['reference', 'auto'])
def test_behind_padding_the_cut_takes_the_first_places_with_tokens(backend: str):
    text = 'sinkhorn(4, 6, cut=1)'
    (q, k, v), learned = inputs(16)[0], learned_by(text)
    for tokens in (slice(8, 16), slice(5, 14), slice(0, 6)):
        valid = np.zeros(16, bool)
        valid[tokens] = True
        segments = np.asarray([valid] * 2, np.int32)
        options = {'query_segments': segments, 'key_segments': segments, 'learned': learned}
        out = compiled(text, backend)(q, k, v, **options)
        for row, weights in enumerate(weights_by_definition(text, q, k, valid)):
            np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(valid, (4, 16)))
            assert_close(out[row], contract.mixed(weights, np.asarray(v, np.float64)[row]))


def weights_by_definition(text: str, q: jax.Array, k: jax.Array, valid: np.ndarray, noise: Any = None) -> list:
    """Returns the definition's weights of each row, with each row's noise."""
    query, key, sort = (np.asarray(x, np.float64) for x in (q, k, learned_by(text)['sort']))
    of_row = functools.partial(contract_rows.sinkhorn_weights, options=parse_mechanism(text))
    return [
        of_row(query[row], key[row], sort, valid, valid, **({} if noise is None else {'noise': noise[row]}))
        for row in range(len(query))
    ]


@pytest.mark.parametrize('text', SMALL)
def test_noise_of_the_key_is_that_of_the_definition_and_there_is_none_without(text: str):
    (q, k, v), rng = map(np.asarray, inputs(22)[0]), jax.random.key(9)
    rows = jax.vmap(lambda row: jax.random.fold_in(rng, row))(np.arange(2))
    noise = np.asarray(quick(lambda rng: gumbel_noise(rng, 2, jnp.arange(4), 6))(rng), np.float64)
    out = np.asarray(run(text, q, k, v, rng=rng))
    for row, weights in enumerate(weights_by_definition(text, q, k, np.ones(22, bool), noise)):
        assert_close(out[row], contract.mixed(weights, np.asarray(v[row], np.float64)))
    assert np.abs(out - run(text, q, k, v)).max() > 1e-3
    assert_close(run(text, q[1:, :13], k[1:, :13], v[1:, :13], rng=rows[1:]), alone_in_padding(text, q, k, v, rows)[1:])
    with pytest.raises(ValueError, match=r'rng has keys of shape \(3,\); it must be one key, or one per row \(2\)'):
        run(text, q, k, v, rng=jax.random.split(rng, 3))


def alone_in_padding(text: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, rngs: jax.Array) -> np.ndarray:
    """Returns the first 13 outputs of rows whose other tokens are padding."""
    segments = np.asarray([[1] * 13 + [0] * 9] * 2, np.int32)
    return np.asarray(run(text, q, k, v, rng=rngs, query_segments=segments, key_segments=segments))[:, :13]


@pytest.mark.parametrize(
    'text, pattern', [('sinkhorn(20, 1)', None), ('sinkhorn(32, 4, cut=1)', None), ('sinkhorn(20, 3, causal=True)', 1)]
)
def test_of_one_block_it_is_full_attention(text: str, pattern: int | None):
    """A block next to itself, or only as the sorted block, has the weights of full attention in that block."""
    q, k, v = inputs(20)[0]
    expected = quick(functools.partial(attend, mechanism=Softmax(Causal()) if pattern else Softmax()))(q, k, v)
    assert_close(run(text, q, k, v), expected)


def test_a_sort_that_is_sure_puts_one_block_beside_the_own():
    """Blocks 0, 1, 2 read themselves and blocks 1, 2, 0; with cut=1 all read block 1."""
    (q, k, v), order = map(np.array, inputs(12)[0]), [1, 2, 0]
    places = np.arange(12).reshape(3, 4)
    k[..., :3] = 0.0
    sort = np.zeros((4, 8, 3), np.float32)
    for i in range(3):
        k[:, places[i], :, i] = 1.0  # The first three entries of a key tell the sort the number of its block.
        sort[:, i, order[i]] = 30.0
    full = quick(functools.partial(attend, mechanism=Softmax()))
    out = np.asarray(run('sinkhorn(4, 3)', q, k, v, learned={'sort': sort}))
    for i in range(3):
        read = np.concatenate([places[i], places[order[i]]])
        assert_close(out[:, places[i]], full(q[:, places[i]], k[:, read], v[:, read]))
    cut = run('sinkhorn(4, 3, cut=1)', q, k, v, learned={'sort': sort})
    assert_close(cut, full(q, k[:, 4:8], v[:, 4:8]))


@pytest.mark.parametrize('text', SMALL)
def test_weights_are_a_distribution_and_mix_the_values_as_attend_does(text: str):
    q, k, v = inputs(22)[0]
    segments = np.asarray([[1] * 22, [1] * 9 + [0] * 13], np.int32)
    options = {'query_segments': segments, 'key_segments': segments, 'learned': learned_by(text)}
    weights_of = quick(functools.partial(attention_weights, mechanism=parse_mechanism(text)))
    weights = np.asarray(weights_of(q, k, **options))
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(segments[:, None] > 0, (2, 4, 22)), atol=1e-5)
    assert (weights >= 0.0).all()
    assert_close(np.einsum('BHLM,BMHK->BLHK', weights, v), run(text, q, k, v, **options))


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
def test_the_causal_form_reads_no_later_token_and_its_gradient_to_them_is_exactly_zero(backend: str):
    """The changed later tokens begin at every place: at a first, an inner and a last token of a block."""
    text, (q, k, v), rng = 'sinkhorn(4, 6, causal=True)', map(np.asarray, inputs(22)[0]), jax.random.key(2)

    def call(*arrays: jax.Array) -> jax.Array:
        return attend(*arrays, parse_mechanism(text), learned=learned_by(text), backend=backend, rng=rng)

    def output_at(place: int, *arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = call(*arrays)
        return jnp.sin(out[:, place]).sum(), out

    gradients_at = quick(jax.grad(output_at, (1, 2, 3), has_aux=True))
    for place in (0, 3, 4, 9, 16, 21):
        gradients, out = jax.device_get(gradients_at(place, q, k, v))
        later = np.arange(22)[None, :, None, None] > place
        changed = gradients_at(place, *(np.where(later, 1.0 - 3.0 * x, x) for x in (q, k, v)))[1]
        np.testing.assert_array_equal(np.asarray(changed)[:, : place + 1], out[:, : place + 1])
        assert all(not x[:, place + 1 :].any() for x in gradients)
        assert gradients[2][:, place].all() and (gradients[2][:, 0].all() or place < 4)


@pytest.mark.parametrize('text', ['sinkhorn(6, 9)', 'sinkhorn(6, 9, cut=2)', 'sinkhorn(6, 9, causal=True)'])
def test_bfloat16_stays_near_the_float32_reference(text: str):
    check_bfloat16(text)


def test_dropout_of_slots_drops_its_share_and_keeps_the_mean():
    check_dropout('sinkhorn(4, 6)')


@pytest.mark.parametrize('text', ['sinkhorn(64, 256)', 'sinkhorn(64, 256, causal=True)', 'sinkhorn(64, 256, cut=2)'])
def test_no_array_is_as_large_as_all_pairs(text: str):
    """At 16,384 positions, the largest array of the forward and backward pass is the one of all slots that queries
    read.
    """
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
