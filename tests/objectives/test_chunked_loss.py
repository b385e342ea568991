"""Tests the loss in chunks: sums and gradients equal the whole loss; no array in the program is tokens x vocabulary."""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.objectives.chunked_loss import chunked_sums, split_into_position_chunks
from efficient_attention.objectives.fine_tuning import class_sums
from efficient_attention.objectives.language_modelling import LanguageModelling
from tests.models.drawn import drawn
from tests.tolerances import assert_close

ROWS, LENGTH, WIDTH, VOCABULARY = 8, 13, 8, 50
RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
LABELS = RNG.integers(0, VOCABULARY, (ROWS, LENGTH), np.int32)
WEIGHTS = RNG.uniform(size=(ROWS, LENGTH)).astype(np.float32)
WEIGHTS[3, 5:] = 0.0
HEAD = {
    'kernel': RNG.normal(size=(WIDTH, VOCABULARY)).astype(np.float32),
    'bias': RNG.normal(size=VOCABULARY).astype(np.float32),
}


def loss(head: dict, hidden: jax.Array, weights: jax.Array, chunk: int) -> tuple[jax.Array, dict]:
    """Returns the mean loss and the sums; the head is in a closure, as a model's head is."""

    def sums_of(x: jax.Array, labels: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
        return class_sums(x @ head['kernel'] + head['bias'][None, None], labels, weights)

    sums = chunked_sums(sums_of, hidden, jnp.asarray(LABELS), weights, chunk=chunk)
    return sums['loss'] / weights.sum(), sums


@functools.partial(jax.jit, static_argnums=3)
def value_and_gradients(head: dict, hidden: jax.Array, weights: jax.Array, chunk: int) -> Any:
    return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(head, hidden, weights, chunk)


@pytest.mark.parametrize('chunk', [1, 4, 13, 40])
def test_sums_and_gradients_equal_those_of_the_whole(chunk: int):
    """Gradients of the mean loss to the head, the vectors and the weights are equal to 1e-5."""
    (value, sums), gradients = value_and_gradients(HEAD, HIDDEN, WEIGHTS, chunk)
    (whole, whole_sums), whole_gradients = value_and_gradients(HEAD, HIDDEN, WEIGHTS, 0)
    assert_close((value, sums), (whole, whole_sums))
    for part, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(whole_gradients), strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(part, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('chunk', [0, 4])
def test_sums_equal_float64_log_probabilities(chunk: int):
    (mean, sums), _ = value_and_gradients(HEAD, HIDDEN, WEIGHTS, chunk)
    hidden, kernel, bias, weights = (np.asarray(x, np.float64) for x in (HIDDEN, HEAD['kernel'], HEAD['bias'], WEIGHTS))
    logits = hidden @ kernel + bias
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    losses = -np.take_along_axis(log_p, np.asarray(LABELS)[..., None], axis=-1)[..., 0]
    assert_close(sums['loss'], (losses * weights).sum())
    assert_close(sums['accuracy'], ((logits.argmax(axis=-1) == np.asarray(LABELS)) * weights).sum())
    assert_close(mean, (losses * weights).sum() / weights.sum())


def test_no_chunk_of_logits_is_computed_twice():
    """The program has one product for the logits of a chunk and two for their gradients."""

    def products(chunk: int) -> int:
        program = jax.jit(lambda head, x: jax.value_and_grad(loss, (0, 1), has_aux=True)(head, x, WEIGHTS, chunk))
        return program.lower(HEAD, HIDDEN).as_text().count('dot_general')

    assert products(4) == products(0) == 3


def test_a_factor_on_the_loss_scales_all_gradients():
    def scaled(head: dict, hidden: jax.Array) -> jax.Array:
        return jnp.square(loss(head, hidden, jnp.asarray(WEIGHTS), 4)[0])

    gradients = jax.jit(jax.grad(scaled, (0, 1)))(HEAD, HIDDEN)
    (value, _), plain = value_and_gradients(HEAD, HIDDEN, WEIGHTS, 0)
    assert_close(gradients, jax.tree.map(lambda leaf: 2.0 * value * leaf, plain[:2]), gradient=True)


def test_rows_over_eight_devices_give_the_same():
    rows = NamedSharding(Mesh(np.asarray(jax.devices()), ('data',)), PartitionSpec('data'))
    spread = value_and_gradients(HEAD, *jax.device_put((HIDDEN, WEIGHTS), rows), 4)
    assert_close(jax.device_get(spread), jax.device_get(value_and_gradients(HEAD, HIDDEN, WEIGHTS, 4)), gradient=True)


def test_chunks_hold_positions_in_order_and_zeros_after_the_end():
    x = jnp.arange(1, 11).reshape(2, 5)
    assert split_into_position_chunks(x, 2).tolist() == [[[1, 2], [6, 7]], [[3, 4], [8, 9]], [[5, 0], [10, 0]]]


# ---- through the decoder and its objective ----

MODEL = ModelConfig(
    width=8, heads=2, layers=1, vocab_size=1000, max_length=64, token_types=0, attention='causal', norm='pre',
    init_std=0.3, attention_dropout_rate=0.0, feed_forward_width=8,
)  # fmt: skip


def gradient_program(**fields: Any) -> jax.stages.Compiled:
    """Compiles the objective's gradient for 2 rows of 64 tokens, without a run."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(dataclasses.replace(MODEL, **fields), rngs=nnx.Rngs(0))))
    batch = {name: jax.ShapeDtypeStruct((2, 64), jnp.int32) for name in ('tokens', 'targets', 'segments')}
    batch |= {'weights': jax.ShapeDtypeStruct((2, 64), jnp.float32)}

    def loss(state: nnx.State, batch: dict) -> jax.Array:
        return LanguageModelling().sums(nnx.merge(graph, state), batch, None, None)[0]['causal_lm']['loss']

    return jax.jit(jax.value_and_grad(loss)).lower(state, batch).compile()


def largest_buffer(program: jax.stages.Compiled) -> int:
    """Returns the elements of the largest array that any instruction of a compiled program makes."""
    shapes = re.findall(r'\b(?:f|bf|s|u|pred)\d*\[([\d,]+)\]', program.as_text())
    return max(math.prod(map(int, shape.split(','))) for shape in shapes)


def test_no_buffer_holds_the_logits_of_all_tokens():
    """The largest arrays are attention's 2 x 2 x 64 x 64, the logits of 2 x 8 positions and the table of 1000 x 8."""
    chunked, untied, whole = (
        gradient_program(**fields) for fields in ({'loss_chunk': 8}, {'loss_chunk': 8, 'tied_output': False}, {})
    )
    assert max(map(largest_buffer, (chunked, untied))) <= 2 * 2 * 64 * 64
    assert largest_buffer(whole) >= 2 * 64 * 1000
    sizes = [program.memory_analysis().temp_size_in_bytes for program in (chunked, whole)]
    assert sizes[0] < 0.5 * sizes[1]


def test_the_objective_reads_the_models_chunk():
    graph, state = drawn(lambda: Decoder(MODEL, rngs=nnx.Rngs(0)))
    other, _ = nnx.split(nnx.eval_shape(lambda: Decoder(dataclasses.replace(MODEL, loss_chunk=5), rngs=nnx.Rngs(0))))
    tokens = RNG.integers(0, 1000, (2, 13), np.int32)
    batch = {'tokens': tokens, 'targets': tokens[:, ::-1], 'segments': np.ones_like(tokens)}
    batch = jax.device_put(batch | {'weights': np.ones((2, 13), np.float32)})

    def lower(graph: nnx.GraphDef) -> jax.stages.Lowered:
        return jax.jit(lambda state: LanguageModelling().sums(nnx.merge(graph, state), batch, None, None)[0]).lower(
            state
        )

    whole, chunked = lower(graph), lower(other)
    assert chunked.as_text().count('stablehlo.while') == whole.as_text().count('stablehlo.while') + 1
    assert_close(chunked.compile()(state), whole.compile()(state))
