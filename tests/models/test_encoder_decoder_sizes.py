"""Tests every named encoder-decoder's exact parameter count."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.encoder_decoder_sizes import (
    BART_SIZES,
    T5_SIZES,
    T5_V1_1_SIZES,
    VASWANI_SIZES,
    bart_fields,
    t5_fields,
    t5_v1_1_fields,
    vaswani_fields,
)

FAMILIES: dict[str, tuple[Callable[[str], dict[str, Any]], Iterable[str]]] = {
    't5': (t5_fields, T5_SIZES),
    't5_v1_1': (t5_v1_1_fields, T5_V1_1_SIZES),
    'bart': (bart_fields, BART_SIZES),
    'vaswani': (vaswani_fields, VASWANI_SIZES),
}
CONFIGS = {
    f'{family}_{size}': ModelConfig(**fields(size)) for family, (fields, sizes) in FAMILIES.items() for size in sizes
}

# With I = H K, T5 has V D + N (12 D I + 4 D F + 5 D) + 64 H + 2 D; T5 1.1 has 6 D F, and V D once more.
# BART has (V + 2 x 1026) D + N (12 D^2 + 4 D F + 2 F + 24 D) + 4 D; Vaswani has V D and the same layers.
COUNTS = {
    't5_small': 60_506_624,
    't5_base': 222_903_552,
    't5_large': 737_668_096,
    't5_3b': 2_851_598_336,
    't5_11b': 11_307_321_344,
    't5_v1_1_small': 76_961_152,
    't5_v1_1_base': 247_577_856,
    't5_v1_1_large': 783_150_080,
    't5_v1_1_xl': 2_849_757_184,
    't5_v1_1_xxl': 11_135_332_352,
    'bart_base': 139_420_416,
    'bart_large': 406_291_456,
    'vaswani_base': 63_082_496,
    'vaswani_big': 214_245_376,
}


def test_no_size_is_missing_from_the_table():
    assert set(COUNTS) == set(CONFIGS)


@pytest.mark.parametrize('name', COUNTS)
def test_parameters(name: str):
    model = nnx.eval_shape(lambda: EncoderDecoder(CONFIGS[name], rngs=nnx.Rngs(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == COUNTS[name]


@pytest.mark.parametrize('name', [name for name in COUNTS if name not in ('t5_3b', 't5_11b')])
def test_heads_are_64_wide(name: str):
    assert CONFIGS[name].head_width == 64


@pytest.mark.parametrize(
    'fields, line',
    [
        (t5_fields, "unknown T5 size 'huge'; known: small, base, large, 3b, 11b"),
        (t5_v1_1_fields, "unknown T5 1.1 size 'huge'; known: small, base, large, xl, xxl"),
        (bart_fields, "unknown BART size 'huge'; known: base, large"),
        (vaswani_fields, "unknown Vaswani size 'huge'; known: base, big"),
    ],
)
def test_an_unknown_size_lists_the_known_ones(fields, line: str):
    with pytest.raises(InputError, match=line):
        fields('huge')


def test_the_matrices_of_a_t5_start_as_its_own():
    """The deviations are those of the published initial values, except two that differ here: see `_t5_fields`."""
    D, H, K, F, V = 96, 10, 6, 200, 500
    sizes = {'width': D, 'heads': H, 'head_width': K, 'feed_forward_width': F, 'layers': 2, 'decoder_layers': 2}
    config = ModelConfig(**t5_v1_1_fields('small') | sizes | {'vocab_size': V})
    state = nnx.to_pure_dict(nnx.state(EncoderDecoder(config, rngs=nnx.Rngs(0))))
    expected = {'query': (D * K) ** -0.5, 'out': (H * K) ** -0.5, 'down': F**-0.5, 'embedding': 0.88, 'dense': D**-0.5}
    expected |= dict.fromkeys(('key', 'value', 'up', 'gate', 'table'), D**-0.5)
    seen = set()
    for path, leaf in jax.tree.leaves_with_path(state):
        names = [entry.key for entry in path]
        name = names[-2] if names[-1] == 'kernel' else names[-1]
        if name == 'scale':
            assert (np.asarray(leaf) == 1).all()
            continue
        seen.add(name)
        tolerance = 0.15 if name == 'table' else 0.04  # The table has 320 numbers, the others 5,760 or more.
        np.testing.assert_allclose(np.asarray(leaf).std(), expected[name], rtol=tolerance, err_msg=str(names))
    assert seen == set(expected)
