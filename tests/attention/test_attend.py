"""`attend`: each backend equals the reference, or refuses; the contract on masks, empty rows, dropout and errors."""

import functools
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import BACKENDS, attend, log_choice
from efficient_attention.attention.mechanisms import Mechanism, Softmax
from efficient_attention.attention.patterns import Causal, Full, Pattern
from tests.tolerances import assert_close

LENGTHS = (1, 7, 64, 65)
OPTIONS = ('plain', 'padding', 'segments', 'bias', 'dropout', 'cross', 'grouped', 'lse', 'offset')


def inputs(length: int, option: str = 'plain', dtype: jnp.dtype = jnp.float32) -> tuple[tuple, dict]:
    """Arrays [2, L, 4, 8] and the keyword arguments that `option` adds."""
    keys, groups = (length + 3 if option in ('cross', 'offset') else length), (2 if option == 'grouped' else 4)
    rngs = jax.random.split(jax.random.key(length), 4)
    shapes = (2, length, 4, 8), (2, keys, groups, 8), (2, keys, groups, 8)
    arrays = tuple(jax.random.normal(rng, shape, dtype) for rng, shape in zip(rngs[:3], shapes, strict=True))
    numbers = np.arange(length)
    segments = {
        'padding': np.stack([numbers < max(1, length - 2), numbers < 1]).astype(np.int32),
        'segments': np.stack([1 + numbers // 5, 1 + numbers // 40]).astype(np.int32),
    }.get(option)
    extra: dict = (
        {} if segments is None else {'query_segments': jnp.asarray(segments), 'key_segments': jnp.asarray(segments)}
    )
    if option == 'bias':
        extra['bias'] = jax.random.normal(rngs[3], (1, 4, length, keys))
    if option == 'dropout':
        extra |= {'dropout_rate': 0.3, 'rng': rngs[3]}
    if option == 'cross':  # keys and queries numbered from the same start
        extra |= {'query_positions': jnp.arange(length)[None], 'key_positions': jnp.arange(keys)[None]}
    if option == 'offset':  # queries continue a sequence of which three keys are cached
        extra['query_positions'] = jnp.arange(length)[None] + 3
    return arrays, extra | ({'return_lse': True} if option == 'lse' else {})


@pytest.mark.parametrize('backend', [name for name in BACKENDS if name != 'reference'])
@pytest.mark.parametrize('pattern', [Full(), Causal()], ids=['full', 'causal'])
@pytest.mark.parametrize('option', OPTIONS)
def test_backend_equals_the_reference_or_refuses(backend: str, pattern: Pattern, option: str):
    """Forward and all gradients, at each length; a refusal names what is missing."""
    for length in LENGTHS if option == 'plain' else (65,):
        arrays, extra = inputs(length, option)

        def weighted(name: str, *arrays: jax.Array, extra: dict = extra) -> tuple:
            out = attend(*arrays, Softmax(pattern), backend=name, **extra)
            outs = out if isinstance(out, tuple) else (out,)
            loss = sum((part * jnp.sin(jnp.arange(part.size).reshape(part.shape))).sum() for part in outs)
            return loss, outs

        try:
            gradients, outs = jax.jit(jax.grad(functools.partial(weighted, backend), argnums=(0, 1, 2), has_aux=True))(
                *arrays
            )
        except NotImplementedError as error:
            assert (backend, option) in {('jax_nn', 'dropout'), ('jax_nn', 'lse')} and 'jax_nn' in str(error)
            return
        reference = jax.jit(jax.grad(functools.partial(weighted, 'reference'), argnums=(0, 1, 2), has_aux=True))
        expected_gradients, expected = reference(*arrays)
        assert_close(outs, expected)
        assert_close(gradients, expected_gradients, gradient=True)


@pytest.mark.parametrize('backend', BACKENDS)
def test_bfloat16_stays_near_the_float32_reference(backend: str):
    arrays, extra = inputs(65, 'padding', jnp.bfloat16)
    out = attend(*arrays, Softmax(Causal()), backend=backend, **extra)
    exact = attend(*(x.astype(jnp.float32) for x in arrays), Softmax(Causal()), backend='reference', **extra)
    assert out.dtype == jnp.bfloat16
    assert jnp.linalg.norm(out.astype(jnp.float32) - exact) <= 2e-2 * jnp.linalg.norm(exact)


def test_reference_equals_a_loop_over_queries():
    (q, k, v), _ = inputs(9)
    out = np.asarray(attend(q, k, v, Softmax(Causal()), backend='reference'))
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    for b, i, h in itertools.product(range(2), range(9), range(4)):
        logits = k[b, : i + 1, h] @ q[b, i, h] / np.sqrt(8)
        weights = np.exp(logits - logits.max())
        np.testing.assert_allclose(out[b, i, h], weights @ v[b, : i + 1, h] / weights.sum(), atol=1e-5)


@pytest.mark.lenient_promotion  # jax.nn's own backward pass mixes dtypes
@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_a_query_without_keys_gives_zeros_and_zero_gradients(backend: str, dtype: jnp.dtype):
    arrays, _ = inputs(7, dtype=dtype)
    segments = jnp.asarray([[0] * 7, [1] * 5 + [0] * 2])

    def total(*arrays: jax.Array) -> jax.Array:
        out = attend(*arrays, Softmax(), query_segments=segments, key_segments=segments, backend=backend)
        return (out.astype(jnp.float32) ** 2).sum() + out.astype(jnp.float32).sum(), out

    gradients, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(*arrays)
    assert not out[0].any() and not out[1, 5:].any() and out[1, :5].all()
    for gradient in gradients:
        assert jnp.isfinite(gradient).all() and not gradient[0].any() and not gradient[1, 5:].any()


@pytest.mark.parametrize('backend', BACKENDS)
def test_causal_gradient_to_later_positions_is_exactly_zero(backend: str):
    (q, k, v), _ = inputs(64)

    @jax.jit
    def gradients(position: int) -> tuple:
        return jax.grad(lambda k, v: attend(q, k, v, Softmax(Causal()), backend=backend)[:, position].sum(), (0, 1))(
            k, v
        )

    for position in (0, 31, 63):
        assert all(not gradient[:, position + 1 :].any() for gradient in gradients(position))
        assert gradients(position)[1][:, : position + 1].all()


@pytest.mark.parametrize('backend', BACKENDS)
def test_packed_equals_unpacked(backend: str):
    (q, k, v), _ = inputs(12)
    segments = jnp.asarray([[1] * 5 + [2] * 4 + [0] * 3] * 2)
    packed = attend(q, k, v, Softmax(), query_segments=segments, key_segments=segments, backend=backend)
    for part in (slice(0, 5), slice(5, 9)):
        alone = attend(q[:, part], k[:, part], v[:, part], Softmax(), backend=backend)
        assert_close(packed[:, part], alone)


def test_log_sum_exp_merges_partial_results():
    (q, k, v), _ = inputs(16)
    parts = [attend(q, k[:, cut], v[:, cut], Softmax(), return_lse=True) for cut in (slice(0, 6), slice(6, 16))]
    lses = jnp.stack([lse for _, lse in parts])
    shares = jax.nn.softmax(lses, axis=0).swapaxes(2, 3)[..., None]
    assert_close((shares * jnp.stack([out for out, _ in parts])).sum(0), attend(q, k, v, Softmax()))


def test_dropout_drops_its_share_and_keeps_the_mean():
    arrays, _ = inputs(64)
    drop = jax.jit(jax.vmap(lambda rng: attend(*arrays, Softmax(), dropout_rate=0.2, rng=rng)))
    outs = drop(jax.random.split(jax.random.key(0), 100))
    spread = jnp.std(outs, axis=0).mean()
    assert spread > 0.01
    assert jnp.abs(outs.mean(0) - attend(*arrays, Softmax())).mean() < spread / 5


def test_auto_logs_its_choice_once(caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    arrays, _ = inputs(7)
    with caplog.at_level(logging.INFO):
        attend(*arrays, Softmax())
        attend(*arrays, Softmax())
    assert [record.message for record in caplog.records] == ['attention: Softmax runs on the dense backend']


def test_what_nothing_serves_is_an_error():
    arrays, _ = inputs(7)
    with pytest.raises(ValueError, match='no attention backend serves Mechanism'):
        attend(*arrays, Mechanism())


@pytest.mark.parametrize(
    'change, message',
    [
        ({'backend': 'cuda'}, "unknown attention backend 'cuda'; known: auto, reference"),
        ({'dropout_rate': 0.1}, 'needs rng'),
        ({'dropout_rate': 1.0}, r'must lie in \[0, 1\)'),
        ({'query_segments': jnp.ones((2, 7), jnp.int32)}, 'give both or neither'),
    ],
)
def test_bad_arguments_are_named(change: dict, message: str):
    arrays, _ = inputs(7)
    with pytest.raises(ValueError, match=message):
        attend(*arrays, Softmax(), **change)


def test_a_pattern_on_unequal_lengths_asks_for_positions():
    (q, k, v), _ = inputs(7)
    with pytest.raises(ValueError, match='1 queries and 7 keys: .* compares positions, so give query_positions'):
        attend(q[:, :1], k, v, Softmax(Causal()))
    whole = attend(q, k, v, Softmax(Causal()))
    assert_close(attend(q[:, 6:], k, v, Softmax(Causal()), query_positions=jnp.asarray([[6]])), whole[:, 6:])


def test_head_counts_that_do_not_divide_are_named():
    (q, k, v), _ = inputs(7)
    with pytest.raises(ValueError, match='4 query heads are not a multiple of 3 key heads'):
        attend(q, k[:, :, :3], v[:, :, :3], Softmax())
