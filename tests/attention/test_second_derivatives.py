"""Tests second derivatives and forward mode of every mechanism: they are right or raise a TypeError, never silently
wrong.

The expected values are differences of the float64 definition along two directions. Rows are packed with padding or
full. With relu features, some queries and keys have no positive feature.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.testing import call, defined, segments_for, vectors
from tests.attention.cells import quick
from tests.attention.test_registry import TABLE

STEP = 1e-5
# These mechanisms have separate code; the others are marked slow, as each compiles for seconds.
FIRST = ('causal', 'lsh', 'favor', "linear('cos'", 'sparsemax', 'entmax', 'hard', 'local_p', 'linformer')
FIRST += ('nystrom', 'induced', 'sinkhorn', 'routing', "synthesizer('dense'", "synthesizer('random+dot'")
CELLS = [(text, backend) for text in TABLE for backend in ('blocked', 'reference')] + [('causal', 'dense')]


def first_rows() -> set[str]:
    return {next(text for text in TABLE if text.startswith(start)) for start in FIRST}


def cells(*quick_backends: str) -> list:
    chosen, params = first_rows(), []
    for text, backend in CELLS:
        is_slow = text not in chosen or backend not in quick_backends
        params.append(pytest.param(text, backend, marks=[pytest.mark.slow] if is_slow else []))
    return params


def inputs() -> tuple[np.ndarray, ...]:
    """Returns queries, keys and values; one query and one key have only negative numbers."""
    q, k, v = (np.array(x) for x in vectors())
    q[:, 7, 0], k[:, 2] = -abs(q[:, 7, 0]), -abs(k[:, 2])
    return q, k, v


def directions(seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=x.shape).astype(np.float32) for x in inputs())


def rows_for(text: str) -> list[np.ndarray]:
    """Returns segments: packed ones with padding where the mechanism supports them, and one text of all tokens."""
    packed = segments_for(parse_mechanism(text))
    return [packed, np.ones_like(packed)]


def loss(text: str, backend: str, segments: jax.Array, *x: jax.Array) -> jax.Array:
    return jnp.sin(call(parse_mechanism(text), *x, backend=backend, segments=segments)).sum()


def defined_loss(text: str, segments: np.ndarray, *steps: tuple[float, tuple[np.ndarray, ...]]) -> float:
    """Returns the definition's loss at the inputs plus the given steps along directions."""
    at = [np.asarray(x, np.float64) for x in inputs()]
    for size, direction in steps:
        at = [x + size * np.asarray(dx, np.float64) for x, dx in zip(at, direction, strict=True)]
    return float(np.sin(defined(parse_mechanism(text), TABLE[text], segments, *at)).sum())


def along(x: tuple[jax.Array, ...], direction: tuple[np.ndarray, ...]) -> jax.Array:
    return sum(((a * b).sum() for a, b in zip(x, direction, strict=True)), jnp.float32(0.0))


@pytest.mark.parametrize(('text', 'backend'), cells('blocked', 'dense'))
def test_second_derivatives_are_those_of_the_definition(text: str, backend: str):
    left, right = directions(11), directions(12)

    @quick
    def product(segments: jax.Array, *x: jax.Array) -> jax.Array:
        def slope(*x: jax.Array) -> jax.Array:
            return along(jax.grad(loss, (3, 4, 5))(text, backend, segments, *x), right)

        return along(jax.grad(slope, (0, 1, 2))(*x), left)

    for segments in rows_for(text):
        signs = itertools.product((1, -1), repeat=2)
        corners = [a * b * defined_loss(text, segments, (a * STEP, left), (b * STEP, right)) for a, b in signs]
        expected = sum(corners) / (4.0 * STEP**2)
        found = float(product(segments, *inputs()))
        assert abs(found - expected) <= 1e-3 * max(1.0, abs(expected)), (found, expected)


@pytest.mark.parametrize(('text', 'backend'), cells('blocked', 'dense', 'reference'))
def test_forward_mode_is_right_or_refused(text: str, backend: str):
    direction = directions(13)

    @quick
    def slope(segments: jax.Array, *x: jax.Array) -> jax.Array:
        return jax.jvp(lambda *x: loss(text, backend, segments, *x), x, direction)[1]

    for segments in rows_for(text):
        try:
            found = float(slope(segments, *inputs()))
        except TypeError as error:
            assert 'custom_vjp' in str(error)
            assert backend != 'reference' or text.startswith(('routing', 'sparsemax', 'entmax'))
            return
        corners = [sign * defined_loss(text, segments, (sign * STEP, direction)) for sign in (1, -1)]
        expected = sum(corners) / (2.0 * STEP)
        assert abs(found - expected) <= 1e-3 * max(1.0, abs(expected)), (found, expected)
