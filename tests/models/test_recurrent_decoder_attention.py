"""Tests decoders that read the source before or after a step: they equal loops over the papers' equations and do not
leak.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.alignment import cross_weights
from efficient_attention.models.cached_decoding import CachedDecoder, DecodeState
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

WIDTH, VOCABULARY = 8, 16
FIELDS: dict[str, Any] = {
    'width': WIDTH, 'heads': 1, 'feed_forward': False, 'vocab_size': VOCABULARY, 'token_types': 0, 'norm': 'none',
    'residual': False, 'positions': 'none', 'embedding_norm': False, 'tied_output': False, 'shared_table': False,
    'dropout_rate': 0.0, 'attention_dropout_rate': 0.0, 'layers': 1, 'decoder_layers': 1, 'cell': 'gru',
}  # fmt: skip
BAHDANAU: dict[str, Any] = {
    'bidirectional': True, 'state_width': WIDTH, 'source_reading': 'before', 'initial_state': 'map_backward',
    'readout': 'maxout',
}  # fmt: skip
LUONG = {'cell': 'lstm', 'layers': 2, 'decoder_layers': 2, 'source_reading': 'after', 'initial_state': 'copy'}
MODELS: dict[str, dict[str, Any]] = {
    'bahdanau': BAHDANAU | {'score': 'additive'},
    'bahdanau, dot': BAHDANAU,
    'luong': LUONG,
    'luong, fed': LUONG | {'input_feeding': True},
}
SOURCE = np.int32([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]])
TARGET = np.int32([[1, 11, 12, 13], [1, 14, 15, 2]])
ARRAYS = jax.device_put((SOURCE, (SOURCE > 0).astype(np.int32), TARGET, np.ones_like(TARGET)))


@functools.cache
def parts_of(name: str) -> tuple[nnx.GraphDef, dict]:
    config = ModelConfig(**FIELDS | MODELS[name])
    return drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.5)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(graph: nnx.GraphDef, params: dict, *arrays: jax.Array, **options: Any) -> jax.Array:
    return nnx.merge(graph, params)(*arrays, **options)


@functools.cache
def results_of(name: str) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Returns logits [B, L, V], weights [B, H, L, M], and both tables' gradients [V, D] of the logits of row 1, place
    1.
    """
    graph, params = parts_of(name)

    def total(tables: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        model = nnx.merge(graph, params)
        model.encoder.embeddings.token.embedding = nnx.Param(tables[0])
        model.decoder.embeddings.token.embedding = nnx.Param(tables[1])
        logits, weights = model(*ARRAYS), cross_weights(model.decoder, *ARRAYS[2:], model.encode(*ARRAYS[:2]))
        return (logits[1, 1] * jnp.arange(1.0, VOCABULARY + 1)).sum(), (logits, weights)

    tables = tuple(params[side]['embeddings']['token']['embedding'] for side in ('encoder', 'decoder'))
    gradients, (logits, weights) = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(tables))
    return logits, weights, gradients


