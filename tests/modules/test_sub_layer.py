"""Tests the residual sum of one and of two streams, and that sub-layers in a list have separate random keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer import (
    CROSS_ATTENTION_LAYER,
    SELF_ATTENTION_LAYER,
    Layer,
    SubLayer,
    initial_streams,
    merge_streams,
)
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close


def made(**fields: Any) -> Layer:
    return nnx.merge(*drawn(lambda: Layer(LayerConfig(width=4, heads=2, **fields), rngs=nnx.Rngs(0))))


def test_one_stream_is_added_to_and_two_in_turn():
    layer = made(norm='none')
    sub, x, y = layer.sub_layers[1], jnp.ones((1, 2, 4)), jnp.full((1, 2, 4), 10.0)
    (total,) = quick(lambda x: layer.add_residual(sub, (x,), 2 * x))(x)
    assert (np.asarray(total) == 3.0).all()

    @quick
    def add_twice(x: jax.Array, y: jax.Array) -> list:
        first, second = layer.add_residual(sub, (x, y), 2 * y)
        return [(first, second), layer.add_residual(sub, (first, second), 3 * second)]

    (first, second), (third, fourth) = jax.device_get(add_twice(x, y))
    assert (first == 10.0).all() and (second == 21.0).all()
    assert (third == 21.0).all() and (fourth == 73.0).all()


def test_a_post_layer_normalises_the_sum_and_one_without_residual_has_none():
    post, pre, alone = made(norm='post'), made(norm='pre'), made(norm='none', residual=False)

    @quick
    def all_ways(x: jax.Array) -> list:
        sub = post.sub_layers[1]
        return [
            (post.add_residual(sub, (x,), 2 * x)[0], post.feed_forward_norm(3 * x)),
            (post.read(sub, x), x),
            (pre.read(sub, x), pre.feed_forward_norm(x)),
            (alone.add_residual(sub, (x,), 2 * x)[0], 2 * x),
        ]

    for found, expected in all_ways(np.arange(8, dtype=np.float32).reshape(1, 2, 4) ** 2):
        assert_close(found, expected)


@pytest.mark.parametrize('is_reversible', [False, True])
def test_a_stack_without_layers_gives_its_input(is_reversible: bool):
    x = jnp.asarray([1.0, 2.5], jnp.bfloat16)
    streams = initial_streams(x, is_reversible=is_reversible)
    assert [stream.dtype for stream in streams] == (['float32'] * 2 if is_reversible else ['bfloat16'])
    assert merge_streams(streams, x.dtype).dtype == x.dtype and (merge_streams(streams, x.dtype) == x).all()


@pytest.mark.parametrize('sub_layers', [SELF_ATTENTION_LAYER, CROSS_ATTENTION_LAYER], ids=['self', 'cross'])
def test_dropout_has_a_number_for_each_use(sub_layers: tuple[SubLayer, ...]):
    """The first three numbers must not change, because training resumes from checkpoints with them."""
    numbers = [n for sub in sub_layers for n in ((sub.inner_dropout,) if sub.keys_from else ()) + (sub.dropout,)]
    assert len(set(numbers)) == len(numbers)
    assert numbers[:2] == [0, 1] and numbers[-1] == 2


def test_what_decoding_keeps_follows_from_where_keys_come_from():
    assert [sub.cache_kind for sub in CROSS_ATTENTION_LAYER] == ['growing', 'fixed', '']
    assert [sub.norm_name for sub in SELF_ATTENTION_LAYER] == ['attention_norm', 'feed_forward_norm']
