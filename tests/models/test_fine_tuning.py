"""Tests the fine-tuned model: what each head returns and reads, and that padding changes nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import NOWHERE, FineTuningModel
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, layers=2, vocab_size=13, max_length=16, init_std=0.3, norm_epsilon=1e-5)
ROWS, LENGTH = 3, 7
HEADS = {
    'sequence': HeadConfig(kind='sequence', outputs=3),
    'plain': HeadConfig(kind='sequence', outputs=3, transform='none'),
    'relu': HeadConfig(kind='sequence', outputs=1, transform='relu'),
    'towers': HeadConfig(kind='towers', outputs=3, transform='relu', pooling='mean'),
    'token': HeadConfig(kind='token', outputs=4),
    'span': HeadConfig(kind='span'),
    'deep_span': HeadConfig(kind='span', feed_forward=True),
    'multi_hop': HeadConfig(kind='multi_hop'),
}


def model_of(head: HeadConfig) -> FineTuningModel:
    return nnx.merge(*drawn(lambda: FineTuningModel(CONFIG, head, rngs=nnx.Rngs(0))))


def dense(layer: nnx.Module, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])


@nnx.jit
def logits_of(model: FineTuningModel, batch: dict[str, jax.Array], rng: jax.Array | None = None) -> jax.Array:
    return model(batch, rng=rng)['logits']


def batch_of(length: int = LENGTH, padded_to: int = LENGTH) -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(1).integers(0, 13, (ROWS, length)).astype(np.int32)
    pad = ((0, 0), (0, padded_to - length))
    return {
        'tokens': np.pad(tokens, pad),
        'segments': np.pad(np.ones_like(tokens), pad),
        'token_types': np.pad(tokens % 2, pad),
    }


@pytest.mark.parametrize(
    'name, shapes',
    [
        ('sequence', {'logits': (3, 3)}),
        ('relu', {'logits': (3, 1)}),
        ('token', {'logits': (3, 7, 4)}),
        ('span', {'logits': (3, 7, 2)}),
        ('multi_hop', {'logits': (3, 7, 2), 'type': (3, 3), 'support': (3, 7)}),
    ],
)
def test_shapes(name: str, shapes: dict):
    outputs = jax.eval_shape(model_of(HEADS[name]), batch_of())
    assert {key: value.shape for key, value in outputs.items()} == shapes
    assert {value.dtype for value in outputs.values()} == {jnp.dtype('float32')}


@pytest.mark.parametrize('name', ['sequence', 'plain', 'relu'])
def test_a_rows_logits_are_those_of_its_first_vector(name: str):
    @nnx.jit
    def both(model: FineTuningModel, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return model(batch)['logits'], model.encode(batch)[:, 0]

    model = model_of(HEADS[name])
    logits, first_BD = map(np.asarray, both(model, batch_of()))
    if model.pooler is not None:
        inner = dense(model.pooler.dense, first_BD)
        first_BD = np.tanh(inner) if name == 'sequence' else np.maximum(inner, 0.0)
    assert (model.pooler is None) == (name == 'plain')
    assert_close(logits, dense(model.head.out, first_BD))


def two_rows(padded_to: int = LENGTH) -> dict[str, np.ndarray]:
    """Returns two rows of two texts each: one row with 7 tokens a text and one row with 5."""
    first, second = batch_of(7, padded_to), batch_of(5, padded_to)
    return {name: np.stack([first[name], second[name]], axis=1) for name in first}


def test_towers_compare_the_vectors_of_two_rows_that_do_not_read_each_other():
    encode = nnx.jit(lambda model, batch: model.encode(batch))
    model = model_of(HEADS['towers'])
    a_BD, b_BD = (np.asarray(encode(model, batch_of(length, length))).mean(axis=1) for length in (7, 5))
    joined_BD = np.concatenate([a_BD, b_BD, a_BD * b_BD, a_BD - b_BD], axis=1)
    expected_BC = dense(model.head.out, np.maximum(dense(model.pooler.dense, joined_BD), 0.0))
    assert model.pooler.dense.kernel.shape == (64, 16)
    assert_close(logits_of(model, two_rows()), expected_BC)
    assert_close(logits_of(model, two_rows(9)), expected_BC)  # The amount of padding changes nothing.


def test_towers_draw_dropout_for_each_row_and_side():
    @nnx.jit
    def dropped(model: FineTuningModel, batch: dict[str, jax.Array]) -> list[jax.Array]:
        keys = jax.random.split(jax.random.key(3), ROWS)
        last = {name: array[-1:] for name, array in batch.items()}
        draws = ((batch, keys), (batch, keys[::-1]), (last, keys[-1:]))
        return [model(rows, rng=rng)['logits'] for rows, rng in draws]

    head = dataclasses.replace(HEADS['towers'], dropout_rate=0.5)
    config = dataclasses.replace(CONFIG, dropout_rate=0.5)
    model = nnx.merge(*drawn(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0))))
    found, turned, of_last = map(np.asarray, dropped(model, two_rows()))
    assert found.shape == (ROWS, 3) and not np.allclose(found, turned)
    assert_close(of_last, found[-1:])  # A row's dropout depends only on its own key.


def test_padding_changes_no_token():
    model = model_of(HEADS['token'])
    padded = np.asarray(logits_of(model, batch_of(5, 9)))
    assert_close(logits_of(model, batch_of(5, 5)), padded[:, :5])


def test_a_feed_forward_layer_stands_before_bigbirds_spans():
    @nnx.jit
    def both(model: FineTuningModel, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_BLD = model.encode(batch)
        x_BLD = model.head.norm(x_BLD + model.head.outer(jax.nn.gelu(model.head.inner(x_BLD), approximate=True)))
        return model(batch)['logits'], model.head.out(x_BLD)

    assert_close(*both(model_of(HEADS['deep_span']), batch_of()))


def choices_of(batch: dict[str, np.ndarray], choices: int) -> dict[str, np.ndarray]:
    return {name: np.stack([np.roll(array, i, axis=0) for i in range(choices)], 1) for name, array in batch.items()}


def test_each_choice_is_a_row_of_its_own():
    @nnx.jit
    def of_rows(model: FineTuningModel, batch: dict[str, jax.Array]) -> jax.Array:
        return model.head(model.pooler(model.encode(batch)[:, 0]))['logits'][:, 0]

    model = model_of(HeadConfig(kind='choice'))
    alone = np.asarray(of_rows(model, batch_of()))
    logits_BA = logits_of(model, choices_of(batch_of(), 4))
    assert_close(logits_BA, np.stack([np.roll(alone, i) for i in range(4)], axis=1))


def test_dropout_is_drawn_for_each_row_and_choice():
    model = model_of(HeadConfig(kind='choice', dropout_rate=0.5))
    same = {name: np.stack([array] * 2, axis=1) for name, array in batch_of().items()}
    keys = jax.random.split(jax.random.key(3), ROWS)
    dropped = np.asarray(logits_of(model, same, keys))
    assert (dropped[:, 0] != dropped[:, 1]).all()
    np.testing.assert_array_equal(dropped, logits_of(model, same, keys))
    still = np.asarray(logits_of(model, same))
    np.testing.assert_array_equal(still[:, 0], still[:, 1])


def test_a_model_without_token_types_takes_batches_that_have_them():
    config = dataclasses.replace(CONFIG, token_types=0)
    model = nnx.merge(*drawn(lambda: FineTuningModel(config, HEADS['span'], rngs=nnx.Rngs(0))))
    assert jax.eval_shape(lambda batch: model(batch)['logits'], batch_of()).shape == (ROWS, LENGTH, 2)


@pytest.mark.parametrize('kind', ['span', 'choice'])
def test_outputs_of_padding_are_out_of_reach(kind: str):
    @nnx.jit
    def both(model: FineTuningModel, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return model.outputs(batch)['logits'], model(batch)['logits']

    model, batch = model_of(HeadConfig(kind=kind)), batch_of(LENGTH - 1, LENGTH)
    if kind == 'choice':
        batch = {name: np.stack([array, np.zeros_like(array)], axis=1) for name, array in batch.items()}
    logits, raw = map(np.asarray, both(model, batch))
    assert (logits[:, -1] == NOWHERE).all() and (raw[:, -1] > NOWHERE).all()
    np.testing.assert_array_equal(logits[:, :-1], raw[:, :-1])


def test_outputs_of_tokens_are_those_with_their_axis():
    for head in (HEADS['sequence'], HEADS['token'], HEADS['multi_hop']):
        shapes = jax.eval_shape(lambda batch, head=head: model_of(head).outputs(batch), batch_of())
        by_shape = {name for name, leaf in shapes.items() if leaf.shape[1] == LENGTH}
        assert nnx.eval_shape(lambda head=head: model_of(head)).token_outputs == by_shape
