"""What layers tell: which losses a config has, and the sums over layers."""

import jax.numpy as jnp

from efficient_attention.config.model import ModelConfig
from efficient_attention.modules.told import RECONSTRUCTION, over_layers, told_losses

LEARNED = {'compression': 'convolution', 'compressed_length': 8, 'reconstruction_weight': 0.5}


def test_a_learned_compressor_tells_its_loss_where_there_are_slots():
    assert told_losses(ModelConfig(**LEARNED)) == {RECONSTRUCTION: 0.5}
    assert told_losses(ModelConfig(**LEARNED | {'compressed_length': 0})) == {}
    assert told_losses(ModelConfig(compression='mean', compressed_length=8)) == {}
    assert told_losses(ModelConfig()) == {}


def test_sums_are_added_over_layers():
    assert over_layers({'one': jnp.arange(3.0)})['one'] == 3.0
    assert over_layers({}) == {}
