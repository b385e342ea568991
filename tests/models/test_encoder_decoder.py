"""Tests an encoder-decoder: which inputs an output depends on, packed pairs, the shared table, and dropout."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models import reversible
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

VASWANI = ModelConfig(
    width=16,
    heads=2,
    layers=2,
    decoder_layers=1,
    vocab_size=40,
    max_length=24,
    token_types=0,
    positions='sinusoidal',
    embedding_norm=False,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    kernel_init='fan_in',
    init_std=0.25,
)
T5 = dataclasses.replace(
    VASWANI,
    positions='none',
    relative='t5',
    norm='pre',
    norm_kind='rms',
    attention_bias=False,
    feed_forward_bias=False,
    feed_forward_gate=True,
    scaled_logits=False,
    output_scale=True,
)
BART = dataclasses.replace(VASWANI, positions='learned', position_offset=2, embedding_norm=True)
KINDS = {'vaswani': VASWANI, 't5': T5, 'bart': BART}
# This model has a layer of each mechanism that packed pairs may use and the models above lack.
MECHANISMS = dataclasses.replace(
    VASWANI,
    layers=3,
    decoder_layers=3,
    norm='pre',
    positions='none',
    rotary=True,
    attention='window(2);favor(8);linear',
    decoder_attention='causal & window(3);favor(8, causal=True);linear(causal=True)',
    cross_attention='window(4)',
)
FEATURES = dataclasses.replace(T5, cross_attention='favor(8)', stack='reversible')
KINDS |= {'mechanisms': MECHANISMS, 'features': FEATURES}
PACKED = 1e-5  # The tolerance, relative and absolute, is what docs/text_to_text.md promises for packed pairs.


@functools.cache
def model_of(name: str) -> EncoderDecoder:
    return nnx.merge(*parts_of(KINDS[name]))


@functools.cache
def parts_of(config: ModelConfig) -> tuple[nnx.GraphDef, dict]:
    return drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)), std=0.25)


@functools.cache
def run(name: str):
    graph, _ = nnx.split(model_of(name))

    @jax.jit
    def logits(params, *arrays, **options):
        return nnx.merge(graph, params)(*arrays, **options)

    return functools.partial(logits, nnx.state(model_of(name)))


@functools.cache
def squares(name: str):
    """Returns a function that computes logits, and the gradient of the sum of their squares over real tokens."""
    graph, _ = nnx.split(model_of(name))

    @jax.jit
    def both(params, source, source_segments, tokens, segments, **options):
        def total(params):
            logits = nnx.merge(graph, params)(source, source_segments, tokens, segments, **options)
            return jnp.sum(jnp.where(segments[..., None] > 0, logits, 0) ** 2), logits

        (_, logits), gradient = jax.value_and_grad(total, has_aux=True)(params)
        return logits, gradient

    return functools.partial(both, nnx.state(model_of(name)))


def ids(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 40, (1, length), np.int32)


def ones(tokens: np.ndarray) -> np.ndarray:
    return np.ones_like(tokens)


ARRAYS = jax.device_put((ids(5, 6), np.int32([[1] * 4 + [0] * 2]), ids(6, 5), np.ones((1, 5), np.int32)))


@pytest.mark.parametrize('name', KINDS)
def test_packed_pairs_give_what_each_gives_alone(name: str):
    """All calls have one shape: a separate pair is followed by padding. All models compare values, one also
    gradients.
    """
    with_gradient = name == 't5'
    pairs = [(ids(1, 5), ids(2, 4)), (ids(3, 7), ids(4, 6))]
    cuts = [(slice(0, 5), slice(0, 4)), (slice(5, 12), slice(4, 10))]

    def packed(chosen: list[int]) -> tuple[jax.Array, nnx.State | None]:
        arrays = []
        for side, length in ((0, 12), (1, 10)):
            sides = [pairs[number][side] for number in chosen]
            sizes = [one.shape[1] for one in sides] + [length - sum(one.shape[1] for one in sides)]
            filled = np.pad(np.concatenate(sides, axis=1), ((0, 0), (0, sizes[-1])))
            numbers = [*range(1, len(chosen) + 1), 0]
            segments = np.repeat(numbers, sizes)[None].astype(np.int32)
            positions = np.concatenate([np.arange(size) for size in sizes])[None].astype(np.int32)
            arrays.append((filled, segments, positions))
        (source, source_segments, source_positions), (tokens, segments, positions) = arrays
        arrays, positions = (source, source_segments, tokens, segments), (source_positions, positions)
        if with_gradient:
            return jax.device_get(squares(name)(*arrays, positions=positions))
        return np.asarray(run(name)(*arrays, positions=positions)), None

    both, gradient = packed([0, 1])
    alone = [packed([number]) for number in (0, 1)]
    for (logits, _), (_, cut) in zip(alone, cuts, strict=True):
        np.testing.assert_allclose(both[:, cut], logits[:, : cut.stop - cut.start], rtol=PACKED, atol=PACKED)
    if with_gradient:
        assert_close(gradient, jax.tree.map(np.add, *(one[1] for one in alone)), gradient=True)


def test_how_far_rows_are_padded_changes_nothing_where_no_mechanism_says_that_it_does():
    """The model has one layer for each mechanism whose `is_affected_by_padding` is False.

    Evaluations and beam searches pad rows differently.
    """
    attention = 'full;block(4);longformer(4, 2);favor(8)'
    causal = 'causal & block(4);sparse_fixed(4, 1);linear(causal=True)'
    config = dataclasses.replace(
        VASWANI, layers=4, decoder_layers=3, norm='pre', attention=attention, decoder_attention=causal
    )
    assert not config.encoder.is_affected_by_padding and not config.decoder.is_affected_by_padding
    model, found = nnx.merge(*parts_of(config)), []
    for more in (0, 17):
        arrays = [
            np.pad(side, ((0, 0), (0, more))) for tokens in (ids(5, 7), ids(6, 5)) for side in (tokens, ones(tokens))
        ]
        found.append(np.asarray(nnx.jit(lambda model, *arrays: model(*arrays))(model, *arrays))[:, :5])
    assert_close(found[1], found[0])


def test_later_targets_and_padding_of_the_source_have_no_gradient(monkeypatch: pytest.MonkeyPatch):
    model, (source, segments, tokens, all_ones) = model_of('t5'), ARRAYS
    table = type(model.decoder.embeddings.token)
    lookup = table.__call__

    def logits_at(added: tuple[jax.Array, jax.Array], place: jax.Array) -> jax.Array:
        """Returns the sum of the logits at a place, with `added` added to the vectors of source and target tokens."""

        def vectors(self, inputs: jax.Array) -> jax.Array:
            return lookup(self, inputs) + added[inputs.shape != source.shape]

        monkeypatch.setattr(table, '__call__', vectors)
        return model(source, segments, tokens, all_ones)[0, place].sum()

    gradient = jax.jit(jax.grad(logits_at))
    for place in range(tokens.shape[1]):
        nothing = np.zeros((1, 6, 16), np.float32), np.zeros((1, 5, 16), np.float32)
        of_source, of_target = jax.device_get(gradient(nothing, np.int32(place)))
        later = place + 1
        assert not of_target[0, later:].any() and not of_source[0, 4:].any()
        assert np.abs(of_target[0, :later]).max(axis=-1).min() > 0 and np.abs(of_source[0, :4]).max(axis=-1).min() > 0


def parameters(config: ModelConfig) -> int:
    model = nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_the_table_is_one_or_two():
    sizes = [parameters(one) for one in (T5, dataclasses.replace(T5, shared_table=False))]
    assert sizes[1] - sizes[0] == 40 * 16
    smaller = dataclasses.replace(T5, shared_table=False, target_vocab_size=30)
    assert parameters(smaller) == sizes[1] - 10 * 16
    untied = dataclasses.replace(smaller, tied_output=False, output_scale=False)
    assert parameters(untied) == parameters(smaller) + 30 * 16 + 30
    assert model_of('t5').encoder.embeddings.token is model_of('t5').decoder.embeddings.token


@pytest.mark.parametrize('fields', [{'feed_forward_dropout_rate': 0.5}, {'dropout_rate': 0.5, 'final_dropout': True}])
def test_dropout_inside_and_at_the_end_follows_from_the_key(fields: dict):
    graph, params = parts_of(dataclasses.replace(T5, **fields))

    @jax.jit
    def logits(seed: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params)
        return model(*ARRAYS, rng=jax.random.key(seed))

    one, same, other = (logits(seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.allclose(one, other)


def test_a_decoder_that_reads_later_positions_is_refused():
    config = dataclasses.replace(VASWANI, decoder_attention='full')
    with pytest.raises(InputError, match="'full' is not causal"):
        nnx.eval_shape(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
    with pytest.raises(InputError, match='model.decoder_layers is 0'):
        nnx.eval_shape(lambda: EncoderDecoder(VASWANI.encoder, rngs=nnx.Rngs(0)))


@functools.cache
def loss_and_gradient(**fields: str) -> tuple[np.ndarray, dict]:
    """Returns loss and gradient of Vaswani's model with these fields and a norm before each sub-layer."""
    config = dataclasses.replace(VASWANI, norm='pre', decoder_layers=2, **fields)
    graph, params = parts_of(config)

    def loss(params: dict) -> jax.Array:
        logits = nnx.merge(graph, params)(*ARRAYS)
        return jnp.sin(logits.astype(jnp.float32)).mean()

    return jax.device_get(jax.jit(jax.value_and_grad(loss))(params))


