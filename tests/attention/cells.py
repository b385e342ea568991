"""Helpers for one cell of the table of mechanisms and call options: they make inputs, run a backend and compare the
results with the reference.

NumPy makes the numbers and `jax.device_put` the arrays: `jax.random` and `jnp.asarray` would compile a program for each
new shape.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.testing import learned_arrays as drawn_operands
from tests.tolerances import assert_close

# Without LLVM's optimisation a program compiles in half the time; no program here runs long enough to need it.
QUICKLY = {'xla_backend_optimization_level': 0}


def quick(fn: Callable) -> Callable:
    """Returns `fn` compiled as one program, with little optimisation so that it compiles fast."""
    return jax.jit(fn, compiler_options=QUICKLY)


def slopes(scale: jax.Array, query: Any, key: Any) -> jax.Array:
    """Computes a bias on logits that falls linearly with the distance, with another slope for each head."""
    return -scale[None, :, None, None] * abs(query - key).astype(jnp.float32)


def inputs(length: int, option: str = 'plain', dtype: jnp.dtype = jnp.float32, batch: int = 2, heads: int = 4) -> tuple:
    """Returns arrays [B, L, H, 8] and the keyword arguments that the words of `option` add to a call."""
    has_more_keys = 'cross' in option or 'offset' in option or 'row' in option
    keys, groups = length + 70 * has_more_keys, (heads // 2 if 'grouped' in option else heads)
    rng = np.random.default_rng(length)
    shapes = (batch, length, heads, 8), (batch, keys, groups, 8), (batch, keys, groups, 8)
    arrays = tuple(normal(rng, *shape, dtype=dtype) for shape in shapes)
    extra = positions(option, length, keys, batch)
    extra |= segments(option, length, keys, batch)
    if 'key bias' in option:
        extra['bias'] = normal(rng, batch, 1, 1, keys)
    elif 'function bias' in option:
        extra['bias'] = jax.tree_util.Partial(slopes, jax.device_put(np.linspace(0.02, 0.2, heads, dtype=np.float32)))
    elif 'bias' in option:
        extra['bias'] = normal(rng, 1, heads, length, keys)
    if 'dropout' in option:
        extra |= {'dropout_rate': 0.3, 'rng': jax.random.key(length)}
    return arrays, extra | ({'return_lse': True} if 'lse' in option else {})


def normal(rng: np.random.Generator, *shape: int, dtype: jnp.dtype = jnp.float32) -> jax.Array:
    """Returns an array of normally distributed random numbers."""
    return jax.device_put(rng.normal(size=shape).astype(dtype))


def positions(option: str, length: int, keys: int, batch: int) -> dict[str, Any]:
    """Returns the position arguments: queries follow 70 cached keys, or have other positions in each batch row."""
    continued = np.arange(length, dtype=np.int32)[None] + 70
    if 'traced offset' in option:
        return {'query_positions': jax.device_put(continued)}
    if 'row positions' in option:
        return {'query_positions': jax.device_put(continued - 30 * np.arange(batch, dtype=np.int32)[:, None])}
    if 'offset' in option:
        return {'query_positions': continued}
    if 'cross' in option:  # Queries and keys start at the same position.
        numbers = (np.arange(count, dtype=np.int32)[None] for count in (length, keys))
        return dict(zip(('query_positions', 'key_positions'), map(jax.device_put, numbers), strict=True))
    return {}


def segments(option: str, length: int, keys: int, batch: int) -> dict[str, jax.Array]:
    """Returns segment arguments: rows with padding at their end, or packed rows whose texts have several lengths.

    Nearly all of one padded row is padding. With both words in `option` the first row is packed and the second one
    padded.
    """

    def padded(row: int, count: int) -> np.ndarray:
        return np.arange(count) < (1 if row else max(1, count - 2))

    def packed(row: int, count: int) -> np.ndarray:
        return 1 + np.arange(count) // (40 if row else 5)

    found = [make for word, make in (('segments', packed), ('padding', padded)) if word in option.split()]
    if not found:
        return {}
    query, key = (
        jax.device_put(np.array([found[row % len(found)](row, count) for row in range(batch)], np.int32))
        for count in (length, keys)
    )
    return {'query_segments': query, 'key_segments': key}


def results(backend: str, text: str, option: str, *shape: Any, tile: int | None = None) -> tuple:
    """Returns the gradients of q, k, v, the bias and the learned operands, and the outputs of the call.

    The loss also depends on the log-sum-exp.
    """
    return results_of((backend,), text, option, *shape, tile=tile)[backend]


def results_of(
    backends: Sequence[str], text: str, option: str, *shape: Any, tile: int | None = None
) -> dict[str, tuple]:
    """Returns for each backend what `results` returns.

    All backends run in one program, which compiles faster than one program each.
    """
    arrays, extra = inputs(*shape[:1], option, *shape[1:])
    bias, mechanism = extra.pop('bias', None), parse_mechanism(text)
    extra = ({'rng': jax.random.key(5)} if mechanism.randomness.always else {}) | extra
    if mechanism.requirements.centres:
        places = np.random.default_rng(6).uniform(0.0, arrays[1].shape[1], arrays[0].shape[:3])
        extra['centres'] = jax.device_put(places.astype(np.float32))
    learned = drawn_operands(mechanism, *arrays[0].shape[2:])

    def weighted(q: jax.Array, k: jax.Array, v: jax.Array, both: tuple, backend: str) -> tuple:
        k = q if mechanism.requirements.shared_qk and k.shape == q.shape else k
        own = mechanism if tile is None else dataclasses.replace(mechanism, tile=tile)
        out = attend(q, k, v, own, backend=backend, bias=both[0], learned=both[1], **extra)
        outs = out if isinstance(out, tuple) else (out,)
        weights = np.sin(np.arange(outs[0].size, dtype=np.float32)).reshape(outs[0].shape)
        loss = (outs[0].astype(jnp.float32) * weights).sum()
        return loss + sum(jnp.sin(jnp.where(lse > -1e30, lse, 0.0)).sum() for lse in outs[1:]), outs

    @quick
    def differentiate(q: jax.Array, k: jax.Array, v: jax.Array, both: tuple) -> dict[str, tuple]:
        of_inputs = jax.grad(weighted, (0, 1, 2, 3), has_aux=True)
        return {backend: of_inputs(q, k, v, both, backend) for backend in backends}

    return jax.device_get(differentiate(*arrays, (bias, learned)))


def check(backend: str, text: str, option: str, *shape: Any, tile: int | None = None) -> None:
    """Checks that outputs and gradients of a backend equal the reference's.

    `tile` is the number of positions in a tile of a `Softmax`.
    """
    check_each((backend,), text, option, *shape, tile=tile)


def check_each(backends: Sequence[str], text: str, option: str, *shape: Any, tile: int | None = None) -> None:
    """Checks that outputs and gradients of several backends equal the reference's."""
    found = results_of(('reference', *backends), text, option, *shape, tile=tile)
    expected_gradients, expected = found.pop('reference')
    gradients, outs = ({name: part[n] for name, part in found.items()} for n in (0, 1))
    assert_close(outs, dict.fromkeys(backends, expected))
    assert_close(gradients, dict.fromkeys(backends, expected_gradients), gradient=True)
