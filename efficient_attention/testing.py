"""Checks that an attention mechanism keeps the contract of this library; for tests of your own mechanisms.

Each function raises an AssertionError that says what is wrong. The functions need only NumPy and JAX, so they run in
pytest, beside chex, or in a notebook. The library's own mechanisms pass the same checks.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.attend import attend
from efficient_attention.attention.cache import NewTokens, decode, init_cache
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.implementation import raise_no_cache
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.registry import get_implementation, multiply_adds
from efficient_attention.errors import InputError

# Relative and, below 1, absolute difference of float32 values and of float32 gradients.
VALUES, GRADIENTS = 2e-5, 1e-4
B, L, H, K = 2, 13, 2, 8  # sizes of the checked rows
SEGMENTS_BL = np.array([[3] * 5 + [1] * 6 + [0] * 2, [2] * 13], np.int32)  # two packed texts and padding; one text
CENTRES_LH = np.random.default_rng(5).uniform(size=(L, H)).astype(np.float32)
REFUSALS = (NotImplementedError, InputError, ValueError)
# Function of the mechanism, query and key [L, H, K], allowed pairs [L, M] and segments [L] of one row, in float64,
# that returns the weights [H, L, M] of this row.
Weights = Callable[[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def check_mechanism(mechanism: Mechanism, weights: Weights | None = None) -> None:
    """Checks a mechanism by all checks of this module.

    Args:
        mechanism: a mechanism of the library, or one that `ea.add_mechanism` has added.
        weights: computes the weights of one row in float64 NumPy, as `check_outputs` describes.

    Raises:
        AssertionError: the mechanism breaks the contract.
        TypeError: the mechanism is a class.
        NotImplementedError: the mechanism is neither in the library nor added.
    """
    if isinstance(mechanism, type):
        raise TypeError(f'{mechanism.__name__} is a class; check an instance, such as {mechanism.__name__}()')
    check_outputs(mechanism, weights)
    check_independence(mechanism)
    check_options(mechanism)
    check_decoding(mechanism)
    check_cost(mechanism)


def check_outputs(mechanism: Mechanism, weights: Weights | None = None) -> None:
    """Checks that the fast form and the dense definition give the same outputs and gradients, whatever padding holds.

    Rows have packed texts and padding, or one text where the mechanism requires it.

    Args:
        mechanism: the mechanism.
        weights: a function from the mechanism, float64 queries and keys [L, H, K], allowed pairs [L, M] and segments
            [L] of one row to the weights [H, L, M]. The outputs must also equal the weighted sums of the values.

    Raises:
        AssertionError: outputs or gradients differ, or the content of padding changes a result.
    """
    x = vectors()

    @jax.jit
    def both(q: Array, k: Array, v: Array) -> list[Any]:
        pulled = [
            jax.vjp(lambda *x, backend=backend: call(mechanism, *x, backend=backend), q, k, v)
            for backend in ('reference', 'blocked')
        ]
        return [(out, pull(jnp.cos(out))) for out, pull in pulled]

    results = jax.device_get(both(*x))
    (out, gradients), (fast, fast_gradients) = results
    if weights is not None:
        expected = defined(mechanism, weights, segments_for(mechanism), *(np.asarray(one, np.float64) for one in x))
        assert_near(out, expected, VALUES, 'outputs of the dense definition and of `weights`')
        assert_near(fast, expected, VALUES, 'outputs of the fast form and of `weights`')
    assert_near(fast, out, VALUES, 'outputs of the fast form and of the dense definition')
    for name, gradient, fast_gradient in zip(('query', 'key', 'value'), gradients, fast_gradients, strict=True):
        assert_near(fast_gradient, gradient, GRADIENTS, f'gradients of {name} by the fast form and the definition')
    is_padding = (segments_for(mechanism) == 0)[..., None, None]
    for content in (np.nan, np.inf):
        filled = (np.where(is_padding, np.float32(content), np.asarray(one)) for one in x)
        for one, other in zip(jax.tree.leaves(both(*filled)), jax.tree.leaves(results), strict=True):
            np.testing.assert_array_equal(one, other, f'padding that holds {content} changes a result')


def check_options(mechanism: Mechanism) -> None:
    """Checks that no option of a call is ignored: a bias, fewer key heads, more keys. Each form computes or refuses it,
    and forms that compute it agree.

    Raises:
        AssertionError: an option is ignored, or both forms give different results.
    """
    q, k, v = vectors()
    bias = jax.device_put(np.random.default_rng(4).normal(size=(1, H, L, L)).astype(np.float32))
    longer = [jnp.concatenate([x, x[:, :3] + 1.0], axis=1) for x in (k, v)]
    cases: dict[str, tuple[tuple[Array, ...], dict[str, Any]]] = {
        'an additive bias': ((q, k, v), {'bias': bias}),
        'fewer key heads': ((q, k[:, :, :1], v[:, :, :1]), {}),
        'more keys than queries': ((q, *longer), {'query_positions': np.arange(3, L + 3, dtype=np.int32)[None]}),
    }
    plain = run(mechanism, (q, k, v), 'reference')
    assert plain is not None, f'{mechanism} refuses a plain call'
    for name, (x, options) in cases.items():
        out, fast = (run(mechanism, x, backend, **options) for backend in ('reference', 'blocked'))
        if out is None or fast is None:
            continue
        assert_near(fast, out, VALUES, f'outputs of the fast form and of the dense definition with {name}')
        assert not np.array_equal(out, plain), f'{mechanism} ignores {name}; it must compute or refuse it'


def check_independence(mechanism: Mechanism) -> None:
    """Checks that no gradient of an output reaches another row, another text of its row, or a later token.

    Causal mechanisms are checked with later tokens, all others with other texts of the row.

    Raises:
        AssertionError: a gradient that must be zero is not exactly zero.
    """
    stop = 3 if mechanism.is_causal else int((segments_for(mechanism)[0] == segments_for(mechanism)[0, 0]).sum())

    @jax.jit
    def slopes(q: Array, k: Array, v: Array) -> Any:
        return jax.grad(lambda *x: jnp.sin(call(mechanism, *x)[0, :stop]).sum(), (0, 1, 2))(q, k, v)

    for name, gradient in zip(('query', 'key', 'value'), jax.device_get(slopes(*vectors())), strict=True):
        place = f'a later {name}' if mechanism.is_causal else f'a {name} of another text'
        assert not gradient[1].any(), f'{mechanism}: an output depends on a {name} of another row'
        assert not gradient[0, stop:].any(), f'{mechanism}: an output depends on {place}'


def check_decoding(mechanism: Mechanism) -> None:
    """Checks that decoding token by token gives the outputs of the definition, or is refused.

    Raises:
        AssertionError: the outputs differ.
        InputError: the mechanism says that it can decode, and `CacheSpec` refuses it.
    """
    if not mechanism.is_causal or get_implementation(mechanism).decode is raise_no_cache:
        assert is_refused(lambda: CacheSpec(mechanism, H, H, K, L)), f'{mechanism} must refuse a cache'
        return
    spec, arrays = CacheSpec(mechanism, H, H, K, L), learned_arrays(mechanism, H, K)
    positions_BL = np.arange(L, dtype=np.int32)[None].repeat(B, 0)

    @jax.jit
    def token_by_token(*new: Any) -> tuple[Array, Array]:
        def step(cache: Any, one: list[Array]) -> tuple[Any, Array]:
            out, cache = decode(spec, cache, NewTokens(*(x[:, None] for x in one)), learned=arrays)
            return cache, out[:, 0]

        rows_first = [x.swapaxes(0, 1) for x in new]
        outs = jax.lax.scan(step, init_cache(spec, B, 'float32', jax.random.key(7)), rows_first)[1]
        return outs.swapaxes(0, 1), call(mechanism, *new[:3], backend='reference')

    out, expected = jax.device_get(token_by_token(*vectors(), positions_BL, SEGMENTS_BL))
    assert_near(out, expected, VALUES, 'outputs token by token and of the dense definition')


def check_cost(mechanism: Mechanism, length: int = 512) -> None:
    """Checks the formula for multiply-adds against the products in the traced forward pass of the fast form.

    The formula may exceed the program by 1 %. The program may exceed the formula by 1 %, or by 35 % for mechanisms with
    backends, because their tile lists are padded.

    Args:
        mechanism: the mechanism.
        length: positions of the row.

    Raises:
        AssertionError: the formula is wrong.
    """
    counted, traced = both_counts(mechanism, length)
    slack = 1.35 if mechanism.capabilities.has_backends else 1.01
    said = f'{mechanism} at {length} positions: {counted:,} multiply-adds by formula, {traced:,} in the program'
    assert counted <= 1.01 * traced and traced <= slack * counted, said


# ---- inputs and calls ----


def vectors() -> list[Array]:
    """Returns random queries, keys and values [B, L, H, K]."""
    drawn = [np.random.default_rng(seed).normal(size=(B, L, H, K)) for seed in range(3)]
    return [jax.device_put(x.astype(np.float32)) for x in drawn]


def segments_for(mechanism: Mechanism) -> np.ndarray:
    """Returns packed rows with padding [B, L], or rows of one text each where the mechanism requires them."""
    return np.minimum(SEGMENTS_BL, 1) if mechanism.requirements.whole_rows else SEGMENTS_BL


def learned_arrays(mechanism: Mechanism, heads: int, width: int) -> dict[str, Array]:
    """Returns random values for the arrays that a mechanism learns."""
    rng = np.random.default_rng(8)
    declared = mechanism.learned_operands(heads, width)
    return {
        name: jax.device_put(np.float32(operand.deviation) * rng.normal(size=operand.shape).astype(np.float32))
        for name, operand in declared.items()
    }


def call(
    mechanism: Mechanism,
    q: Array,
    k: Array,
    v: Array,
    *,
    backend: str = 'blocked',
    segments: Any = None,
    **options: Any,
) -> Array:
    """Calls `attend` in one form, and returns its outputs [B, L, H, K].

    The call adds the keys, routing centres and learned arrays that the mechanism requires.

    Args:
        mechanism: the mechanism.
        q: queries [B, L, H, K].
        k: keys [B, M, G, K]; a mechanism with `shared_qk` takes the queries instead.
        v: values [B, M, G, K].
        backend: 'reference', the dense definition, or 'blocked', the fast form.
        segments: segments [B, L]; None = the rows of `segments_for`, or no segments if there are more keys.
        options: further options of `attend`.
    """
    if segments is None and k.shape[1] == L:
        segments = jax.device_put(segments_for(mechanism))
    options |= {'query_segments': segments, 'key_segments': segments, 'backend': backend}
    options['learned'] = learned_arrays(mechanism, H, K)
    options |= {'rng': jax.random.key(7)} if mechanism.randomness.always else {}
    if mechanism.requirements.centres:
        options |= {'centres': jnp.broadcast_to(CENTRES_LH, (B, *CENTRES_LH.shape))}
    return attend(q, q if mechanism.requirements.shared_qk else k, v, mechanism, **options)


def run(mechanism: Mechanism, x: tuple[Array, ...], backend: str, **options: Any) -> np.ndarray | None:
    """Returns the outputs of a call; None if the mechanism refuses it."""
    try:
        return np.asarray(jax.jit(lambda *x: call(mechanism, *x, backend=backend, **options))(*x))
    except REFUSALS:
        return None


def is_refused(make: Callable[[], Any]) -> bool:
    """Returns whether a call is refused."""
    try:
        make()
    except REFUSALS:
        return True
    return False


def defined(mechanism: Mechanism, weights: Weights, segments_BL: np.ndarray, *x: np.ndarray) -> np.ndarray:
    """Returns the outputs [B, L, H, K] that `weights` defines for float64 queries, keys and values."""
    rows = []
    for segments, query, key, value in zip(segments_BL, *x, strict=True):
        allowed = (segments[:, None] == segments[None]) & (segments[:, None] != 0)
        allowed = np.tril(allowed) if mechanism.is_causal else allowed
        found = weights(mechanism, query, key, allowed, segments)
        rows.append(np.einsum('hlm,mhk->lhk', found, value))
    return np.stack(rows)


def assert_near(actual: Any, expected: Any, tolerance: float, what: str) -> None:
    """Raises an AssertionError if two arrays differ by more than a tolerance, relative and absolute, or are NaN."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=False, err_msg=what)


