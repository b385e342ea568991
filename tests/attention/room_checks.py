"""What the tests of several rooms check in the same way: size of arrays, 16 bits, dropout."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from efficient_attention.attention.attend import attend
from efficient_attention.attention.parsing import parse_mechanism
from tests.attention.cells import drawn_operands, inputs, quick


def largest_array(text: str, length: int) -> int:
    """Elements of the largest array of a forward and backward pass, 2 heads of 16, those of its loops included."""
    mechanism = parse_mechanism(text)
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    learned = jax.eval_shape(lambda: drawn_operands(mechanism, 2, 16))

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, learned: dict) -> jax.Array:
        return attend(q, k, v, mechanism, learned=learned).sum()

    return largest(jax.make_jaxpr(jax.grad(loss, (0, 1, 2, 3)))(x, x, x, learned).jaxpr)


def largest(jaxpr: Any) -> int:
    """The size of the largest array in a program, those of its loops included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [variable.aval.size for variable in equation.outvars]
        inner = [part for value in equation.params.values() for part in (value if type(value) is tuple else (value,))]
        sizes += [largest(getattr(part, 'jaxpr', part)) for part in inner if hasattr(part, 'eqns')]
    return max(sizes)


def check_bfloat16(text: str) -> None:
    """16-bit inputs give 16-bit outputs near the float32 reference of the same numbers."""
    mechanism = parse_mechanism(text)
    arrays = [x.astype(jnp.bfloat16) for x in inputs(50)[0]]
    learned = drawn_operands(mechanism, 4, 8)
    exact = attend(*(x.astype(jnp.float32) for x in arrays), mechanism, learned=learned, backend='reference')
    out = quick(functools.partial(attend, mechanism=mechanism))(*arrays, learned=learned)
    assert out.dtype == jnp.bfloat16
    assert jnp.linalg.norm(out.astype(jnp.float32) - exact) <= 2e-2 * jnp.linalg.norm(exact)


def check_dropout(text: str) -> None:
    """Dropout changes the output, and leaves its mean over many keys as it is without."""
    (q, k, v), mechanism = inputs(22)[0], parse_mechanism(text)
    call = functools.partial(attend, mechanism=mechanism, learned=drawn_operands(mechanism, 4, 8))
    dropped = functools.partial(call, q, k, v, dropout_rate=0.2)
    outs = quick(jax.vmap(lambda rng: dropped(dropout_rng=rng)))(jax.random.split(jax.random.key(0), 100))
    spread = jnp.std(outs, axis=0).mean()
    assert spread > 0.01 and jnp.abs(outs.mean(0) - quick(call)(q, k, v)).mean() < spread / 5
