"""Checks that tests of several mechanisms share: equality with the definition, sizes of arrays, bfloat16 and
dropout.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.parsing import parse_mechanism
from tests.attention import contract
from tests.attention.cells import drawn_operands, inputs, quick
from tests.tolerances import assert_close

STEPS = (1e-6, -1e-6)
# A function from mechanism, query and key [L, H, K], learned operands and the mask of tokens
# to the weights [H, L, M] of one row in float64.
Weights = Callable[[Any, np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray], np.ndarray]


def check_definition(text: str, length: int, weights: Weights) -> None:
    """Checks a padded row's output and the gradient of each operand against the definition.

    The row has one head; at 65 positions it has two, whose learned operands differ.
    """
    heads = 2 if length == 65 else 1
    mechanism, valid = parse_mechanism(text), np.arange(length) < max(1, length - 2)
    arrays, learned = inputs(length, batch=1, heads=heads)[0], drawn_operands(mechanism, heads, 8)
    segments = valid[None].astype(np.int32)
    turn = np.cos(np.arange(arrays[0].size, dtype=np.float32)).reshape(arrays[0].shape)

    def loss(arrays: tuple[jax.Array, ...], learned: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out = attend(*arrays, mechanism, query_segments=segments, key_segments=segments, learned=learned)
        return (out * turn).sum(), out

    def defined(exact: list[np.ndarray]) -> np.ndarray:
        query, key, value, *rest = exact
        found = weights(mechanism, query, key, dict(zip(learned, rest, strict=True)), valid)
        return contract.mixed(found, value)

    gradients, out = quick(jax.grad(loss, (0, 1), has_aux=True))(arrays, learned)
    exact = [np.asarray(x, np.float64) for x in (*(np.asarray(x)[0] for x in arrays), *learned.values())]
    assert_close(np.asarray(out)[0], defined(exact))
    of_learned = [gradients[1][name] for name in learned]
    check_slopes(defined, exact, np.asarray(turn[0], np.float64), [*gradients[0], *of_learned])


def check_slopes(
    defined: Callable[[list[np.ndarray]], np.ndarray],
    exact: list[np.ndarray],
    turn: np.ndarray,
    gradients: Sequence[jax.Array],
) -> None:
    """Checks the gradient of the sum of outputs times `turn` for each operand, by a finite difference of the
    definition.

    The difference is taken along a random direction. There a wrong part of a gradient moves the slope by about its
    norm, so the tolerance is a share of the norm.
    """
    for n, (operand, gradient) in enumerate(zip(exact, gradients, strict=True)):
        move = np.random.default_rng(n).normal(size=operand.shape)
        ends = [defined([*exact[:n], operand + step * move, *exact[n + 1 :]]) for step in STEPS]
        slope = ((ends[0] - ends[1]) * turn).sum() / (STEPS[0] - STEPS[1])
        found = np.asarray(gradient, np.float64).reshape(operand.shape)
        size = np.linalg.norm(found)
        np.testing.assert_allclose((found * move).sum(), slope, rtol=0, atol=1e-3 * size + 1e-5, err_msg=f'operand {n}')


def gradient_of(text: str, length: int) -> tuple[Callable, tuple]:
    """Returns the gradient function of a forward pass with 2 heads of width 16, and the shapes of its arguments."""
    mechanism = parse_mechanism(text)
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    learned = jax.eval_shape(lambda: drawn_operands(mechanism, 2, 16))

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, learned: dict) -> jax.Array:
        return attend(q, k, v, mechanism, learned=learned).sum()

    return jax.grad(loss, (0, 1, 2, 3)), (x, x, x, learned)


def largest_array(text: str, length: int) -> int:
    """Returns the elements of the largest array in a forward and backward pass with 2 heads of width 16, loops
    included.
    """
    gradient, shapes = gradient_of(text, length)
    return largest(jax.make_jaxpr(gradient)(*shapes).jaxpr)


def temporary_bytes(text: str, length: int) -> int:
    """Returns the bytes that a compiled forward and backward pass needs besides its operands and results."""
    gradient, shapes = gradient_of(text, length)
    program = jax.jit(gradient, compiler_options={'xla_backend_optimization_level': 0}).lower(*shapes).compile()
    return program.memory_analysis().temp_size_in_bytes


def largest(jaxpr: Any) -> int:
    """Returns the number of elements of the largest array in a program, including arrays in its loops."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [variable.aval.size for variable in equation.outvars]
        inner = [part for value in equation.params.values() for part in (value if type(value) is tuple else (value,))]
        sizes += [largest(getattr(part, 'jaxpr', part)) for part in inner if hasattr(part, 'eqns')]
    return max(sizes)


def check_bfloat16(text: str) -> None:
    """Checks that 16-bit inputs give 16-bit outputs near the float32 reference of the same numbers."""
    mechanism = parse_mechanism(text)
    call = functools.partial(attend, mechanism=mechanism, learned=drawn_operands(mechanism, 4, 8))

    @quick
    def both(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        return call(*arrays), call(*(x.astype(jnp.float32) for x in arrays), backend='reference')

    out, exact = jax.device_get(both(*inputs(50, dtype=jnp.bfloat16)[0]))
    assert out.dtype == jnp.bfloat16
    assert np.linalg.norm(out.astype(np.float32) - exact) <= 2e-2 * np.linalg.norm(exact)


def check_dropout(text: str) -> None:
    """Checks that dropout changes the output, and that the mean of many draws is the output without dropout."""
    mechanism = parse_mechanism(text)
    call = functools.partial(attend, mechanism=mechanism, learned=drawn_operands(mechanism, 4, 8))

    @quick
    def both(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(jax.random.key(0), 100)
        return jax.vmap(lambda rng: call(*arrays, dropout_rate=0.2, dropout_rng=rng))(keys), call(*arrays)

    outs, whole = jax.device_get(both(*inputs(22)[0]))
    spread = outs.std(axis=0).mean()
    assert spread > 0.01 and abs(outs.mean(0) - whole).mean() < spread / 5