# ---- the equations, one position after another, in float64 ----


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru(p: dict, x: np.ndarray, h: np.ndarray, more: np.ndarray | float = 0.0) -> np.ndarray:
    a, b = x @ p['input'] + p['bias'] + more, h @ p['recurrent'] + p['recurrent_bias']
    (ar, az, an), (br, bz, bn) = np.split(a, 3), np.split(b, 3)
    z = sigmoid(az + bz)
    return (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h


def lstm(p: dict, x: np.ndarray, state: tuple, more: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    i, f, g, o = np.split(x @ p['input'] + p['bias'] + state[0] @ p['recurrent'] + more, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def dense(p: dict, x: np.ndarray) -> np.ndarray:
    return x @ p['kernel'] + p.get('bias', 0.0)


def attention(p: dict, query: np.ndarray, read_MD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    key_MK, query_K = dense(p['key'], read_MD), dense(p['query'], query)
    if 'additive' in p:
        scores_M = np.tanh(key_MK + query_K) @ jax.tree.leaves(p['additive'])[0].reshape(-1)
    else:
        scores_M = key_MK @ query_K / np.sqrt(WIDTH)
    weights_M = np.exp(scores_M - scores_M.max())
    weights_M /= weights_M.sum()
    return dense(p['out'], weights_M @ dense(p['value'], read_MD)), weights_M


def bahdanau_loop(params: dict, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits [L, V] and weights [L, M] of one pair: Bahdanau et al., arXiv 1409.0473, A.1 and A.2."""
    encoder, decoder = params['encoder'], params['decoder']
    cells = jax.tree.map(lambda leaf: leaf[0], encoder['stack']['layers']['recurrent'])
    x_MD, zeros = encoder['embeddings']['token']['embedding'][source], np.zeros(WIDTH)
    ahead, back = [], []
    for states, cell, words in ((ahead, cells['forward'], x_MD), (back, cells['backward'], x_MD[::-1])):
        for word in words:
            states.append(gru(cell, word, states[-1] if states else zeros))
    read_MD = dense(cells['out'], np.concatenate([ahead, back[::-1]], axis=1))
    s, out, weights = np.tanh(back[-1] @ params['initial']['kernel'][0, 0]), [], []
    cell, reader = jax.tree.map(lambda leaf: leaf[0], decoder['stack']['layers'])['recurrent'], decoder['source']
    for word in decoder['embeddings']['token']['embedding'][target]:
        context, weights_M = attention(reader['attention'], s, read_MD)
        s = gru(cell['forward'], word, s, dense(reader['fed'], context))
        t = dense(reader['readout'], np.concatenate([s, word, context]))
        out.append(dense(decoder['head']['dense'], t.reshape(-1, 2).max(axis=1)))
        weights.append(weights_M)
    return np.stack(out), np.stack(weights)


def luong_loop(params: dict, source: np.ndarray, target: np.ndarray, *, is_fed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits [L, V] and weights [L, M] of one pair: Luong et al., arXiv 1508.04025, section 3."""
    encoder, decoder = params['encoder'], params['decoder']
    states = [(np.zeros(WIDTH), np.zeros(WIDTH))] * 2

    def through(layers: list, word: np.ndarray, more: np.ndarray | float = 0.0) -> np.ndarray:
        for number, layer in enumerate(layers):
            states[number] = lstm(layer, word, states[number], more if number == 0 else 0.0)
            word = states[number][0]
        return word

    def layers_of(side: dict) -> list:
        cells = side['stack']['layers']['recurrent']['forward']
        return [jax.tree.map(lambda leaf, number=number: leaf[number], cells) for number in range(2)]

    read_MD = np.stack(
        [through(layers_of(encoder), word) for word in encoder['embeddings']['token']['embedding'][source]]
    )
    reader, joined, out, weights = decoder['source'], np.zeros(WIDTH), [], []
    for word in decoder['embeddings']['token']['embedding'][target]:
        h = through(layers_of(decoder), word, dense(reader['fed'], joined) if is_fed else 0.0)
        context, weights_M = attention(reader['attention'], h, read_MD)
        joined = np.tanh(dense(reader['joined'], np.concatenate([context, h])))
        out.append(dense(decoder['head']['dense'], joined))
        weights.append(weights_M)
    return np.stack(out), np.stack(weights)


LOOPS = {
    'bahdanau': bahdanau_loop,
    'bahdanau, dot': bahdanau_loop,
    'luong': functools.partial(luong_loop, is_fed=False),
    'luong, fed': functools.partial(luong_loop, is_fed=True),
}


@pytest.mark.parametrize('name', MODELS)
def test_logits_and_weights_are_those_of_a_loop_over_the_equations(name: str):
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parts_of(name)[1])
    found, weights, _ = results_of(name)
    for row, length in enumerate((5, 3)):
        logits, expected = LOOPS[name](exact, SOURCE[row, :length], TARGET[row])
        assert_close(found[row], logits)
        assert_close(weights[row, 0, :, :length], expected)
        assert not weights[row, 0, :, length:].any()


# ---- which tokens it may read ----


@pytest.mark.parametrize('name', MODELS)
def test_no_gradient_reaches_later_targets_or_the_source_s_padding(name: str):
    of_source, of_target = (np.linalg.norm(one, axis=1) for one in results_of(name)[2])
    # Row 1 reads the source 8, 9, 10 and padding (id 0). Its target at this place may read 1 and 14, not 15 and 2.
    assert of_source[[8, 9, 10]].all() and not of_source[0]
    assert of_target[[1, 14]].all() and not of_target[[15, 2]].any()


@pytest.mark.parametrize('name', ['bahdanau', 'luong, fed'])
def test_gradients_are_finite_and_recomputing_them_changes_nothing(name: str):
    # A bias of keys has no gradient, because softmax cancels it.
    fields = FIELDS | MODELS[name] | {'attention_bias': False}
    (graph, params), (again, _) = (
        drawn(lambda remat=remat: EncoderDecoder(ModelConfig(**fields | {'remat': remat}), rngs=nnx.Rngs(0)), std=0.5)
        for remat in ('none', 'full')
    )

    def loss(graph: nnx.GraphDef, params: dict) -> jax.Array:
        return jnp.square(nnx.merge(graph, params)(*ARRAYS, rng=jax.random.key(0))).mean()

    both = jax.jit(lambda params: [jax.grad(functools.partial(loss, one))(params) for one in (graph, again)])
    gradient, remade = jax.device_get(both(params))
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(gradient))
    assert_close(remade, gradient, gradient=True)


@pytest.mark.parametrize('name', ['bahdanau', 'luong', 'luong, fed'])
def test_packed_pairs_are_those_in_rows_of_their_own(name: str):
    config = ModelConfig(**FIELDS | MODELS[name] | {'initial_state': 'zeros'})
    model = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.5)
    segments = np.int32([[1, 1, 1, 2, 2, 2, 0], *[[1, 1, 1, 0, 0, 0, 0]] * 2])  # two pairs in one row, then in two rows
    source = np.int32([[3, 4, 5, 6, 7, 8, 0], [3, 4, 5, 0, 0, 0, 0], [6, 7, 8, 0, 0, 0, 0]])
    target = np.int32([[1, 11, 12, 1, 14, 15, 0], [1, 11, 12, 0, 0, 0, 0], [1, 14, 15, 0, 0, 0, 0]])
    packed, *separate = np.asarray(logits_of(*model, source, segments, target, segments))
    assert_close(packed[:6], np.concatenate([row[:3] for row in separate]))


@pytest.mark.parametrize('name', ['bahdanau, dot', 'luong', 'luong, fed'])
def test_keys_that_are_drawn_in_training_come_with_their_log_probabilities(name: str):
    """Each target's log-probability is the one of its step; in the search the best key is read, so nothing is drawn."""
    config = ModelConfig(**FIELDS | MODELS[name] | {'cross_attention': 'hard(full, sampled=True)'})
    graph, params = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.5)

    def draws(query: jax.Array, rng: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, params)
        model.decoder.source.attention.query.kernel[...] = query
        found = model.hidden_and_draws(*ARRAYS, rng=rng)[1]
        return found.sum(), found

    run, query = jax.jit(jax.grad(draws, has_aux=True)), params['decoder']['source']['attention']['query']['kernel']
    (gradient, first), (_, other) = (jax.device_get(run(query, jax.random.key(number))) for number in (0, 1))
    assert first.shape == TARGET.shape and (first < 0).all() and (first != other).any()
    assert np.isfinite(gradient).all() and gradient.any()


# ---- dropout ----


def test_dropout_is_of_every_place_and_of_the_weights():
    """Rows with equal dropout keys are equal at any place in the batch; each dropout rate by itself changes the
    logits.
    """
    keys = jax.random.split(jax.random.key(1), 2)
    for rates in ({'dropout_rate': 0.5}, {'attention_dropout_rate': 0.5}, {'state_dropout_rate': 0.5}):
        config = ModelConfig(**FIELDS | BAHDANAU | rates)
        model = drawn(lambda config=config: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.5)
        dropped = np.asarray(logits_of(*model, *ARRAYS, rng=keys))
        assert np.abs(dropped - results_of('bahdanau, dot')[0]).max() > 1e-2
        assert_close(logits_of(*model, *(x[::-1] for x in ARRAYS), rng=keys[::-1]), dropped[::-1])


def test_a_state_s_mask_is_the_same_at_all_positions_of_either_form():
    """If a decoder's fed-back input has a matrix of zeros, step by step it equals the decoder that reads all targets at
    once.
    """
    fields = FIELDS | MODELS['luong'] | {'state_dropout_rate': 0.5}
    at_once = drawn(lambda: EncoderDecoder(ModelConfig(**fields), rngs=nnx.Rngs(0)), std=0.5)
    graph, params = drawn(
        lambda: EncoderDecoder(ModelConfig(**fields | {'input_feeding': True}), rngs=nnx.Rngs(0)), std=0.5
    )
    source = at_once[1]['decoder']['source'] | {'fed': jax.tree.map(np.zeros_like, params['decoder']['source']['fed'])}
    params = at_once[1] | {'decoder': at_once[1]['decoder'] | {'source': source}}
    keys = jax.random.split(jax.random.key(1), 2)
    assert_close(logits_of(graph, params, *ARRAYS, rng=keys), logits_of(*at_once, *ARRAYS, rng=keys))


def test_half_precision_is_near_single_precision():
    graph, params = parts_of('bahdanau')
    config = dataclasses.replace(nnx.merge(graph, params).config, dtype='bfloat16')
    half, _ = drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
    exact = results_of('bahdanau')[0]
    scale = np.abs(exact).max()  # Sums of large numbers may be small.
    assert_close(np.asarray(logits_of(half, params, *ARRAYS)) / scale, exact / scale, dtype='bfloat16')


def test_layers_that_do_not_read_the_source_have_no_taps():
    decoder = nnx.merge(*parts_of('bahdanau')).decoder
    line = "^model.source_reading is 'before'; layer activations are available only for 'layers' and 'state'$"
    with pytest.raises(InputError, match=line):
        decoder.with_layer_activations(*ARRAYS[2:])
    with pytest.raises(InputError, match=line):
        CachedDecoder(decoder, 4).with_layer_activations(DecodeState((), jnp.zeros(2, jnp.int32)), TARGET)
