"""Tests that `Lengths` means the segments 1 ... 1 0 ... 0 in every mechanism, in modules, in models and in batches."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import efficient_attention as ea
from efficient_attention.attention.attend import BACKENDS
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import NAMES
from efficient_attention.attention.request import Lengths, segments_and_lengths, segments_of_batch
from efficient_attention.config.model import ModelConfig
from efficient_attention.inference.beam_search import read_prompts
from efficient_attention.models.cached_decoding import CachedDecoder
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.segment_memory import empty_memory
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.cross_attention import CrossAttention
from efficient_attention.modules.layer_context import EncodedSource
from tests.attention.abstract_gpu import on_abstract_gpu
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close

L = 20
LENGTHS = np.array([L, 7], np.int32)
SEGMENTS = (np.arange(L) < LENGTHS[:, None]).astype(np.int32)
# One text for each mechanism, and forms of softmax with separate code.
TEXTS = ('full', 'causal & window(3)', 'bigbird(4, 1)', 'sparsemax(causal)', 'entmax()', 'hard()', 'local_p(3)')
TEXTS += ('lsh(8, 2)', 'favor(8)', 'favor(8, causal=True, chunk=8)', 'linear()', 'linformer(5, 90)', 'nystrom(6)')
TEXTS += ('induced(5)', 'routing(2, 12)', 'sinkhorn(5)', "synthesizer('dense', 90)")


# Of these the numbers are compared. `favor` also reads lengths (tests/attention/features/test_fast_attention.py).
COMPILED = ('full', 'lsh(8, 2)', 'linformer(5, 90)', 'favor(8, causal=True, chunk=8)')


@pytest.mark.parametrize('text', TEXTS)
def test_every_mechanism_gives_the_same(text: str):
    """Compares outputs and gradients of q, k and v. Most mechanisms have equal programs, so nothing is compiled."""
    mechanism = parse_mechanism(text)
    (q, k, v), extra = inputs(L)
    if mechanism.randomness.always:
        extra['rng'] = jax.random.key(5)
    if mechanism.requirements.centres:
        extra['centres'] = jax.device_put(np.random.default_rng(6).uniform(0.0, L, q.shape[:3]).astype(np.float32))
    learned = drawn_operands(mechanism, *q.shape[2:])

    def weighted(q: jax.Array, k: jax.Array, v: jax.Array, lengths_B: jax.Array, as_array: bool) -> tuple:
        segments = Lengths(lengths_B).segments(L) if as_array else Lengths(lengths_B)
        k = q if mechanism.requirements.shared_qk else k
        out = ea.attend(
            q, k, v, mechanism, query_segments=segments, key_segments=segments, learned=learned or None, **extra
        )
        return (out * np.cos(np.arange(out.size)).reshape(out.shape).astype(np.float32)).sum(), out

    run = jax.grad(weighted, (0, 1, 2), has_aux=True)
    if text in COMPILED:
        ours, expected = quick(lambda *given: (run(*given, False), run(*given, True)))(q, k, v, LENGTHS)
        assert_close(ours, expected, gradient=True)
        return
    programs = [str(jax.make_jaxpr(run, static_argnums=4)(q, k, v, LENGTHS, as_array)) for as_array in (False, True)]
    ours, expected = (re.sub('0x[0-9a-f]+', '', program) for program in programs)  # addresses of functions
    assert ours == expected


def test_every_mechanism_has_a_text():
    assert {parse_mechanism(text).name for text in TEXTS} == set(NAMES)


def test_two_wrappers_of_one_array_are_one():
    """LSH requires one array for queries and keys, also inside `jax.jit`."""
    (q, _, v), _ = inputs(L)
    mechanism, rng = parse_mechanism('lsh(8, 2)'), jax.random.key(5)

    def attended(lengths_B: jax.Array) -> jax.Array:
        given = {'query_segments': Lengths(lengths_B), 'key_segments': Lengths(lengths_B)}
        return ea.attend(q, q, v, mechanism, rng=rng, **given)

    assert jax.eval_shape(attended, LENGTHS).shape == q.shape


@pytest.mark.parametrize('backend', [name for name in BACKENDS if name != 'cudnn'])
def test_no_backend_except_cudnn_computes_something_else_with_lengths(backend: str):
    """The programs are equal, so nothing is compiled. tests/attention/softmax/test_cudnn.py compares numbers."""
    mechanism, length = parse_mechanism('causal' if backend == 'jax_nn' else 'causal & window(300)'), 512
    q = jax.ShapeDtypeStruct((2, length, 2, 64), jnp.bfloat16)

    def attended(q: jax.Array, lengths_B: jax.Array, as_array: bool) -> jax.Array:
        segments = Lengths(lengths_B).segments(length) if as_array else Lengths(lengths_B)
        return ea.attend(q, q, q, mechanism, query_segments=segments, key_segments=segments, backend=backend)

    chip = {'mosaic': ('gpu', 1, 'NVIDIA H200'), 'splash': ('tpu', 1, 'TPU v5 lite')}.get(backend, ('cpu', 1))
    with using_platform(*chip), on_abstract_gpu() if backend == 'mosaic' else contextlib.nullcontext():
        assert_equal_programs(lambda as_array: jax.make_jaxpr(attended, static_argnums=2)(q, LENGTHS, as_array))


def test_a_request_has_the_segments_and_the_lengths():
    (q, k, _), _ = inputs(L)
    mechanism = parse_mechanism('full')
    one = Lengths(LENGTHS)
    request = make_request(q, k, k, mechanism, query_segments=one, key_segments=one)
    np.testing.assert_array_equal(request.segments.query, SEGMENTS)
    assert request.segments.query is request.segments.key  # LSH needs one array for both.
    np.testing.assert_array_equal(request.lengths.key, LENGTHS)
    assert make_request(q, k, k, mechanism, query_segments=SEGMENTS, key_segments=SEGMENTS).lengths is None
    mixed = make_request(q, k, k, mechanism, query_segments=SEGMENTS, key_segments=one)
    np.testing.assert_array_equal(mixed.segments.key, SEGMENTS)
    assert mixed.lengths is None


@pytest.mark.parametrize(
    'wrong, line',
    [
        (np.array([20, 21]), r'query_segments.lengths_B holds 21 in row 1; rows have 20 positions'),
        (np.array([-1, 3]), r'query_segments.lengths_B holds -1 in row 0; rows have 20 positions'),
        (np.array([3]), r'query_segments.lengths_B has shape \(1,\); it must be \(2,\)'),
        (np.array([3.0, 2.0]), 'query_segments.lengths_B is of type float64; it must be an array of integers'),
    ],
)
def test_lengths_that_cannot_be_are_one_line(wrong: np.ndarray, line: str):
    (q, k, v), _ = inputs(L)
    with pytest.raises(ValueError, match=f'^{line}'):
        ea.attend(q, k, v, parse_mechanism('full'), query_segments=Lengths(wrong), key_segments=Lengths(LENGTHS))


def test_one_form_without_the_other_argument_is_refused():
    (q, k, v), _ = inputs(L)
    with pytest.raises(ValueError, match='query_segments and key_segments go together'):
        ea.attend(q, k, v, parse_mechanism('full'), query_segments=Lengths(LENGTHS))


def test_a_batch_says_what_its_rows_are():
    batch = {'segments': SEGMENTS, 'source_segments': SEGMENTS, 'source_lengths': LENGTHS}
    assert segments_of_batch(batch) is SEGMENTS
    segments, known = segments_and_lengths(segments_of_batch(batch, 'source_'), L)
    np.testing.assert_array_equal(segments, SEGMENTS)
    np.testing.assert_array_equal(known, LENGTHS)


SMALL = {'vocab_size': 30, 'layers': 2, 'width': 16, 'heads': 2, 'max_length': L}
TOKENS = np.random.default_rng(0).integers(5, 30, (2, L)).astype(np.int32)


def model(make: type[nnx.Module], **fields: object) -> tuple:
    """Returns the graph and parameters of a small model."""
    config = ModelConfig(**{**SMALL, **fields})  # type: ignore[arg-type]
    return nnx.split(make(config, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize(
    'make, fields',
    [
        (Encoder, {'attention': 'full'}),
        (Encoder, {'attention': 'lsh(8, 2)', 'shared_qk': True, 'stack': 'reversible', 'norm': 'pre'}),
        (Encoder, {'attention': 'longformer(3, 1)', 'directions_apart': False}),
        (Decoder, {'attention': 'causal'}),
        (Decoder, {'attention': 'causal', 'cell': 'gru', 'positions': 'none'}),
    ],
)
def test_models_give_the_same(make: type, fields: dict):
    graph, params = model(make, **fields)

    @quick
    def states(params: nnx.State) -> list[jax.Array]:
        of_model = nnx.merge(graph, params)
        found = [of_model(TOKENS, given) for given in (Lengths(LENGTHS), jnp.asarray(SEGMENTS))]
        return [jnp.where(SEGMENTS[..., None] > 0, x, 0.0) for x in found]

    ours, expected = states(params)
    assert_close(ours, expected)


def test_an_encoder_decoder_gives_the_same_with_lengths_of_both_sides():
    graph, params = model(EncoderDecoder, decoder_layers=2, attention='full')
    targets = np.array([5, 13], np.int32)

    @quick
    def states(params: nnx.State) -> list[jax.Array]:
        of_model = nnx.merge(graph, params)
        arrays = [jnp.asarray(Lengths(one).segments(L)) for one in (LENGTHS, targets)]
        ours = of_model.hidden(TOKENS, Lengths(LENGTHS), TOKENS, Lengths(targets))
        expected = of_model.hidden(TOKENS, arrays[0], TOKENS, arrays[1])
        return [jnp.where(arrays[1][..., None] > 0, x, 0.0) for x in (ours, expected)]

    ours, expected = states(params)
    assert_close(ours, expected)


@pytest.mark.parametrize('cross_attention', ['full', 'favor(8, orthogonal=False)'])
def test_cached_decoding_gives_the_same_after_an_encoder_with_lengths(cross_attention: str):
    graph, params = model(EncoderDecoder, decoder_layers=1, attention_dropout_rate=0.0, cross_attention=cross_attention)

    @quick
    def logits(params: nnx.State) -> list[jax.Array]:
        of_model = nnx.merge(graph, params)
        cached, found = CachedDecoder(of_model.decoder, L), []
        for segments in (Lengths(LENGTHS), jnp.asarray(SEGMENTS)):
            state = cached.init_state(2, other=of_model.encode(TOKENS, segments))
            first, state = cached(state, jnp.asarray(TOKENS[:, :3]))
            found.append(jnp.concatenate([first, cached(state, jnp.asarray(TOKENS[:, 3:4]))[0]], axis=1))
        return found

    ours, expected = logits(params)
    assert_close(ours, expected)


@pytest.mark.parametrize(
    'fields',
    [
        {'attention': 'causal'},
        {'attention': 'causal & window(3)'},
        {'attention': 'favor(8, causal=True)'},
        {'attention': 'linear(causal=True)'},
        {'attention': 'causal', 'cell': 'gru', 'positions': 'none'},
    ],
    ids=lambda fields: fields.get('cell') or fields['attention'],
)
def test_prompts_are_read_the_same(fields: dict):
    """The programs are equal, so nothing is compiled."""
    graph, params = model(Decoder, attention_dropout_rate=0.0, **fields)

    def read(params: nnx.State, lengths_B: jax.Array, as_array: bool) -> tuple:
        def segments() -> Any:
            return Lengths(lengths_B).segments(L) if as_array else Lengths(lengths_B)

        cached, tokens = CachedDecoder(nnx.merge(graph, params), L), jnp.asarray(TOKENS)
        logits, state = cached(cached.init_state(2), tokens, segments())
        return logits, state, read_prompts(cached, tokens, segments())

    assert_equal_programs(lambda as_array: jax.make_jaxpr(read, static_argnums=2)(params, LENGTHS, as_array))


def test_a_decoder_with_memory_reads_the_same():
    graph, params = model(Decoder, attention='causal', positions='none', relative='transformer_xl', memory_length=4)
    config = nnx.merge(graph, params).config

    def read(params: nnx.State, lengths_B: jax.Array, as_array: bool) -> tuple:
        tokens, memory = jnp.asarray(TOKENS), empty_memory(config, 2)
        segments = Lengths(lengths_B).segments(L) if as_array else Lengths(lengths_B)
        return nnx.merge(graph, params).continue_from_memory(tokens, segments, memory)

    assert_equal_programs(lambda as_array: jax.make_jaxpr(read, static_argnums=2)(params, LENGTHS, as_array))


def assert_equal_programs(traced: Callable[[bool], object]) -> None:
    """Compares the programs with lengths and with the equal array of segments."""
    ours, expected = (re.sub('0x[0-9a-f]+', '', str(traced(as_array))) for as_array in (False, True))
    assert ours == expected


def test_modules_take_both_forms():
    config = ModelConfig(**SMALL, decoder_layers=1)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, L, 16)).astype(np.float32))
    places = jnp.broadcast_to(jnp.arange(L), (2, L))
    own, cross = Attention(config, rngs=nnx.Rngs(0)), CrossAttention(config.decoder, rngs=nnx.Rngs(1))
    source = EncodedSource(x, jnp.asarray(SEGMENTS), lengths_B=jnp.asarray(LENGTHS))
    for run, given in ((own, {}), (cross, {'other': source})):
        ours, expected = (run(x, segments, places, **given) for segments in (Lengths(LENGTHS), jnp.asarray(SEGMENTS)))
        assert_close(ours, expected)


@pytest.mark.parametrize('row, segments', [(1, [[1, 1, 0], [1, 1, 1]]), (0, [[1, 2, 0], [1, 1, 0]])])
def test_lengths_that_contradict_the_segments_are_refused(row: int, segments: list):
    batch = {'segments': np.array(segments, np.int32), 'lengths': np.array([2, 2], np.int32)}
    with pytest.raises(ValueError, match=f'^lengths of row {row} is 2, but segments of this row is not 2 times 1 and'):
        segments_of_batch(batch)
