"""Tests both levels of a hierarchical model: they equal plain loops over sentences and words, whatever the padding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.sentence_level_encoder import sentence_config
from tests.models.drawn import drawn
from tests.tolerances import assert_close

GRU = ModelConfig(
    width=8,
    layers=1,
    vocab_size=11,
    cell='gru',
    bidirectional=True,
    feed_forward=False,
    token_types=0,
    positions='none',
    init_std=0.5,
    norm_epsilon=1e-5,
    dropout_rate=0.3,
)
WORDS = ModelConfig(width=8, heads=2, layers=2, vocab_size=11, max_length=8, init_std=0.5, norm='pre')
HEAD = HeadConfig(kind='sequence', outputs=3, transform='none', pooling='attention', sentence_layers=1)
LENGTHS = ((4, 2, 5), (3,), (5, 1))  # Words in each sentence of each text.


@functools.cache
def model_of(config: ModelConfig = GRU, **fields: object) -> FineTuningModel:
    head = dataclasses.replace(HEAD, **fields)
    return nnx.merge(*drawn(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0)), std=0.5))


@nnx.jit
def logits_of(model: FineTuningModel, batch: dict[str, jax.Array], rng: jax.Array | None = None) -> jax.Array:
    return model(batch, rng=rng)['logits']


def batch_of(sentences: int = 3, words: int = 5, texts: tuple = LENGTHS) -> dict[str, np.ndarray]:
    """Returns the texts of `LENGTHS`, padded; the amount of padding does not change the words."""
    tokens = np.zeros((len(texts), sentences, words), np.int32)
    segments = np.zeros_like(tokens)
    for row, lengths in enumerate(texts):
        for place, length in enumerate(lengths):
            tokens[row, place, :length] = np.random.default_rng([len(lengths), place]).integers(1, 11, length)
            segments[row, place, :length] = 1
    return {'tokens': tokens, 'segments': segments, 'token_types': np.zeros_like(tokens)}


# ---- plain loops in float64 ----


def array(parameter: nnx.Param) -> np.ndarray:
    return np.asarray(parameter[...], np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru(cell: nnx.Module, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the successive GRU states: r, z = s(W x + b + U h + b'), n = tanh(W x + b + r (U h + b'))."""
    names = ('input', 'recurrent', 'bias', 'recurrent_bias')
    of_input, of_state, bias, state_bias = (array(getattr(cell, name))[0] for name in names)
    h, states = np.zeros(of_state.shape[0]), []
    for x in inputs:
        (r, z, n), (ru, zu, nu) = np.split(x @ of_input + bias, 3), np.split(h @ of_state + state_bias, 3)
        z = sigmoid(z + zu)
        h = (1 - z) * np.tanh(n + sigmoid(r + ru) * nu) + z * h
        states.append(h)
    return states


def layer(stack: nnx.Module, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns norm(x + [forward GRU; backward GRU]) of each vector."""
    module, norm = stack.layers.recurrent, stack.layers.recurrent_norm
    ahead, back = gru(module.forward, inputs), gru(module.backward, inputs[::-1])[::-1]
    sums = [x + np.concatenate(pair) for x, *pair in zip(inputs, ahead, back, strict=True)]
    return [normed(x, array(norm.scale)[0], array(norm.bias)[0]) for x in sums]


def normed(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + GRU.norm_epsilon) * scale + bias


def pooled(pooling: nnx.Module, vectors: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    scores = [
        np.exp(np.tanh(x @ array(pooling.dense.kernel) + array(pooling.dense.bias)) @ array(pooling.query))
        for x in vectors
    ]
    weights = np.array(scores) / sum(scores)
    return sum(one * x for one, x in zip(weights, vectors, strict=True)), weights


def embedded(model: FineTuningModel, token: int) -> np.ndarray:
    table, norm = model.encoder.embeddings.token.embedding, model.encoder.embeddings.norm
    return normed(array(table)[token], array(norm.scale), array(norm.bias))


def test_two_levels_equal_plain_loops():
    model, batch = model_of(), batch_of()
    both = nnx.jit(lambda model, batch: (model(batch)['logits'], model.pooling_weights(batch)))
    found, weights = jax.device_get(both(model, batch))
    for row, lengths in enumerate(LENGTHS):
        sentences = []
        for place, length in enumerate(lengths):
            words = [embedded(model, int(batch['tokens'][row, place, word])) for word in range(length)]
            vector, of_words = pooled(model.pooling, layer(model.encoder.stack, words))
            assert_close(weights['words'][row, place, :length], of_words)
            sentences.append(vector)
        text, of_sentences = pooled(model.sentences.pooling, layer(model.sentences.stack, sentences))
        assert_close(weights['sentences'][row, : len(lengths)], of_sentences)
        assert_close(found[row], text @ array(model.head.out.kernel) + array(model.head.out.bias))
    assert not weights['words'][batch['segments'] == 0].any()


@pytest.mark.parametrize(
    'config, pooling',
    [(GRU, 'mean'), (GRU, 'attention'), (WORDS, 'attention')],
    ids=['recurrent, mean', 'recurrent, attention', 'attention, attention'],
)
def test_padding_changes_nothing_and_texts_may_be_permuted(config: ModelConfig, pooling: str):
    model, order = model_of(config, pooling=pooling), [2, 0, 1]
    alone = np.asarray(logits_of(model, batch_of()))
    assert_close(logits_of(model, batch_of(sentences=6, words=7)), alone)
    assert_close(logits_of(model, jax.tree.map(lambda x: x[order], batch_of())), alone[order])


@pytest.mark.parametrize('config', [GRU, WORDS], ids=['recurrent', 'attention'])
def test_the_order_of_sentences_counts_and_gradients_reach_all_but_padding(config: ModelConfig):
    graph, state = nnx.split(model_of(config, pooling='attention'))

    def loss(state: nnx.State, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits = nnx.merge(graph, state)(batch)['logits']
        return jnp.square(logits).sum(), logits

    run, batch = jax.jit(jax.grad(loss, has_aux=True)), batch_of()
    gradient, logits = run(state, batch)
    _, swapped = run(state, jax.tree.map(lambda x: np.concatenate([x[:1, [1, 0, 2]], x[1:]]), batch))
    moved = np.abs(np.asarray(swapped) - np.asarray(logits)).max(axis=1)
    assert moved[0] > 1e-3 and moved[1:].max() < 1e-6
    table = np.asarray(gradient['encoder']['embeddings']['token']['embedding'][...])
    is_read = np.isin(np.arange(11), batch['tokens'][batch['segments'] > 0])
    assert (np.abs(table).max(axis=1) > 0).tolist() == is_read.tolist()


def test_dropout_is_drawn_for_each_text():
    model, keys = model_of(), jax.random.split(jax.random.key(1), 2)
    same = batch_of(texts=(LENGTHS[0],) * 2)
    dropped = np.asarray(logits_of(model, same, keys))
    assert (dropped[0] != dropped[1]).all()
    np.testing.assert_array_equal(dropped, logits_of(model, same, keys))
    assert_close(logits_of(model, batch_of(texts=LENGTHS[:1]), keys[:1]), dropped[:1])


def test_the_second_levels_layers_are_the_encoders_with_full_attention():
    config = ModelConfig(layers=4, attention='window(2); causal', sharing='all', layer_groups=2, norm='pre', heads=4)
    level = sentence_config(config, 3)
    assert (level.layers, level.attention, level.sharing, level.heads) == (3, 'full', 'none', 4)
    assert sentence_config(dataclasses.replace(config, layer_groups=1), 2).sharing == 'all'
