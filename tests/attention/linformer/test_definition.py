"""Tests that Linformer with a slot for each key is full attention, and that errors name bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.linformer.definition import Linformer
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError
from tests.attention.cells import inputs, quick
from tests.tolerances import assert_close


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
def test_with_the_identity_for_mixtures_it_is_full_attention(backend: str):
    (q, k, v), _ = inputs(12)

    @quick
    def both_ways(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        learned = {'keys': jnp.eye(12)[None]}
        return attend(*arrays, Linformer(12, 12), learned=learned, backend=backend), attend(*arrays, Softmax())

    assert_close(*both_ways(q, k, v))


def test_weights_need_not_be_a_distribution():
    (q, k, _), _ = inputs(12)
    mixtures = {'keys': np.random.default_rng(3).normal(size=(1, 4, 20)).astype(np.float32)}
    run = quick(lambda q, k, learned: attention_weights(q, k, Linformer(4, 20), learned=learned))
    weights = np.asarray(run(q, k, mixtures))
    assert (weights < 0).any() and np.abs(weights.sum(-1) - 1.0).max() > 0.1


@pytest.mark.parametrize(
    'text, line',
    [
        ('linformer(0)', 'linformer rank is 0; it must be at least 1'),
        ('linformer(4, 0)', 'linformer length is 0; it must be at least 1'),
        ('linformer(4, 8, tied=1)', 'linformer tied is 1; it must be True or False'),
        ('linformer(causal=True)', 'linformer has no option causal; write another mechanism'),
    ],
)
def test_bad_texts_are_named(text: str, line: str):
    with pytest.raises(InputError, match=line):
        parse_mechanism(text)


@pytest.mark.parametrize(
    'learned, line',
    [
        (None, r'learns keys \(1, 4, 20\); give it in `learned`; ea.draw_operands draws it$'),
        ({'keys': jnp.ones((4, 20))}, r'learned keys has shape \(4, 20\); .* needs \(1, 4, 20\)'),
        ({'keys': jnp.ones((1, 4, 20), jnp.int32)}, 'learned keys is of type int32'),
        ({'keys': jnp.ones((1, 4, 20)), 'values': jnp.ones((1, 4, 20))}, 'learns no values'),
    ],
    ids=['missing', 'misshapen', 'integers', 'unknown'],
)
def test_learned_arrays_that_do_not_fit_are_named(learned: dict | None, line: str):
    (q, k, v), _ = inputs(12)
    with pytest.raises(ValueError, match=line):
        attend(q, k, v, Linformer(4, 20), learned=learned)
    with pytest.raises(ValueError, match='learns no keys'):
        attend(q, k, v, Softmax(), learned={'keys': jnp.ones((1, 4, 20))})
