"""Routing attention against its float64 definition, where it is full attention, and what it does not look at."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal, Window
from efficient_attention.attention.routing.centroids import layer_norm
from efficient_attention.attention.routing.definition import Routing
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention import contract_rows
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.room_checks import check_bfloat16, check_dropout, check_slopes
from tests.attention.test_attend import LENGTHS
from tests.tolerances import assert_close

FORMS = ('routing(7, 40)', 'routing(26, 40, causal=True)', 'routing(26, 40, local_heads=1, window=30)')
FORMS += ('routing(3, 40, local_heads=1, window=64, causal=True)',)
SMALL = ('routing(4, 6)', 'routing(4, 6, causal=True)', 'routing(3, 9, local_heads=1, window=4)')
SMALL += ('routing(3, 9, local_heads=3, window=4, causal=True)',)


def run(text: str, *arrays: jax.Array, **options: Any) -> jax.Array:
    """The fast form, with drawn operands unless others are given."""
    mechanism = parse_mechanism(text)
    options.setdefault('learned', drawn_operands(mechanism, *arrays[0].shape[2:]))
    return quick(functools.partial(attend, mechanism=mechanism))(*arrays, **options)


def members(mechanism: Routing, query: np.ndarray, key: np.ndarray, valid: np.ndarray) -> Any:
    """What each centroid takes by query and by key."""
    local, heads, width = mechanism.local_heads, *query.shape[1:]
    centroids = np.asarray(drawn_operands(mechanism, heads, width)['centroids'], np.float64)[..., :width]
    return tuple(contract_rows.nearest_places(x[:, local:], centroids, valid, mechanism.size) for x in (query, key))


@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize('text', FORMS)
def test_it_is_the_float64_definition_forward_and_in_gradients(text: str, length: int):
    """Two texts and padding in a row; of all gradients the sum along one direction, by a difference of definitions."""
    mechanism, places = parse_mechanism(text), np.arange(length)
    assert isinstance(mechanism, Routing)
    segments = np.where(places < max(1, length - 2), 1 + places // 400, 0)
    q, k, v = inputs(length, batch=1, heads=2)[0]
    learned = drawn_operands(mechanism, 2, 8)
    turn = jnp.cos(jnp.arange(q.size, dtype=jnp.float32)).reshape(q.shape)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        given = jnp.asarray(segments[None], jnp.int32)
        out = attend(q, k, v, mechanism, learned=learned, query_segments=given, key_segments=given)
        return (out * turn).sum(), out

    gradients, out = quick(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
    exact = [np.asarray(x[0], np.float64) for x in (q, k, v)]
    taken = members(mechanism, *exact[:2], segments > 0)
    allowed = np.equal.outer(segments, segments) & (segments > 0)
    allowed = np.tril(allowed) if mechanism.causal else allowed

    def defined(exact: list[np.ndarray]) -> np.ndarray:
        query, key, value = exact
        weights = contract_rows.routing_weights(query, key, taken, allowed, options=mechanism)
        return np.einsum('HLM,MHK->LHK', weights, value)

    assert_close(out[0], defined(exact))
    check_slopes(defined, exact, np.asarray(turn[0], np.float64), gradients)


def test_one_cluster_of_all_tokens_is_full_attention_of_normalised_vectors():
    q, k, v = inputs(20)[0]
    for text, pattern in (
        ('routing(1, 20)', None),
        ('routing(3, 64)', None),
        ('routing(2, 20, causal=True)', Causal()),
    ):
        expected = attend(layer_norm(q), layer_norm(k), v, Softmax() if pattern is None else Softmax(pattern))
        assert_close(run(text, q, k, v), expected)


@pytest.mark.parametrize('window', [1, 4, 7, 19, 64])
def test_local_heads_are_those_of_a_window(window: int):
    q, k, v = inputs(20)[0]
    out = run(f'routing(2, 5, local_heads=3, window={window})', q, k, v)
    assert_close(out[:, :, :3], attend(q, k, v, Softmax(Window(window)))[:, :, :3])
    out = run(f'routing(2, 5, local_heads=2, window={window}, causal=True)', q, k, v)
    assert_close(out[:, :, :2], attend(q, k, v, Softmax(Causal() & Window(window)))[:, :, :2])


def test_a_token_in_no_cluster_reads_nothing_and_one_in_several_has_their_mean():
    """Of one centroid that takes 5 of 20 tokens; then of two alike, whose mean is what one gives."""
    q, k, v = inputs(20)[0]
    learned = drawn_operands(parse_mechanism('routing(1, 5)'), 4, 8)['centroids']
    out = run('routing(1, 5)', q, k, v, learned={'centroids': learned})
    assert ((out != 0.0).any(-1).sum(1) == 5).all()
    twice = jnp.concatenate([learned, learned], axis=1)
    assert_close(run('routing(2, 5)', q, k, v, learned={'centroids': twice}), out)


@pytest.mark.parametrize('text', SMALL)
def test_weights_are_a_distribution_or_nothing_and_mix_the_values_as_attend_does(text: str):
    q, k, v = inputs(22)[0]
    mechanism = parse_mechanism(text)
    segments = jnp.asarray([[1] * 12 + [4] * 10, [1] * 9 + [0] * 13])
    options = {'query_segments': segments, 'key_segments': segments, 'learned': drawn_operands(mechanism, 4, 8)}
    weights = quick(functools.partial(attention_weights, mechanism=mechanism))(q, k, **options)
    total = weights.sum(-1)
    assert (weights >= 0.0).all() and (jnp.minimum(abs(total), abs(total - 1.0)) < 1e-5).all()
    assert not weights[1, :, 9:].any() and (weights[1, :, :9].any(-1).sum(-1) > 2).all()
    assert_close(jnp.einsum('BHLM,BMHK->BLHK', weights, v), run(text, q, k, v, **options))


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
@pytest.mark.parametrize('text', [text for text in SMALL if 'causal' in text])
def test_the_causal_gradient_to_later_tokens_is_exactly_zero(text: str, backend: str):
    """Yet which tokens a centroid takes depends on them, as with LSH."""
    mechanism, arrays = parse_mechanism(text), inputs(22)[0]
    learned = drawn_operands(mechanism, 4, 8)

    def gradient(place: jax.Array) -> tuple:
        def loss(*x: jax.Array) -> jax.Array:
            return jnp.sin(attend(*x, mechanism, learned=learned, backend=backend)[:, place]).sum()

        return jax.grad(loss, (0, 1, 2))(*arrays)

    gradient = quick(gradient)
    for place in (0, 3, 4, 9, 16, 21):
        gradients = gradient(place)
        assert all(not x[:, place + 1 :].any() for x in gradients)
        assert gradients[2][:, place].any()


@pytest.mark.parametrize('text', SMALL)
def test_a_padded_row_is_the_row_alone_whatever_its_neighbours_hold(text: str):
    q, k, v = inputs(20, batch=3)[0]
    segments = jnp.asarray([[7] * 13 + [0] * 7, [1] * 10 + [2] * 10, [0] * 20])
    out = run(text, q, k, v, query_segments=segments, key_segments=segments)
    assert_close(out[:1, :13], run(text, q[:1, :13], k[:1, :13], v[:1, :13]))
    assert not out[0, 13:].any() and out[1].any() and not out[2].any()
    others = [x.at[0, 13:].set(1e3).at[1:].set(-5.0) for x in (q, k, v)]
    changed = run(text, *others, query_segments=segments, key_segments=segments)
    np.testing.assert_array_equal(changed[0], out[0])
    turned = run(text, q[::-1], k[::-1], v[::-1], query_segments=segments[::-1], key_segments=segments[::-1])
    np.testing.assert_array_equal(turned[::-1], out)


def test_no_text_reads_another_and_packed_rows_share_their_clusters():
    """No gradient crosses texts; still tokens of one can push those of another out of a cluster."""
    mechanism, (q, k, v) = parse_mechanism('routing(3, 6)'), inputs(20)[0]
    segments = jnp.asarray([[1] * 9 + [2] * 11] * 2)
    options = {'learned': drawn_operands(mechanism, 4, 8), 'query_segments': segments, 'key_segments': segments}

    def loss(*x: jax.Array) -> jax.Array:
        return jnp.sin(attend(*x, mechanism, **options)[:, :9]).sum()

    assert all(x[:, :9].any() and not x[:, 9:].any() for x in quick(jax.grad(loss, (0, 1, 2)))(q, k, v))


@pytest.mark.parametrize('text', ['routing(5, 12)', 'routing(5, 12, local_heads=2, window=9, causal=True)'])
def test_bfloat16_stays_near_the_float32_reference(text: str):
    check_bfloat16(text)


def test_dropout_drops_its_share_and_keeps_the_mean():
    check_dropout('routing(4, 6, local_heads=2, window=3)')
