"""Tests that the weights of imported models' layers equal stored ones of transformers to 1e-5."""

from collections.abc import Mapping

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from efficient_attention.inference.pretrained_models import pretrained_decoder, pretrained_encoder
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.models.layer_readings import layer_readings, self_attention_weights
from tests.interop.folders import ARRAYS, FIXTURES, arrays_of, batch_of
from tests.interop.gpt2_folders import LANGUAGE_MODELS

pytestmark = pytest.mark.lenient_promotion  # Flax's norms compute in float32.
TOLERANCE = 1e-5
ENCODERS = [path.name for path in sorted(FIXTURES.iterdir()) if 'output/attentions/0' in arrays_of(path.name)]


def stored(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the weights [B, H, L, L] of each layer, as transformers computed them."""
    layers = [arrays[f'output/attentions/{layer}'] for layer in range(99) if f'output/attentions/{layer}' in arrays]
    if 'output/global_attentions/0' not in arrays:
        return layers
    return [
        square(weights, arrays[f'output/global_attentions/{layer}'], arrays) for layer, weights in enumerate(layers)
    ]


def square(band: np.ndarray, of_global: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns weights [B, H, L, L] from Longformer's parts.

    `band` [B, H, L, g + w + 1] has the weights of up to g global tokens, then of tokens around the query. `of_global`
    [B, H, at least L, g] has the weights by which the global tokens read all tokens.
    """
    rows, heads, length, width = band.shape
    most = int(arrays['input/global_attention_mask'].sum(1).max())
    around = (width - most - 1) // 2
    found = np.zeros((rows, heads, length, length))
    for row, marks in enumerate(arrays['input/global_attention_mask']):
        places = np.flatnonzero(marks)
        for query in range(length):
            for step in range(-around, around + 1):
                if 0 <= query + step < length:
                    found[row, :, query, query + step] = band[row, :, query, most + around + step]
            found[row, :, query, places] = band[row, :, query, : len(places)].T
        for number, place in enumerate(places):
            found[row, :, place] = of_global[row, :, :length, number]
    return found


def assert_equal(ours: list[np.ndarray], arrays: Mapping[str, np.ndarray]) -> None:
    """Compares the weights of queries that are no padding."""
    theirs, is_token_BL = stored(arrays), arrays['input/attention_mask'] == 1
    assert [one.shape for one in ours] == [one.shape for one in theirs] and len(ours) >= 2
    for found, expected in zip(ours, theirs, strict=True):
        assert 0.02 < expected.swapaxes(1, 2)[is_token_BL].std()
        np.testing.assert_allclose(
            found.swapaxes(1, 2)[is_token_BL], expected.swapaxes(1, 2)[is_token_BL], atol=TOLERANCE
        )


@pytest.mark.parametrize('name', ENCODERS)
def test_weights_of_encoders(name: str):
    model, batch = pretrained_encoder(open_pretrained(FIXTURES / name)), batch_of(name)

    @jax.jit
    def weights() -> list[jax.Array]:
        options = {'token_types_BL': batch['token_types'], 'is_global_BL': batch.get('is_global')}
        return [one.weights() for one in layer_readings(model, batch['tokens'], batch['segments'], **options)]

    assert_equal(jax.device_get(weights()), arrays_of(name))


@pytest.mark.parametrize('name', ['gpt2_1', 'gpt2_2'])
def test_weights_of_language_models(name: str):
    arrays = load_file(LANGUAGE_MODELS / name / ARRAYS)
    decoder = pretrained_decoder(open_pretrained(LANGUAGE_MODELS / name))
    weights = jax.jit(lambda: self_attention_weights(decoder, *map(jax.device_put, inputs)))
    inputs = arrays['input/input_ids'], arrays['input/attention_mask']
    assert_equal([*np.asarray(weights())], arrays)


def test_the_stored_families_are_those_with_dense_weights():
    assert {name.rpartition('_')[0] for name in ENCODERS} == {
        *('albert', 'bert', 'distilbert', 'electra', 'longformer', 'roberta')
    }
