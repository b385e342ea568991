"""Tests of beam search with real decoders: caches follow the hypotheses; other rows and padding change nothing."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.beam_search import Hypotheses, find_best_texts, make_cached_decoder, read_prompts
from efficient_attention.inference.search_settings import SearchSettings
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.inference.test_beam_search import ALL, END, WORDS, Text, exhaustive, texts_of, words_alone
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SIZES: dict[str, Any] = {
    'width': 8, 'heads': 2, 'vocab_size': 6, 'token_types': 0, 'max_length': 16, 'norm': 'pre', 'layers': 1,
    'attention_dropout_rate': 0.0, 'dropout_rate': 0.0, 'feed_forward_width': 16,
}  # fmt: skip
PAIR = ModelConfig(**SIZES, decoder_layers=2, decoder_attention='causal & window(3); causal', positions='learned')
RECURRENT = SIZES | {'heads': 1, 'decoder_layers': 1, 'feed_forward': False, 'positions': 'none', 'norm': 'none'}
RECURRENT |= {'residual': False, 'bidirectional': True, 'state_width': 8, 'feed_forward_width': 0}
BAHDANAU: dict[str, Any] = {'cell': 'gru', 'source_reading': 'before', 'initial_state': 'map_backward'}
BAHDANAU |= {'score': 'additive', 'readout': 'maxout'}
PAIRS = {
    'pair': PAIR,
    'bahdanau': ModelConfig(**RECURRENT | BAHDANAU),
    'luong': ModelConfig(**RECURRENT | {'cell': 'lstm', 'source_reading': 'after', 'input_feeding': True}),
}
GPT = ModelConfig(**SIZES | {'attention': 'favor(8, causal=True)', 'positions': 'sinusoidal'})
SOURCE = np.asarray([[2, 3, 4, 5, 1], [5, 3, 1, 0, 0]], np.int32)
PROMPT = np.asarray([[2, 3, 4], [5, 0, 0]], np.int32)


@functools.cache
def model_of(kind: str) -> tuple[nnx.GraphDef, dict]:
    if kind in PAIRS:
        std = 1.0 if kind == 'pair' else 0.6  # Without norms, larger parameters make a single text probable.
        return drawn(lambda: EncoderDecoder(PAIRS[kind], rngs=nnx.Rngs(0)), std=std)
    return drawn(lambda: Decoder(GPT, rngs=nnx.Rngs(0)), std=1.0)


@functools.partial(jax.jit, static_argnames=('kind', 'search'))
def search_model(
    kind: str, params: dict, tokens: jax.Array, segments: jax.Array, search: SearchSettings
) -> tuple[Hypotheses, jax.Array]:
    """Returns the best continuations of prompts, or for an encoder-decoder the best targets of sources."""
    model, rows = nnx.merge(model_of(kind)[0], params), len(tokens)
    if kind in PAIRS:
        other, prompt = model.encode(tokens, segments), jnp.zeros((rows, 1), jnp.int32)
        cached = make_cached_decoder(model.decoder, 1, search)
        begin = read_prompts(cached, prompt, jnp.ones_like(prompt), other)
    else:
        cached = make_cached_decoder(model, tokens.shape[1], search)
        begin = read_prompts(cached, tokens, segments)
    return find_best_texts(cached, begin, search, words_alone(rows, search.max_tokens))


def found_by(
    kind: str, tokens: np.ndarray, lengths: list[int], search: SearchSettings
) -> list[list[tuple[Text, float]]]:
    segments = (np.arange(tokens.shape[1])[None] < np.asarray(lengths)[:, None]).astype(np.int32)
    params = model_of(kind)[1]
    return texts_of(search_model(kind, params, jnp.asarray(tokens), jnp.asarray(segments), search)[0])


@functools.partial(jax.jit, static_argnames='kind')
def whole(kind: str, params: dict, source: jax.Array, tokens: jax.Array) -> jax.Array:
    """Returns log-probabilities of all token rows, in one call without caches; encoder-decoders read one source."""
    model, ones = nnx.merge(model_of(kind)[0], params), jnp.ones_like(tokens)
    if kind in PAIRS:
        source = jnp.repeat(source, len(tokens), axis=0)
        return jax.nn.log_softmax(model(source, jnp.ones_like(source), tokens, ones))
    return jax.nn.log_softmax(model(tokens, ones))


def next_of_model(kind: str, row: np.ndarray, length: int) -> Any:
    """Returns a function from a text to the log-probabilities of its next token, computed without caches."""
    strings = np.asarray(list(itertools.product(WORDS, repeat=length - 1)), np.int32)
    before = np.zeros((1, 1), np.int32) if kind in PAIRS else row[None]
    read = np.concatenate([before.repeat(len(strings), 0), strings], axis=1)
    source = jnp.asarray(row[None] if kind in PAIRS else before)
    after = np.asarray(whole(kind, model_of(kind)[1], source, jnp.asarray(read)), np.float64)
    number = {tuple(map(int, string)): index for index, string in enumerate(strings)}
    first = {text[:cut]: index for text, index in reversed(number.items()) for cut in range(length)}
    return lambda text: after[first[text], before.shape[1] - 1 + len(text)]


ROWS = dict.fromkeys(PAIRS, (SOURCE, [5, 3])) | {'gpt': (PROMPT, [3, 1])}


@pytest.mark.parametrize('kind', ROWS)
def test_a_decoder_s_caches_follow_its_hypotheses(kind: str):
    """A wide search over rows of unequal lengths equals the exhaustive search with logits computed without caches."""
    tokens, lengths = ROWS[kind]
    search = SearchSettings(beams=ALL, best=6, max_tokens=5, end=END)
    one = dataclasses.replace(search, beams=1, best=1)
    wide, narrow = found_by(kind, tokens, lengths, search), found_by(kind, tokens, lengths, one)
    for row, (found, length) in enumerate(zip(wide, lengths, strict=True)):
        next_of = next_of_model(kind, tokens[row, :length], 5)
        expected = exhaustive(next_of, search)
        assert [text for text, _ in found] == [text for text, _ in expected[:6]]
        scores = [[np.float32(score) for _, score in some] for some in (found, expected[:6])]
        assert_close(*scores, gradient=True)
        text: Text = ()
        while not text or (text[-1] != END and len(text) < 5):
            text = (*text, 1 + int(next_of(text)[1:].argmax()))
        assert narrow[row][0][0] == text


@pytest.mark.parametrize('kind', ['pair', 'gpt'])
def test_neighbours_and_what_stands_in_the_padding_change_nothing(kind: str):
    """Other rows and padding ids change no bit of a result; a row by itself without padding gets the same texts."""
    tokens, lengths = ROWS[kind]
    search = SearchSettings(beams=3, best=3, max_tokens=6, end=END)
    found = found_by(kind, tokens, lengths, search)[1]
    others = tokens.copy()
    others[0], others[1, lengths[1] :] = 3, 4
    assert found_by(kind, others, [2, lengths[1]], search)[1] == found
    [alone] = found_by(kind, tokens[1:, : lengths[1]], lengths[1:], search)
    assert [text for text, _ in alone] == [text for text, _ in found]
    assert_close([np.float32(score) for _, score in alone], [np.float32(score) for _, score in found], gradient=True)


def test_too_few_positions_are_told_before_anything_runs():
    model = nnx.merge(*model_of('pair'))
    assert make_cached_decoder(model.decoder, 1, SearchSettings(max_tokens=16)).specs[0].max_length == 16
    with pytest.raises(InputError, match='2 tokens before and max_tokens 16 need 17 positions; the model has 16'):
        make_cached_decoder(model.decoder, 2, SearchSettings(max_tokens=16))
