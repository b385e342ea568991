"""Tests decoders that read a source: cached logits equal parallel ones; no mechanism reads another pair or padding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.cache import take_rows
from efficient_attention.attention.cross_attention_cache import CrossAttentionKeys
from efficient_attention.attention.features.cross_attention_sums import CrossAttentionSums
from efficient_attention.attention.implementation import raise_no_cache
from efficient_attention.attention.registry import NAMES, get_implementation, load_implementation
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.cached_decoding import CachedDecoder, DecodeState
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SIZES: dict[str, Any] = {
    'width': 16, 'heads': 2, 'feed_forward_width': 24, 'vocab_size': 24, 'max_length': 12, 'token_types': 0,
    'layers': 2, 'decoder_layers': 2, 'attention_dropout_rate': 0.0, 'init_std': 0.3,
}  # fmt: skip
PLAIN = {'norm': 'none', 'residual': False, 'feed_forward': False, 'feed_forward_width': 0, 'positions': 'none'}
MODELS: dict[str, dict[str, Any]] = {
    'vaswani': {'positions': 'sinusoidal', 'activation': 'relu', 'embedding_norm': False, 'embedding_scale': True},
    't5': {
        'norm': 'pre', 'norm_kind': 'rms', 'attention_bias': False, 'feed_forward_bias': False, 'activation': 'relu',
        'scaled_logits': False, 'output_scale': True, 'positions': 'none', 'relative': 't5', 'embedding_norm': False,
        'relative_buckets': 4, 'relative_max_distance': 6, 'final_dropout': True,
        'decoder_attention': 'causal; block(1)',
    },
    't5 1.1, windows': {
        'norm': 'pre', 'norm_kind': 'rms', 'feed_forward_gate': True, 'positions': 'none', 'relative': 't5',
        'relative_buckets': 4, 'relative_max_distance': 6, 'tied_output': False, 'dense_output_bias': False,
        'decoder_attention': 'causal & window(3)', 'cross_attention': 'window(2)', 'decoder_layers': 1,
    },
    'bart': {
        'position_offset': 2, 'output_bias': True, 'activation': 'gelu_erf', 'decoder_attention': 'sparse_fixed(4, 1)',
        'cross_attention': 'per_head(full, window(1))', 'shared_table': False, 'decoder_layers': 1,
    },
    'performer': {
        'norm': 'pre', 'positions': 'sinusoidal', 'decoder_layers': 1,
        'decoder_attention': 'favor(8, causal=True, chunk=4, orthogonal=False)',
        'cross_attention': 'favor(8, orthogonal=False)',
    },
    'additive': {
        'score': 'additive', 'decoder_attention': 'entmax(causal); sparsemax(causal & window(3))',
        'cross_attention': 'entmax(window(2))',
    },
    'local_p, hard': {'cross_attention': 'local_p(2)', 'decoder_attention': 'hard(causal)', 'decoder_layers': 1},
    'synthesizer, linformer': {
        'decoder_attention': "synthesizer('dense', 9, pattern=causal)",
        'cross_attention': 'linformer(3, 9)', 'decoder_layers': 1,
    },
    'location': {'score': 'location', 'location_length': 9, 'positions': 'none', 'decoder_layers': 1},
    'gru': {
        'cell': 'gru', 'score': 'general', 'bidirectional': True, 'norm': 'pre', 'positions': 'none',
        'decoder_layers': 1,
    },
    'states copied, no attention': PLAIN | {'cell': 'lstm', 'source_reading': 'state', 'initial_state': 'copy'},
    'bahdanau': PLAIN | {
        'cell': 'gru', 'bidirectional': True, 'score': 'additive', 'source_reading': 'before',
        'initial_state': 'map_backward',
        'readout': 'maxout', 'norm': 'pre', 'residual': True,
    },
    'luong': PLAIN | {'cell': 'lstm', 'source_reading': 'after', 'input_feeding': True, 'initial_state': 'copy'},
    'luong, sru': PLAIN | {'cell': 'sru2', 'source_reading': 'after', 'cross_attention': 'window(3)'},
    'linear, reversible': {
        'norm': 'pre', 'stack': 'reversible', 'positions': 'none', 'rotary': True, 'cross_attention': 'linear',
        'decoder_attention': 'linear(causal=True, chunk=4); sparse_strided(3)',
    },
}  # fmt: skip
M, L = 7, 9
RNG = np.random.default_rng(0)
SOURCE = RNG.integers(0, 24, (2, M)).astype(np.int32)
SOURCE_SEGMENTS = np.int32([[1] * 7, [1] * 4 + [0] * 3])
# Each source has two targets.
TOKENS = RNG.integers(0, 24, (4, L)).astype(np.int32)
PROMPTS = (4, 2, 1, 3)  # tokens read at once; the rest of the target follows one by one
TWICE = np.int32([0, 0, 1, 1])
LENGTHS = tuple(prompt + 5 for prompt in PROMPTS)


@functools.cache
def model_of(**fields: Any) -> tuple[nnx.GraphDef, dict]:
    config = ModelConfig(**SIZES | fields)
    return drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.6)


def segments_of(lengths: tuple[int, ...], longest: int) -> np.ndarray:
    return (np.arange(longest)[None] < np.asarray(lengths)[:, None]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def decoded(graph: nnx.GraphDef, params: dict, without_source: dict) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the logits of four targets of two sources: in parallel, and from caches for prompts and the tokens after
    them.

    Args:
        graph: the graph of the model.
        params: the parameters for the parallel logits and the first state.
        without_source: the parameters for all steps after the first state.

    Returns:
        The parallel logits [4, L, V], those of the prompts [4, 4, V], and those of five tokens after each [4, 5, V].
    """
    model = nnx.merge(graph, params)
    other = model.encode(*map(jnp.asarray, (SOURCE, SOURCE_SEGMENTS)))
    twice = jnp.asarray(TWICE)
    of_targets = jax.tree.map(lambda x: x[twice], other)
    expected = model.decoder(jnp.asarray(TOKENS), jnp.asarray(segments_of(LENGTHS, L)), other=of_targets)
    state = CachedDecoder(model.decoder, L).init_state(2, other=other)
    caches = [
        one if isinstance(one, CrossAttentionKeys | CrossAttentionSums) else take_rows(one, twice)
        for one in state.caches
    ]
    state = DecodeState(tuple(caches), state.length_B[twice])

    cached = CachedDecoder(nnx.merge(graph, without_source).decoder, L)
    first, state = cached(state, jnp.asarray(TOKENS[:, :4]), jnp.asarray(segments_of(PROMPTS, 4)))
    places = np.asarray(PROMPTS)[:, None] + np.arange(5)[None]

    def step(state: DecodeState, tokens_B: jax.Array) -> tuple[DecodeState, jax.Array]:
        logits, state = cached(state, tokens_B[:, None])
        return state, logits[:, 0]

    _, rest = jax.lax.scan(step, state, jnp.asarray(np.take_along_axis(TOKENS, places, axis=1).T))
    return expected, first, rest.swapaxes(0, 1)


