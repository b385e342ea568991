"""The fine-tuned model: what each head gives, from what it reads, and that padding changes nothing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import NOWHERE, FineTuningModel
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
    return FineTuningModel(CONFIG, head, rngs=nnx.Rngs(0))


def batch_of(length: int = LENGTH, padded_to: int = LENGTH) -> dict[str, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (ROWS, length), 0, 13)
    pad = ((0, 0), (0, padded_to - length))
    return {
        'tokens': jnp.pad(tokens, pad),
        'segments': jnp.pad(jnp.ones_like(tokens), pad),
        'token_types': jnp.pad(tokens % 2, pad),
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
    model = model_of(HEADS[name])
    first_BD = model.encode(batch_of())[:, 0]
    if model.pooler is not None:
        inner = first_BD @ model.pooler.dense.kernel[...]  # biases start at 0
        first_BD = jnp.tanh(inner) if name == 'sequence' else jax.nn.relu(inner)
    assert (model.pooler is None) == (name == 'plain')
    assert_close(model(batch_of())['logits'], first_BD @ model.head.out.kernel[...])


def two_rows(padded_to: int = LENGTH) -> dict[str, jax.Array]:
    """Rows of two texts each, of 7 and of 5 tokens."""
    first, second = batch_of(7, padded_to), batch_of(5, padded_to)
    return {name: jnp.stack([first[name], second[name]], axis=1) for name in first}


def test_towers_compare_the_vectors_of_two_rows_that_do_not_read_each_other():
    model = model_of(HEADS['towers'])
    first_BLD, second_BLD = model.encode(batch_of(7, 7)), model.encode(batch_of(5, 5))
    a_BD, b_BD = first_BLD.mean(axis=1), second_BLD.mean(axis=1)
    inner_BD = jnp.concatenate([a_BD, b_BD, a_BD * b_BD, a_BD - b_BD], axis=1) @ model.pooler.dense.kernel[...]
    expected_BC = jax.nn.relu(inner_BD) @ model.head.out.kernel[...]
    assert model.pooler.dense.kernel.shape == (64, 16)
    assert_close(model(two_rows())['logits'], expected_BC)
    assert_close(model(two_rows(9))['logits'], expected_BC)  # whatever the padding


def test_towers_draw_dropout_for_each_row_and_side():
    head = dataclasses.replace(HEADS['towers'], dropout_rate=0.5)
    model = FineTuningModel(dataclasses.replace(CONFIG, dropout_rate=0.5), head, rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(3), ROWS)
    found = model(two_rows(), rng=keys)['logits']
    assert found.shape == (ROWS, 3) and not np.allclose(found, model(two_rows(), rng=keys[::-1])['logits'])
    last = {name: array[-1:] for name, array in two_rows().items()}
    assert_close(model(last, rng=keys[-1:])['logits'], found[-1:])  # of its own key alone


def test_padding_changes_no_token():
    model = model_of(HEADS['token'])
    assert_close(model(batch_of(5, 5))['logits'], model(batch_of(5, 9))['logits'][:, :5])


def test_a_feed_forward_layer_stands_before_bigbirds_spans():
    model = model_of(HEADS['deep_span'])
    x_BLD = model.encode(batch_of())
    inner = jax.nn.gelu(x_BLD @ model.head.inner.kernel[...], approximate=True)
    x_BLD = model.head.norm(x_BLD + inner @ model.head.outer.kernel[...])
    assert_close(model(batch_of())['logits'], x_BLD @ model.head.out.kernel[...])


def choices_of(batch: dict[str, jax.Array], choices: int) -> dict[str, jax.Array]:
    return {name: jnp.stack([jnp.roll(array, i, axis=0) for i in range(choices)], 1) for name, array in batch.items()}


def test_each_choice_is_a_row_of_its_own():
    model = model_of(HeadConfig(kind='choice'))
    alone = model.head(model.pooler(model.encode(batch_of())[:, 0]))['logits'][:, 0]
    logits_BA = model(choices_of(batch_of(), 4))['logits']
    assert_close(logits_BA, jnp.stack([jnp.roll(alone, i) for i in range(4)], axis=1))


def test_dropout_is_drawn_for_each_row_and_choice():
    model = model_of(HeadConfig(kind='choice', dropout_rate=0.5))
    same = {name: jnp.stack([array] * 2, axis=1) for name, array in batch_of().items()}
    keys = jax.random.split(jax.random.key(3), ROWS)
    drawn = np.asarray(model(same, rng=keys)['logits'])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    np.testing.assert_array_equal(drawn, model(same, rng=keys)['logits'])
    still = np.asarray(model(same)['logits'])
    np.testing.assert_array_equal(still[:, 0], still[:, 1])


def test_a_model_without_token_types_takes_batches_that_have_them():
    config = dataclasses.replace(CONFIG, token_types=0)
    model = FineTuningModel(config, HEADS['span'], rngs=nnx.Rngs(0))
    assert model(batch_of())['logits'].shape == (ROWS, LENGTH, 2)


@pytest.mark.parametrize('kind', ['span', 'choice'])
def test_outputs_of_padding_are_out_of_reach(kind: str):
    model, batch = model_of(HeadConfig(kind=kind)), batch_of(LENGTH - 1, LENGTH)
    if kind == 'choice':
        empty = jax.tree.map(jnp.zeros_like, batch)
        batch = jax.tree.map(lambda *choices: jnp.stack(choices, axis=1), batch, empty)
    logits, raw = model.outputs(batch)['logits'], model(batch)['logits']
    assert (logits[:, -1] == NOWHERE).all() and (raw[:, -1] > NOWHERE).all()
    np.testing.assert_array_equal(logits[:, :-1], raw[:, :-1])


def test_outputs_of_tokens_are_those_with_their_axis():
    batch = batch_of()
    for head in (HEADS['sequence'], HEADS['token'], HEADS['multi_hop']):
        shapes = jax.eval_shape(model_of(head).outputs, batch)
        by_shape = {name for name, leaf in shapes.items() if leaf.shape[1] == LENGTH}
        assert model_of(head).token_outputs == by_shape
