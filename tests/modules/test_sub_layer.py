"""The residual sum of one stream and of two, and lists of sub-layers that keep their keys apart."""

import jax.numpy as jnp
import pytest

from efficient_attention.modules.layer import (
    CROSS_ATTENTION_LAYER,
    SELF_ATTENTION_LAYER,
    SubLayer,
    advance,
    begin,
    end,
)


def test_one_stream_is_added_to_and_two_in_turn():
    x, y = jnp.asarray([1.0]), jnp.asarray([10.0])
    assert advance((x,), lambda x: (2 * x, 'kept')) == ((3.0,), 'kept')
    assert advance((x,), lambda x: (2 * x, None), norm=lambda x: -x)[0] == (-3.0,)
    first, second = advance((x, y), lambda x: (2 * x, None))[0]
    assert (first, second) == (10.0, 21.0)
    assert advance((first, second), lambda x: (3 * x, None))[0] == (21.0, 73.0)


@pytest.mark.parametrize('is_reversible', [False, True])
def test_a_stack_without_layers_gives_its_input(is_reversible: bool):
    x = jnp.asarray([1.0, 2.5], jnp.bfloat16)
    streams = begin(x, is_reversible=is_reversible)
    assert [stream.dtype for stream in streams] == (['float32'] * 2 if is_reversible else ['bfloat16'])
    assert end(streams, x.dtype).dtype == x.dtype and (end(streams, x.dtype) == x).all()


@pytest.mark.parametrize('sub_layers', [SELF_ATTENTION_LAYER, CROSS_ATTENTION_LAYER], ids=['self', 'cross'])
def test_dropout_has_a_number_for_each_use(sub_layers: tuple[SubLayer, ...]):
    """The first three are those that checkpoints in training go on with."""
    numbers = [n for sub in sub_layers for n in ((sub.inner_dropout,) if sub.keys_from else ()) + (sub.dropout,)]
    assert len(set(numbers)) == len(numbers)
    assert numbers[:2] == [0, 1] and numbers[-1] == 2


def test_what_decoding_keeps_follows_from_where_keys_come_from():
    assert [sub.cache for sub in CROSS_ATTENTION_LAYER] == ['growing', 'fixed', '']
    assert [sub.norm for sub in SELF_ATTENTION_LAYER] == ['attention_norm', 'feed_forward_norm']
