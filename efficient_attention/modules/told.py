"""What layers tell beside their outputs: by name sums over all rows and tokens, such as losses of their own.

A sum is float32 and adds over devices, micro-batches and layers, as the sums of objectives do. What a layer does not
tell costs nothing. Only decoders that go on from a memory ask for it; running means, which must come through reversible
stacks too, travel as gradients instead, see training/running_means.py.
"""

from jax import Array

from efficient_attention.config.layer import LayerConfig

Told = dict[str, Array]

RECONSTRUCTION = 'reconstruction'  # of compressed memory, see modules/compression.py


def told_losses(config: LayerConfig) -> dict[str, float]:
    """The losses that layers tell while they go on from a memory, each with its factor; their weights are tokens."""
    is_told = config.compressed_length > 0 and config.reconstruction_weight > 0.0
    return {RECONSTRUCTION: config.reconstruction_weight} if is_told else {}


def over_layers(told: Told) -> Told:
    """The sums over all layers, of which the first axis is."""
    return {name: sums_N.sum(axis=0) for name, sums_N in told.items()}