# ---- cost ----


def both_counts(mechanism: Mechanism, length: int, heads: int = 2, width: int = 64) -> tuple[int, int]:
    """Returns the multiply-adds of one row by the mechanism's formula, and in the traced fast form."""
    array = jax.ShapeDtypeStruct((1, length, heads, width), jnp.float32)
    rng = jax.eval_shape(lambda: jax.random.key(0))
    options: dict[str, Any] = {'centres': jnp.ones((1, length, heads))} if mechanism.requirements.centres else {}
    options['learned'] = learned_arrays(mechanism, heads, width)
    program = jax.make_jaxpr(lambda q, rng: attend(q, q, q, mechanism, rng=rng, backend='blocked', **options))(
        array, rng
    )
    return multiply_adds(mechanism, length, heads, width), traced_products(program.jaxpr)


def traced_products(jaxpr: Any) -> int:
    """Returns the multiply-adds of all products in a program.

    Loops count by their length; of the branches of a condition the cheapest counts, because it is usually taken.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == 'dot_general':
            (contracted, _), _ = equation.params['dimension_numbers']
            left = equation.invars[0].aval.shape
            total += equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        inner = [part for value in equation.params.values() for part in (value if type(value) is tuple else (value,))]
        counts = [traced_products(getattr(part, 'jaxpr', part)) for part in inner if hasattr(part, 'eqns')]
        chosen = min if equation.primitive.name == 'cond' else max
        total += equation.params.get('length', 1) * (chosen(counts) if counts else 0)
    return total
