"""Tests self-attention weights: they are the weights by which each layer of a decoder sums values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.self_attention_weights import self_attention_weights
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SIZES = {'width': 16, 'heads': 2, 'layers': 2, 'vocab_size': 8, 'token_types': 0, 'norm': 'pre', 'positions': 'none'}
TOKENS, SEGMENTS = jax.device_put(
    (np.int32([[2, 3, 4, 5, 1], [3, 5, 2, 0, 0]]), np.int32([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]]))
)


@pytest.mark.parametrize(
    'fields',
    [
        {'attention': 'causal', 'rotary': True},
        {'attention': 'causal & window(1)', 'relative': 't5'},
        {'attention': 'causal', 'relative': 'transformer_xl'},
        {'attention': 'favor(8, orthogonal=False, causal=True)', 'rotary': True, 'attention_dropout_rate': 0.0},
    ],
)
def test_the_weights_are_those_that_the_layers_sum_values_by(fields):
    config = ModelConfig(**SIZES | fields)
    decoder = nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))

    @jax.jit
    def both() -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
        weights = self_attention_weights(decoder, TOKENS, SEGMENTS)
        x_BLD, context = decoder.embedded(TOKENS, SEGMENTS)
        context = context.with_shared_terms(decoder.stack.shared_terms(context.positions_BL))
        found, expected = [], []
        for number, layer in enumerate(decoder.stack.parameter_layers()):
            attention, read_BLD = layer.attention, layer.attention_norm(x_BLD)
            value_BMHK = attention.split_heads(attention.value(read_BLD))
            summed_BLHK = jnp.einsum('BHLM,BMHK->BLHK', weights[number], value_BMHK)
            found.append(attention.merge_and_project_heads(summed_BLHK))
            expected.append(attention.run(read_BLD, context.layer_context(number))[0])
            x_BLD = layer.run((x_BLD,), context.layer_context(number))[0][0]
        return weights, found, expected

    weights, found, expected = jax.device_get(both())
    assert weights.shape == (2, 2, 2, 5, 5)
    assert not weights[:, 0, :, 2:, :2].any() and not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights[:, 0].sum(-1), 1.0, rtol=1e-5)
    assert_close(found, expected, gradient=True)


def test_recurrent_layers_have_no_weights():
    config = ModelConfig(width=8, cell='gru', attention='causal', vocab_size=8, token_types=0, positions='none')
    decoder = nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    with pytest.raises(InputError, match="^model.cell is 'gru'; it must be 'none': recurrent layers have no attention"):
        self_attention_weights(decoder, TOKENS, SEGMENTS)
