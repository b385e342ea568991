"""Tests of the interface of all noises: the same result for equal random numbers, and pickling."""

import pickle

import numpy as np
import pytest

from efficient_attention.config.noise import NoiseConfig
from efficient_attention.data.corpus.bart_noise import BartNoise
from efficient_attention.data.corpus.noise_interface import Noise, TextToNoise
from efficient_attention.data.corpus.span_corruption import SpanCorruption

NOISES = [
    SpanCorruption(0.15, 3.0, np.arange(90, 98, dtype=np.int32), 40, (36, 8)),
    BartNoise(NoiseConfig('bart'), 99, np.zeros(100, bool), 40, (40, 40)),
]


@pytest.mark.parametrize('noise', NOISES, ids=lambda noise: type(noise).__name__)
def test_a_noise_is_a_function_of_the_text_and_the_random_numbers(noise: Noise):
    text = TextToNoise(np.arange(40, dtype=np.int32), np.array([0, 9, 30]))
    one, other = (each(text, np.random.default_rng(3)) for each in (noise, pickle.loads(pickle.dumps(noise))))
    assert all(np.array_equal(*pair) and pair[0].dtype == np.int32 for pair in zip(one, other, strict=True))
    assert not np.array_equal(one[0], noise(text, np.random.default_rng(4))[0])
    assert np.array_equal(text.tokens, np.arange(40)) and all(
        len(ids) <= most for ids, most in zip(one, noise.lengths, strict=True)
    )
