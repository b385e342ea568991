"""An encoder's vectors as outputs, and no loss."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder import Encoder
from efficient_attention.objectives.vectors import Vectors

CONFIG = ModelConfig(width=8, heads=2, layers=1, vocab_size=11, max_length=6)


def test_outputs_are_the_encoders_and_there_is_no_loss():
    model = Encoder(CONFIG, rngs=nnx.Rngs(0))
    tokens = jnp.array([[3, 4, 5, 0]], jnp.int32)
    batch = {'tokens': tokens, 'segments': jnp.sign(tokens), 'token_types': jnp.array([[0, 1, 1, 0]], jnp.int32)}
    outputs = Vectors().outputs(model, batch)
    expected = model(tokens, jnp.sign(tokens), token_types_BL=batch['token_types'])
    np.testing.assert_array_equal(outputs['vectors'], expected)
    assert Vectors().sums_of(outputs, batch) == Vectors().weights(batch) == Vectors().sums(model, batch, None) == {}