def test_what_is_computed_again_changes_nothing():
    assert_close(loss_and_gradient(remat='full'), loss_and_gradient(), gradient=True)


def test_reversible_stacks_have_the_gradients_of_their_definition(monkeypatch: pytest.MonkeyPatch):
    """The encoder's gradients come through the vectors that every layer of the decoder reads."""
    found = loss_and_gradient(stack='reversible')
    loss_and_gradient.cache_clear()
    monkeypatch.setattr(
        reversible, 'run_reversible_streams', reversible.reversible_forward
    )  # JAX differentiates this function itself.
    assert_close(found, loss_and_gradient(stack='reversible'), gradient=True)
    loss_and_gradient.cache_clear()


def test_shared_layers_are_one_layer_in_each_stack():
    _, gradient = loss_and_gradient(sharing='all')
    _, separate = loss_and_gradient()
    for stack in ('encoder', 'decoder'):
        sizes = [sum(leaf.size for leaf in jax.tree.leaves(one[stack]['stack'])) for one in (gradient, separate)]
        kept = sum(
            leaf.size
            for name, one in separate[stack]['stack'].items()
            if name != 'layers'
            for leaf in jax.tree.leaves(one)
        )
        assert 2 * (sizes[0] - kept) == sizes[1] - kept
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient[stack]['stack']))


@pytest.mark.lenient_promotion  # Flax's LayerNorm mixes bfloat16 with float32.
def test_bfloat16_is_near_float32():
    value, gradient = loss_and_gradient(dtype='bfloat16')
    expected, expected_gradient = loss_and_gradient()
    assert float(value) == pytest.approx(float(expected), abs=0.02)
    error = jax.tree.map(np.subtract, gradient, expected_gradient)
    assert norm(error) < 0.1 * norm(expected_gradient)


def norm(tree: dict) -> float:
    """Returns the Euclidean norm of all numbers of a tree as one vector."""
    return float(np.sqrt(sum(np.square(np.float64(leaf)).sum() for leaf in jax.tree.leaves(tree))))