def without_source(params: dict) -> dict:
    """Returns the parameters with NaN in everything that computes keys and values of the source."""

    def change(path: Any, leaf: np.ndarray) -> np.ndarray:
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        reads = 'cross_attention/key' in name or 'cross_attention/value' in name or name.startswith('encoder/stack')
        return np.full_like(leaf, np.nan) if reads else leaf

    changed = jax.tree.map_with_path(change, jax.device_get(params))
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(changed))
    return changed


@pytest.mark.parametrize('name', MODELS)
def test_cached_logits_are_the_parallel_ones(name: str):
    """Rows have unequal lengths, and two rows share a source, whose keys and values are computed only once."""
    graph, params = model_of(**MODELS[name])
    expected, first, rest = map(np.asarray, decoded(graph, params, without_source(params)))
    for row, prompt in enumerate(PROMPTS):
        found = np.concatenate([first[row, :prompt], rest[row]])
        assert_close(found, expected[row, : prompt + 5], gradient=True)


def test_every_mechanism_with_a_cache_is_among_the_decoders():
    """A new mechanism must be added to one of the models above."""
    decoders = [ModelConfig(**SIZES | fields).decoder for fields in MODELS.values() if 'cell' not in fields]
    found = {get_implementation(mechanism).kind.name for decoder in decoders for mechanism in decoder.mechanisms}
    assert found == {name for name in NAMES if load_implementation(name).decode is not raise_no_cache}


# ---- packed pairs ----


