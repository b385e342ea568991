"""What mechanisms learn, drawn for calls without a layer."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.draw_operands import draw_operands
from efficient_attention.attention.parsing import parse_mechanism


@pytest.mark.parametrize(
    'text', ['full', 'linformer(4, 12)', 'sinkhorn(4, 3)', 'routing(3, 4)', "synthesizer('random', 12)"]
)
def test_a_call_takes_what_is_drawn(text: str):
    mechanism, x = parse_mechanism(text), jax.random.normal(jax.random.key(0), (1, 12, 2, 8))
    learned = draw_operands(mechanism, 2, 8, jax.random.key(1))
    assert {name: one.shape for name, one in learned.items()} == {
        name: one.shape for name, one in mechanism.learned_operands(2, 8).items()
    }
    assert jnp.isfinite(attend(x, x, x, mechanism, learned=learned or None)).all()


def test_a_text_is_no_mechanism():
    with pytest.raises(ValueError, match=r"^mechanism is 'induced\(4\)'; pass an instance such as"):
        inspect.unwrap(draw_operands)('induced(4)', 2, 8, jax.random.key(1))


def test_values_are_as_declared():
    drawn = draw_operands(parse_mechanism('linformer(64, 512, tied=False)'), 1, 8, jax.random.key(1))
    assert not np.array_equal(drawn['keys'], drawn['values'])
    declared = parse_mechanism('linformer(64, 512, tied=False)').learned_operands(1, 8)
    assert float(drawn['keys'].std()) == pytest.approx(declared['keys'].deviation, rel=0.02)
    [means] = draw_operands(parse_mechanism('routing(5, 4)'), 2, 8, jax.random.key(1)).values()
    np.testing.assert_allclose(jnp.linalg.norm(means[..., :-1], axis=-1), 1.0, rtol=1e-5)
    assert not means[..., -1].any()
