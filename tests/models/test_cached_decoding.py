"""Tests decoding from caches: logits equal those of the whole text, however it is cut, for every mechanism."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.mechanism import LearnedOperand
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.cached_decoding import CachedDecoder, DecodeState, read_prompt
from efficient_attention.models.decoder import Decoder
from efficient_attention.modules.layer import CROSS_ATTENTION_LAYER
from efficient_attention.modules.layer_context import EncodedSource
from tests.models.drawn import drawn
from tests.tolerances import assert_close

LENGTH = 40
CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=32, layers=2, max_length=LENGTH, token_types=0, attention='causal', norm='pre',
    positions='none', rotary=True, init_std=0.3, attention_dropout_rate=0.0, dropout_rate=0.0,
)  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {  # each mechanism of `attention` is one layer's
    'rotary': {'attention': 'causal; causal & window(5)', 'sharing': 'all'},
    'learned': {
        'attention': 'sparse_fixed(8, 2); sparse_strided(5)', 'positions': 'learned', 'rotary': False, 'norm': 'post',
        'embedding_width': 8,
    },
    'sinusoidal': {
        'attention': 'favor(16, causal=True, chunk=16); per_head(causal & window(3), causal)',
        'positions': 'sinusoidal', 'rotary': False,
    },
    'reversible': {
        'attention': 'causal & window(3, 2); causal & block(8)', 'stack': 'reversible', 'shared_qk': True,
        'tied_output': False,
    },
    'alibi': {'attention': 'causal & window(5); causal', 'relative': 'alibi', 'rotary': False},
    't5 and axial': {
        'attention': 'causal; sparse_fixed(8, 2)', 'relative': 't5', 'relative_max_distance': 20, 'positions': 'axial',
        'axial_shape': (5, 8), 'axial_widths': (4, 12), 'rotary': False,
    },
    'transformer_xl': {
        'attention': 'causal; causal & window(5)', 'relative': 'transformer_xl', 'rotary': False, 'clamp_length': 9,
        'norm': 'post',
    },
    'transformer_xl, own biases': {
        'relative': 'transformer_xl', 'rotary': False, 'relative_shared_biases': False,
        'attention': 'causal & window(7)',
    },
    'synthesizer': {
        'attention': "synthesizer('factorized', 40, 20, pattern=causal)", 'rotary': False, 'relative': 'alibi',
        'layers': 1,
    },
    'synthesizer of nothing': {
        'attention': "synthesizer('random', 40, pattern=causal & window(9))", 'rotary': False, 'layers': 1,
    },
    'cosines': {'attention': "linear('cos', 40, causal=True, chunk=16)", 'rotary': False, 'layers': 1},
    'lstm': {'cell': 'lstm', 'rotary': False, 'feed_forward': False, 'layers': 1},
    'sru, reversible': {'cell': 'sru2', 'rotary': False, 'stack': 'reversible', 'sharing': 'all'},
    'tupe': {'relative': 'tupe_r', 'stack': 'reversible', 'sharing': 'all', 'rotary': False},
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 32, (2, LENGTH)).astype(np.int32)
ONES = np.ones_like(TOKENS)


@functools.cache
def decoder_of(**fields: Any) -> tuple[nnx.GraphDef, dict]:
    config = dataclasses.replace(CONFIG, **fields)
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def cached_of(graph: nnx.GraphDef, params: dict) -> CachedDecoder:
    return CachedDecoder(nnx.merge(graph, params), LENGTH)


@functools.partial(jax.jit, static_argnums=0)
def first_state(graph: nnx.GraphDef, params: dict) -> DecodeState:
    """Returns the decoding state of two rows before any token."""
    return cached_of(graph, params).init_state(2)


def segments_of(lengths: list[int], longest: int) -> np.ndarray:
    return (np.arange(longest)[None] < np.asarray(lengths)[:, None]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def whole(graph: nnx.GraphDef, params: dict, tokens: jax.Array, segments: jax.Array) -> jax.Array:
    return nnx.merge(graph, params)(tokens, segments)


@functools.partial(jax.jit, static_argnums=0)
def read_piece(
    graph: nnx.GraphDef, params: dict, state: DecodeState, tokens: jax.Array, segments: jax.Array
) -> tuple[jax.Array, DecodeState]:
    return cached_of(graph, params)(state, tokens, segments)


@functools.partial(jax.jit, static_argnums=0)
def by_token(graph: nnx.GraphDef, params: dict, state: DecodeState, tokens: jax.Array) -> tuple[jax.Array, DecodeState]:
    """Returns the logits [B, L, V] of tokens that are read one at a time, and the state after them."""
    cached = cached_of(graph, params)

    def step(state: DecodeState, tokens_B: jax.Array) -> tuple[DecodeState, jax.Array]:
        logits, state = cached(state, tokens_B[:, None])
        return state, logits[:, 0]

    state, logits = jax.lax.scan(step, state, tokens.T)
    return logits.swapaxes(0, 1), state


@pytest.mark.parametrize('name', MODELS)
def test_a_prompt_and_then_token_by_token_equals_the_whole_text(name: str):
    """Prompts of rows may differ in length: each row continues where its own prompt ends."""
    model = decoder_of(**MODELS[name])
    expected = np.asarray(whole(*model, TOKENS, ONES))
    long, short, rest = 20, 13, LENGTH - 20
    prompt, state = read_piece(*model, first_state(*model), TOKENS[:, :long], segments_of([long, short], long))
    np.testing.assert_array_equal(state.length_B, [long, short])
    logits, _ = by_token(*model, state, np.stack([TOKENS[0, long:], TOKENS[1, short : short + rest]]))
    for row, start in enumerate((long, short)):
        found = np.concatenate([np.asarray(prompt)[row, :start], np.asarray(logits)[row]])
        np.testing.assert_allclose(found, expected[row, : start + rest], rtol=1e-4, atol=1e-4)


def test_layers_may_share_what_a_mechanism_learns(monkeypatch: pytest.MonkeyPatch):
    declared = Synthesizer.learned_operands

    def shared(mechanism: Synthesizer, heads: int, width: int) -> dict[str, LearnedOperand]:
        return {
            name: dataclasses.replace(one, is_shared=True) for name, one in declared(mechanism, heads, width).items()
        }

    monkeypatch.setattr(Synthesizer, 'learned_operands', shared)
    fields = {'attention': "synthesizer('dense', 41, pattern=causal)", 'rotary': False}
    graph, params = decoder_of(**fields)
    assert 'learned' in params['stack'] and 'learned' not in str(params['stack']['layers'])
    state = first_state(graph, params)
    assert_close(by_token(graph, params, state, TOKENS)[0], whole(graph, params, TOKENS, ONES))


def test_cross_attention_reads_keys_that_are_computed_once():
    """The stack is reversible; tests/models/test_cross_decoding.py tests the others."""
    config = dataclasses.replace(CONFIG, stack='reversible')
    graph, params = drawn(lambda: Decoder(config, sub_layers=CROSS_ATTENTION_LAYER, rngs=nnx.Rngs(0)))
    states = np.random.default_rng(0).normal(size=(2, 4, 16)).astype(np.float32)
    other = EncodedSource(states, np.int32([[1, 1, 1, 0], [1, 1, 1, 1]]))

    @jax.jit
    def begin(params: dict, other: EncodedSource, *arrays: jax.Array) -> tuple[jax.Array, DecodeState]:
        return nnx.merge(graph, params)(*arrays, other=other), cached_of(graph, params).init_state(2, other=other)

    expected, state = begin(params, other, TOKENS[:, :8], ONES[:, :8])
    assert [type(cache).__name__ for cache in state.caches] == ['KeyCache', 'CrossAttentionKeys'] * 2
    first, state = read_piece(graph, params, state, TOKENS[:, :5], ONES[:, :5])
    rest, after = by_token(graph, params, state, TOKENS[:, 5:8])
    assert_close(np.concatenate([first, rest], axis=1), expected, gradient=True)
    np.testing.assert_array_equal(after.caches[1].key_BGMK, state.caches[1].key_BGMK)
    other_keys = state._replace(
        caches=tuple(cache for pair in zip(state.caches[::2], state.caches[3::-2], strict=True) for cache in pair)
    )
    others, _ = by_token(graph, params, other_keys, TOKENS[:, 5:8])
    assert np.abs(np.asarray(others) - np.asarray(rest)).max() > 1e-2
    with pytest.raises(ValueError, match='cross_attention reads another sequence'):
        first_state(graph, params)


@functools.partial(jax.jit, static_argnums=0)
def in_pieces(graph: nnx.GraphDef, params: dict, state: DecodeState, *arrays: jax.Array) -> DecodeState:
    return read_prompt(cached_of(graph, params), state, *arrays, piece=9)


def test_a_long_prompt_is_read_in_pieces():
    """The last prompt piece is padded and one piece is all padding; the state equals the state after a single piece."""
    model = decoder_of(**MODELS['rotary'])
    segments, state = segments_of([20, 5], LENGTH), first_state(*model)
    pieces = in_pieces(*model, state, TOKENS, segments)
    _, once = read_piece(*model, state, TOKENS[:, :20], segments[:, :20])
    np.testing.assert_array_equal(pieces.length_B, once.length_B)
    for left, right in zip(pieces.caches, once.caches, strict=True):
        np.testing.assert_array_equal(left.segments_BM, right.segments_BM)
        assert_close(left, right, gradient=True)


def test_padding_behind_the_position_table_changes_nothing():
    """The last piece of the prompt reaches beyond the position table."""
    model = decoder_of(**MODELS['learned'])
    state = in_pieces(*model, first_state(*model), TOKENS, segments_of([LENGTH - 1] * 2, LENGTH))
    logits, state = read_piece(*model, state, TOKENS[:, -1:], ONES[:, -1:])
    assert_close(np.asarray(logits)[:, 0], np.asarray(whole(*model, TOKENS, ONES))[:, -1], gradient=True)
    assert np.isnan(read_piece(*model, state, TOKENS[:, :1], ONES[:, :1])[0]).all()


def test_packed_texts_do_not_read_one_another():
    """One of the packed texts begins in the middle of a piece."""
    model = decoder_of(**MODELS['rotary'])
    segments = 2 - segments_of([15, 15], LENGTH)
    first, state = read_piece(*model, first_state(*model), TOKENS[:, :20], segments[:, :20])
    second, _ = read_piece(*model, state, TOKENS[:, 20:], segments[:, 20:])
    assert_close(np.concatenate([first, second], axis=1), whole(*model, TOKENS, segments), gradient=True)


def test_memory_follows_what_may_still_be_read():
    """At 4,096 tokens a window and FAVOR keep the same as at 1,024 tokens; full attention keeps everything."""

    def size(attention: str, length: int) -> int:
        config = dataclasses.replace(CONFIG, attention=attention, layers=1)
        state = jax.eval_shape(lambda: CachedDecoder(Decoder(config, rngs=nnx.Rngs(0)), length).init_state(1))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))

    token = 2 * 16 + 2  # A key and a value of all heads, position and segment; each row also has its length.
    assert size('causal & window(32)', 1024) == size('causal & window(32)', 4096) == 33 * token + 1
    assert size('favor(16, causal=True)', 1024) == size('favor(16, causal=True)', 4096) < 2 * 16 * 10 + 16 * 8 + 9
    assert size('sparse_fixed(64, 4)', 4096) <= (64 + 4 * 64) * token
    assert size('causal', 4096) == 4096 * token + 1


def test_lsh_is_refused_in_one_line():
    config = dataclasses.replace(CONFIG, attention='lsh(8, 2, causal=True)', shared_qk=True)
    decoder = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    with pytest.raises(InputError, match='lsh attention cannot decode token by token: which keys a query reads'):
        CachedDecoder(decoder, 8)


def test_a_compressed_memory_is_not_read_token_by_token():
    xl = {'relative': 'transformer_xl', 'rotary': False, 'memory_length': 6}
    decoder = nnx.merge(*decoder_of(**xl, compression='mean', compressed_length=4))
    with pytest.raises(InputError, match='^model.compressed_length is 4; it must be 0 for token-by-token generation'):
        CachedDecoder(decoder, 8)


@pytest.mark.parametrize('same_length', [False, True])
def test_a_model_with_memory_reads_so_many_tokens_before_each(same_length: bool):
    xl = {'relative': 'transformer_xl', 'rotary': False}
    graph, params = decoder_of(**xl, memory_length=6, same_length=same_length)
    window, _ = decoder_of(**xl, attention=f'causal & window({6 - same_length})')
    logits, state = by_token(graph, params, first_state(graph, params), TOKENS)
    assert_close(logits, whole(window, params, TOKENS, ONES), dtype='float32', gradient=True)
    assert all(cache.key_BGMK.shape[2] == 7 - same_length for cache in state.caches)