def in_rows(first: list[int], length: int) -> np.ndarray:
    """Returns three rows: two texts of three or four tokens in one row, then each text in a separate row."""
    half = len(first) // 2
    rows = [first, first[:half], first[half:]]
    return np.int32([row + [0] * (length - len(row)) for row in rows])


# Two pairs are in one row, and each in a separate row.
PACKED = {
    'source_BM': in_rows(SOURCE[0, :6].tolist(), M),
    'source_segments_BM': in_rows([1] * 3 + [2] * 3, M),
    'tokens_BL': in_rows(TOKENS[0, :8].tolist(), L),
    'segments_BL': in_rows([1] * 4 + [2] * 4, L),
    'positions': (in_rows([0, 1, 2] * 2, M), in_rows([0, 1, 2, 3] * 2, L)),
}


@functools.partial(jax.jit, static_argnums=0)
def apply(graph: nnx.GraphDef, params: dict, step: int, **arrays: Any) -> jax.Array:
    return nnx.merge(graph, params)(**arrays, step=step)


@pytest.mark.parametrize('text', ['window(1)', 'favor(8, orthogonal=False)', 'local_p(2)'])
def test_packed_pairs_are_those_in_rows_of_their_own(text: str):
    """Windows depend on positions within the texts."""
    model = model_of(layers=1, decoder_layers=1, cross_attention=text, positions='sinusoidal')
    packed, *separate = np.asarray(apply(*model, 0, **PACKED))
    assert_close(packed[:8], np.concatenate([row[:4] for row in separate]))
    if text.startswith('favor'):  # No self-attention needs the random key here.
        assert np.abs(np.asarray(apply(*model, 1, **PACKED))[1, :4] - separate[0][:4]).max() > 1e-2


# ---- what no gradient reaches ----

LEAKS: dict[str, dict[str, Any]] = {
    'distributions': {
        'score': 'additive', 'cross_attention': 'local_p(3)', 'attention': 'entmax(window(2))', 'decoder_layers': 1,
        'decoder_attention': 'sparsemax(causal)',
    },
    'windows': {'cross_attention': 'window(3)', 'attention': 'window(1)', 'attention_backend': 'blocked'},
    'favor': {
        'cross_attention': 'favor(8, orthogonal=False)', 'attention': 'favor(8, orthogonal=False)', 'decoder_layers': 1,
    },
    'reversible': {'cross_attention': 'linear', 'stack': 'reversible', 'norm': 'pre'},
    'recurrent': {'cell': 'lstm', 'bidirectional': True, 'feed_forward': False, 'feed_forward_width': 0},
}  # fmt: skip


@pytest.mark.parametrize('name', LEAKS)
def test_no_gradient_reaches_later_targets_or_the_source_s_padding(name: str):
    """Each id occurs once, so the gradient of its table row is the gradient of its place; tables are not shared."""
    apart = {'shared_table': False, 'tied_output': False, 'positions': 'sinusoidal'}
    graph, params = model_of(**LEAKS[name], **apart)
    source, target = (np.arange(length, dtype=np.int32)[None] for length in (M, L))
    arrays = jax.device_put((source, (source < 5).astype(np.int32), target, np.ones_like(target)))

    def logits_of(encoder_VE: jax.Array, decoder_VE: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params)
        model.encoder.embeddings.token.embedding = nnx.Param(encoder_VE)
        model.decoder.embeddings.token.embedding = nnx.Param(decoder_VE)
        return (model(*arrays)[0] * jnp.arange(1.0, 25.0)[None]).sum(axis=1)

    tables = [params[side]['embeddings']['token']['embedding'] for side in ('encoder', 'decoder')]

    @jax.jit
    def influences() -> tuple[jax.Array, jax.Array]:
        """Returns [L, V]: the norm of the gradient from the logits at each place to each id, for source and target."""

        def at(place: jax.Array) -> Any:
            return jax.grad(lambda *tables: logits_of(*tables)[place], argnums=(0, 1))(*tables)

        return jax.tree.map(lambda x: jnp.linalg.norm(x, axis=-1), jax.lax.map(at, jnp.arange(L)))

    of_source, of_target = map(np.asarray, influences())
    assert not of_source[:, 5:].any() and (of_source[:5, :5] > 0).any(axis=1).all()
    assert not np.triu(of_target[:, :L], 1).any() and (np.diagonal(of_target) > 0).all()
