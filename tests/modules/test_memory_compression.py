"""Tests each kind of compression of tokens to slots, texts that end within a slot, and the compressor's loss."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.modules import memory_compression as module
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.layer_context import LayerMemory
from efficient_attention.modules.memory_compression import (
    RECONSTRUCTION,
    auxiliary_losses,
    compress,
    make_compressor,
    reconstruction_error,
    stop_gradient_to_params,
    sum_over_layers,
)
from tests.attention.cells import quick
from tests.models.drawn import drawn
from tests.tolerances import assert_close

WIDTH, RATE = 4, 3
SEGMENTS = np.asarray([[1, 1, 1, 1, 2, 2], [0, 0, 3, 3, 3, 0]], np.int32)
IS_OF_TEXT = np.asarray([[1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 1]], bool)
RNG = np.random.default_rng(0)
TOKENS = LayerMemory(RNG.normal(size=(2, 6, WIDTH)).astype(np.float32), SEGMENTS)


def attention_of(config: LayerConfig) -> Attention:
    return nnx.merge(*drawn(lambda: Attention(config, rngs=nnx.Rngs(0))))


def some(*lengths: int) -> np.ndarray:
    return RNG.normal(size=(*lengths, WIDTH)).astype(np.float32)


def config_of(compression: str, **fields) -> LayerConfig:
    weight = {'reconstruction_weight': 1.0} if compression == 'convolution' else {}
    return LayerConfig(width=WIDTH, heads=2, compression=compression, compression_rate=RATE, **weight | fields)


@pytest.mark.parametrize('compression', ['convolution', 'mean', 'max'])
def test_a_slot_has_the_text_of_its_newest_token_and_takes_no_other(compression: str):
    config = config_of(compression)
    slots = jax.device_get(quick(lambda tokens: compress(config, make_compressor(config, nnx.Rngs(0)), tokens))(TOKENS))
    assert slots.segments_BM.tolist() == [[1, 2], [3, 0]]
    x, is_of_text = np.asarray(TOKENS.states_BMD).reshape(4, RATE, WIDTH), IS_OF_TEXT.reshape(4, RATE)
    by_slot = [x[slot][is_of_text[slot]] for slot in range(4)]
    if compression == 'convolution':  # The kernel starts as a mean, with zeros for tokens of other texts.
        expected = [tokens.sum(0) / RATE for tokens in by_slot]
    else:
        expected = [{'mean': np.mean, 'max': np.max}[compression](tokens, axis=0) for tokens in by_slot]
    assert_close(slots.states_BMD, np.stack(expected).reshape(2, 2, WIDTH))


def test_a_convolution_multiplies_the_tokens_of_a_slot_side_by_side():
    config = config_of('convolution')
    compressor = make_compressor(config, nnx.Rngs(0))
    assert compressor is not None and compressor.bias is None
    kernel = some(RATE * WIDTH)
    compressor.kernel[...] = jnp.asarray(kernel)
    one_text = TOKENS._replace(segments_BM=np.ones_like(SEGMENTS))
    expected = np.stack([TOKENS.states_BMD[:, at : at + RATE].reshape(2, -1) @ kernel for at in (0, RATE)], axis=1)
    assert_close(quick(lambda tokens: compress(config, compressor, tokens).states_BMD)(one_text), expected)


def test_only_a_convolution_has_parameters():
    assert make_compressor(config_of('mean'), nnx.Rngs(0)) is None
    assert make_compressor(LayerConfig(width=WIDTH), nnx.Rngs(0)) is None


def test_what_does_not_divide_or_is_not_compressed_is_refused():
    odd = LayerMemory(TOKENS.states_BMD[:, 1:], SEGMENTS[:, 1:])
    with pytest.raises(ValueError, match="a segment of 5 tokens with model.compression 'mean' at rate 3"):
        compress(config_of('mean'), None, odd)
    with pytest.raises(ValueError, match="a segment of 6 tokens with model.compression 'none'"):
        compress(LayerConfig(width=WIDTH), None, TOKENS)


@pytest.mark.parametrize('fields', [{}, {'shared_qk': True, 'rotary': True}, {'score': 'additive'}], ids=str)
def test_equal_slots_have_no_error_and_others_that_of_softmax_over_contents(fields: dict):
    config = config_of('convolution', **fields)
    attention, mechanism = attention_of(config), parse_mechanism('causal & window(1)')
    segment = LayerMemory(some(2, 3), np.asarray([[1, 1, 2], [3, 0, 4]], np.int32))

    @quick
    def errors(segment: LayerMemory, tokens: LayerMemory) -> list:
        slots = compress(config, make_compressor(config, nnx.Rngs(0)), tokens)
        return [reconstruction_error(attention, mechanism, segment, tokens, new) for new in (tokens, slots)]

    same, error = errors(segment, TOKENS)
    assert same == 0.0 and error.dtype == jnp.float32 and error > 0.0
    # Token 1 of row 1 is padding, and no slot has the text of token 2, so these tokens add nothing to the error.
    changed = segment.states_BMD.copy()
    changed[1, 1:] += 1.0
    assert_close(errors(segment._replace(states_BMD=changed), TOKENS)[1], error)


def test_the_error_is_the_mean_over_heads_and_widths_of_the_squared_difference():
    config = config_of('convolution', attention_bias=False)
    attention, mechanism = attention_of(config), parse_mechanism('causal')
    segment = LayerMemory(some(1, 3), np.ones((1, 3), np.int32))
    old = LayerMemory(TOKENS.states_BMD[:1], np.ones((1, 6), np.int32))

    @quick
    def compressed(segment: LayerMemory, old: LayerMemory) -> tuple[LayerMemory, jax.Array]:
        new = compress(config, make_compressor(config, nnx.Rngs(0)), old)
        return new, reconstruction_error(attention, mechanism, segment, old, new)

    new, error = jax.device_get(compressed(segment, old))

    def read(slots):
        q, k, v = (
            (x[0] @ np.asarray(module.kernel[...])).reshape(-1, 2, 2)
            for x, module in (
                (segment.states_BMD, attention.query),
                (slots.states_BMD, attention.key),
                (slots.states_BMD, attention.value),
            )
        )
        weights = np.exp(np.einsum('lhk,mhk->hlm', q, k) / np.sqrt(2))
        return np.einsum('hlm,mhk->lhk', weights / weights.sum(-1, keepdims=True), v)

    expected = np.square(read(old) - read(new)).sum() / WIDTH
    assert_close(error, np.float32(expected))


def test_no_gradient_flows_into_a_module_that_is_held():
    graph, state = drawn(lambda: Attention(config_of('convolution'), rngs=nnx.Rngs(0)))

    def total(state, is_held: bool):
        module = nnx.merge(graph, state)
        return (stop_gradient_to_params(module) if is_held else module).value(jnp.asarray(TOKENS.states_BMD)).sum()

    for is_held in (True, False):
        gradient = quick(jax.grad(functools.partial(total, is_held=is_held)))(state)
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient)) is not is_held


def test_the_loss_runs_on_the_config_s_backend(monkeypatch: pytest.MonkeyPatch):
    asked, attend_with = [], module.attend_with_options

    def noted(*x: Any) -> tuple[jax.Array, jax.Array | None]:
        asked.append(x[-1].backend)
        return attend_with(*x)

    monkeypatch.setattr(module, 'attend_with_options', noted)
    config = config_of('convolution', attention_backend='reference')
    attention, mechanism = attention_of(config), parse_mechanism('causal')
    jax.eval_shape(lambda tokens: reconstruction_error(attention, mechanism, tokens, tokens, tokens), TOKENS)
    assert asked == ['reference', 'reference']


LEARNED = {'compression': 'convolution', 'compressed_length': 8, 'reconstruction_weight': 0.5}


def test_a_learned_compressor_tells_its_loss_where_there_are_slots():
    assert auxiliary_losses(ModelConfig(**LEARNED)) == {RECONSTRUCTION: 0.5}
    assert auxiliary_losses(ModelConfig(**LEARNED | {'compressed_length': 0})) == {}
    assert auxiliary_losses(ModelConfig(compression='mean', compressed_length=8)) == {}
    assert auxiliary_losses(ModelConfig()) == {}


def test_sums_are_added_over_layers():
    assert sum_over_layers({'one': jnp.asarray([0.0, 1.0, 2.0])})['one'] == 3.0
    assert sum_over_layers({}) == {}
