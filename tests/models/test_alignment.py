"""Tests cross-attention weights: they are the weights by which a layer sums the source's values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.alignment import cross_weights
from efficient_attention.models.encoder import mechanism_rng
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.modules.layer_context import Context
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SOURCE, SEGMENTS = jax.device_put((np.int32([[2, 3, 4, 5], [3, 5, 2, 0]]), np.int32([[1] * 4, [1, 1, 1, 0]])))
TOKENS, ONES = jax.device_put((np.int32([[0, 2, 4], [0, 3, 1]]), np.ones((2, 3), np.int32)))


@pytest.mark.parametrize('text', ['window(1)', 'favor(8, orthogonal=False)'])
def test_the_weights_are_those_that_the_layer_sums_values_by(text: str):
    config = ModelConfig(
        width=16, heads=2, vocab_size=8, max_length=8, token_types=0, layers=1, decoder_layers=2, cross_attention=text,
        attention_dropout_rate=0.0, norm='pre',
    )  # fmt: skip
    model = nnx.merge(*drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))

    @jax.jit
    def both() -> tuple[jax.Array, jax.Array, jax.Array]:
        other, decoder = model.encode(SOURCE, SEGMENTS), model.decoder
        weights = cross_weights(decoder, TOKENS, ONES, other)
        x, context = decoder.embedded(TOKENS, ONES, other=other)
        first, last = decoder.stack.parameter_layers()
        context = Context(ONES, context.positions_BL, mechanism_rng=mechanism_rng(decoder.config, 0), other=other)
        streams, _ = first.run((x,), context.layer_context(0))
        x = streams[0] + last.reversible_branch(last.sub_layers[0], streams[0], context.layer_context(1))
        cross = last.cross_attention
        expected, _ = cross.run(last.cross_attention_norm(x), context.layer_context(1))
        summed = jnp.einsum('BHLM,BMHK->BLHK', weights, cross.project_source(other).value)
        return weights, cross.merge_and_project_heads(summed), expected

    weights, found, expected = map(np.asarray, both())
    assert weights.shape == (2, 2, 3, 4) and not weights[1, ..., 3].any()
    assert_close(found, expected, gradient=True)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_a_decoder_without_attention_has_no_weights():
    config = ModelConfig(
        width=8, cell='gru', vocab_size=8, token_types=0, layers=1, decoder_layers=1, source_reading='state',
        initial_state='copy',
    )  # fmt: skip
    model = nnx.merge(*drawn(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0))))
    with pytest.raises(InputError, match="^model.source_reading is 'state': the decoder does not attend to the source"):
        jax.eval_shape(lambda: cross_weights(model.decoder, TOKENS, ONES, model.encode(SOURCE, SEGMENTS)))
