"""Tests the learned operands that are drawn for calls without a layer."""

import inspect

import jax
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.parsing import parse_mechanism
from tests.attention.cells import quick


@pytest.mark.parametrize(
    'text', ['full', 'linformer(4, 12)', 'sinkhorn(4, 3)', 'routing(3, 4)', "synthesizer('random', 12)"]
)
def test_a_call_takes_what_is_drawn(text: str):
    mechanism = parse_mechanism(text)
    x = np.random.default_rng(0).normal(size=(1, 12, 2, 8)).astype(np.float32)

    @quick
    def run(x: jax.Array, key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        learned = draw_operands(mechanism, 2, 8, key)
        return learned, attend(x, x, x, mechanism, learned=learned or None)

    learned, out = run(x, jax.random.key(1))
    assert {name: one.shape for name, one in learned.items()} == {
        name: one.shape for name, one in mechanism.learned_operands(2, 8).items()
    }
    assert np.isfinite(out).all()


def test_a_text_is_no_mechanism():
    with pytest.raises(ValueError, match=r"^mechanism is 'induced\(4\)'; pass an instance such as"):
        inspect.unwrap(draw_operands)('induced(4)', 2, 8, jax.random.key(1))


def test_values_are_as_declared():
    mechanisms = [parse_mechanism(text) for text in ('linformer(64, 512, tied=False)', 'routing(5, 4)')]
    draw = quick(lambda key: [draw_operands(one, heads, 8, key) for one, heads in zip(mechanisms, (1, 2), strict=True)])
    drawn, of_routing = jax.device_get(draw(jax.random.key(1)))
    assert not np.array_equal(drawn['keys'], drawn['values'])
    declared = mechanisms[0].learned_operands(1, 8)
    assert float(drawn['keys'].std()) == pytest.approx(declared['keys'].deviation, rel=0.02)
    [means] = of_routing.values()
    np.testing.assert_allclose(np.linalg.norm(means[..., :-1], axis=-1), 1.0, rtol=1e-5)
    assert not means[..., -1].any()
