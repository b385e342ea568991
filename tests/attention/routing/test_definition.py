"""Tests routing attention against its float64 definition, against full attention, and that it reads only allowed
tokens.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal, Window
from efficient_attention.attention.routing.centroids import layer_norm
from efficient_attention.attention.routing.definition import Routing
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention import contract_rows
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.implementation_checks import check_bfloat16, check_dropout, check_slopes
from tests.tolerances import assert_close

FORMS = ('routing(7, 40)', 'routing(26, 40, causal=True)', 'routing(26, 40, local_heads=1, window=30)')
FORMS += ('routing(3, 40, local_heads=1, window=64, causal=True)',)
# At 1 and 40 tokens each cluster has all tokens; longer rows have several clusters or several texts.
LENGTHS = (1, 40, 65, 325)
SMALL = ('routing(4, 6)', 'routing(4, 6, causal=True)', 'routing(3, 9, local_heads=1, window=4)')
SMALL += ('routing(3, 9, local_heads=3, window=4, causal=True)',)


def run(text: str, *arrays: jax.Array, **options: Any) -> jax.Array:
    """Computes the fast form, with random learned operands unless others are given."""
    options.setdefault('learned', learned_by(text, *arrays[0].shape[2:]))
    return compiled(parse_mechanism(text))(*arrays, **options)


@functools.cache
def compiled(mechanism: Mechanism) -> Callable:
    return quick(functools.partial(attend, mechanism=mechanism))


@functools.cache
def learned_by(text: str, heads: int = 4, width: int = 8) -> dict[str, jax.Array]:
    return drawn_operands(parse_mechanism(text), heads, width)


def members(mechanism: Routing, query: np.ndarray, key: np.ndarray, valid: np.ndarray) -> Any:
    """Returns the queries and the keys that each centroid takes."""
    local, heads, width = mechanism.local_heads, *query.shape[1:]
    centroids = np.asarray(drawn_operands(mechanism, heads, width)['centroids'], np.float64)[..., :width]
    return tuple(contract_rows.nearest_places(x[:, local:], centroids, valid, mechanism.size) for x in (query, key))


@pytest.mark.parametrize('length', LENGTHS)
@pytest.mark.parametrize('text', FORMS)
def test_it_is_the_float64_definition_forward_and_in_gradients(text: str, length: int):
    """A row has two texts and padding; gradients are compared along one direction with a finite difference of the
    definition.
    """
    mechanism, places = parse_mechanism(text), np.arange(length)
    assert isinstance(mechanism, Routing)
    segments = np.where(places < max(1, length - 2), 1 + places // 200, 0)
    q, k, v = inputs(length, batch=1, heads=2)[0]
    learned = learned_by(text, heads=2)
    turn = np.cos(np.arange(q.size, dtype=np.float32)).reshape(q.shape)

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
        softmax = Softmax() if pattern is None else Softmax(pattern)
        expected = quick(lambda q, k, v, softmax=softmax: attend(layer_norm(q), layer_norm(k), v, softmax))(q, k, v)
        assert_close(run(text, q, k, v), expected)


@pytest.mark.parametrize('window', [1, 4, 64])
def test_local_heads_are_those_of_a_window(window: int):
    arrays = inputs(20)[0]
    for local, text, pattern in ((3, '', Window(window)), (2, ', causal=True', Causal() & Window(window))):
        out = np.asarray(run(f'routing(2, 5, local_heads={local}, window={window}{text})', *arrays))
        expected = np.asarray(compiled(Softmax(pattern))(*arrays))
        assert_close(out[:, :, :local], expected[:, :, :local])


def test_a_token_in_no_cluster_reads_nothing_and_one_in_several_has_their_mean():
    """One centroid takes 5 of 20 tokens, the others read nothing; two equal centroids give the same mean."""
    q, k, v = inputs(20)[0]
    learned = np.asarray(learned_by('routing(1, 5)')['centroids'])
    out = np.asarray(run('routing(1, 5)', q, k, v, learned={'centroids': learned}))
    assert ((out != 0.0).any(-1).sum(1) == 5).all()
    twice = np.concatenate([learned, learned], axis=1)
    assert_close(run('routing(2, 5)', q, k, v, learned={'centroids': twice}), out)


@pytest.mark.parametrize('text', SMALL)
def test_weights_are_a_distribution_or_nothing_and_mix_the_values_as_attend_does(text: str):
    q, k, v = inputs(22)[0]
    segments = np.asarray([[1] * 12 + [4] * 10, [1] * 9 + [0] * 13], np.int32)
    options = {'query_segments': segments, 'key_segments': segments, 'learned': learned_by(text)}
    weights_of = quick(functools.partial(attention_weights, mechanism=parse_mechanism(text)))
    weights = np.asarray(weights_of(q, k, **options))
    total = weights.sum(-1)
    assert (weights >= 0.0).all() and (np.minimum(abs(total), abs(total - 1.0)) < 1e-5).all()
    assert not weights[1, :, 9:].any() and (weights[1, :, :9].any(-1).sum(-1) > 2).all()
    assert_close(np.einsum('BHLM,BMHK->BLHK', weights, v), run(text, q, k, v, **options))


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
@pytest.mark.parametrize('text', [text for text in SMALL if 'causal' in text])
def test_the_causal_gradient_to_later_tokens_is_exactly_zero(text: str, backend: str):
    """Later tokens get no gradient, although they influence which tokens a centroid takes, as in LSH attention."""
    mechanism, arrays, learned = parse_mechanism(text), inputs(22)[0], learned_by(text)

    def gradient(place: jax.Array) -> tuple:
        def loss(*x: jax.Array) -> jax.Array:
            return jnp.sin(attend(*x, mechanism, learned=learned, backend=backend)[:, place]).sum()

        return jax.grad(loss, (0, 1, 2))(*arrays)

    gradient = quick(gradient)
    for place in (0, 3, 4, 9, 16, 21):
        gradients = jax.device_get(gradient(place))
        assert all(not x[:, place + 1 :].any() for x in gradients)
        assert gradients[2][:, place].any()


@pytest.mark.parametrize('text', SMALL)
def test_a_padded_row_is_the_row_alone_whatever_its_neighbours_hold(text: str):
    arrays = tuple(np.asarray(x) for x in inputs(20, batch=3)[0])
    segments = np.asarray([[7] * 13 + [0] * 7, [1] * 10 + [2] * 10, [0] * 20], np.int32)

    def out_of(arrays: Iterable[np.ndarray], segments: np.ndarray) -> np.ndarray:
        return np.asarray(run(text, *arrays, query_segments=segments, key_segments=segments))

    out = out_of(arrays, segments)
    assert_close(out[:1, :13], run(text, *(x[:1, :13] for x in arrays)))
    assert not out[0, 13:].any() and out[1].any() and not out[2].any()
    others = [np.where((segments == 7)[..., None, None], x, -5.0).astype(np.float32) for x in arrays]
    for x in others:
        x[0, 13:] = 1e3
    np.testing.assert_array_equal(out_of(others, segments)[0], out[0])
    np.testing.assert_array_equal(out_of((x[::-1] for x in arrays), segments[::-1])[::-1], out)


def test_no_text_reads_another_and_packed_rows_share_their_clusters():
    """No gradient crosses texts; still, tokens of one text can push tokens of another out of a cluster."""
    text, (q, k, v) = 'routing(3, 6)', inputs(20)[0]
    segments = jnp.asarray([[1] * 9 + [2] * 11] * 2)
    options = {'learned': learned_by(text), 'query_segments': segments, 'key_segments': segments}

    def loss(*x: jax.Array) -> jax.Array:
        return jnp.sin(attend(*x, parse_mechanism(text), **options)[:, :9]).sum()

    gradients = jax.device_get(quick(jax.grad(loss, (0, 1, 2)))(q, k, v))
    assert all(x[:, :9].any() and not x[:, 9:].any() for x in gradients)


@pytest.mark.parametrize('text', ['routing(5, 12)', 'routing(5, 12, local_heads=2, window=9, causal=True)'])
def test_bfloat16_stays_near_the_float32_reference(text: str):
    check_bfloat16(text)


def test_dropout_drops_its_share_and_keeps_the_mean():
    check_dropout('routing(4, 6, local_heads=2, window=3)')
