"""`attend`: each backend equals the reference, or refuses; the contract on masks, empty rows, dropout and errors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import BACKENDS, attend, attention_weights
from efficient_attention.attention.checks import check_mechanism
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import MECHANISMS, parse_mechanism
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention import contract
from tests.attention.cells import check, inputs, quick, results
from tests.attention.mechanism_cells import DISTRIBUTIONS, MECHANISM_CELLS
from tests.tolerances import assert_close

HERE = [name for name in BACKENDS if name != 'cudnn']  # that needs a GPU: test_cudnn.py
OTHERS = [name for name in HERE if name != 'reference']
TILE = 16  # positions: tables with many rows at short lengths
LENGTHS = (1, 7, 63, 64, 65, 127, 1000, 1025)
# Each adds one thing to a call; what they add is in `cells.inputs`.
OPTIONS = ('plain', 'padding', 'segments', 'bias', 'key bias', 'function bias', 'dropout', 'cross', 'grouped', 'lse')
OPTIONS += ('offset', 'traced offset', 'row positions')
WITHOUT_ORDER = ('plain', 'padding', 'cross', 'lse')  # where full attention takes another way than causal
# Cells that a backend does not serve, and a word of its refusal; every other cell equals the reference.
REFUSED = {
    ('jax_nn', 'dropout'): 'no attention dropout',
    ('jax_nn', 'lse'): 'log-sum-exp',
    ('jax_nn', 'function bias'): 'no bias as a function',
}
# Several at once, so that a few programs cover their interplay on every pattern.
TOGETHER = ('grouped segments bias lse', 'offset dropout lse function bias', 'row positions padding lse key bias')
PATTERNS = (
    'causal & window(9)',
    'window(3, dilation=4)',
    'block(24, back=1)',
    'strided(9)',
    'summary(32, 4)',
    'sparse_fixed(32, 4)',
    'longformer(9, 2)',
    'random_tiles(2, 16)',
    'full - window(20)',
)
MIXED = ('sparse_strided(24)', 'causal & bigbird(16, 1)', 'per_head(causal & window(9), full)')


def cells(*pairs: tuple[str, str], fast: tuple[str, ...] = ('plain',)) -> list:
    """Parameters (text, option), those with one of the options in `fast` marked as such."""
    return [pytest.param(*pair, marks=[pytest.mark.fast] * (pair[1] in fast)) for pair in pairs]


@pytest.mark.parametrize(
    'text, option', cells(*(('causal', option) for option in OPTIONS), *(('full', option) for option in WITHOUT_ORDER))
)
@pytest.mark.parametrize('backend', OTHERS)
def test_backend_equals_the_reference_or_refuses(backend: str, text: str, option: str):
    """Forward and all gradients, in each option; a refusal names what is missing."""
    if (backend, option) in REFUSED:
        with pytest.raises(NotImplementedError, match=f'{backend}.*{REFUSED[backend, option]}'):
            results(backend, text, option, 65)
        return
    check(backend, text, option, 65)


@pytest.mark.parametrize(
    'text, option',
    cells(
        *((text, option) for text, own in MECHANISM_CELLS.items() for option in own),
        fast=('padding segments lse', 'padding segments dropout lse', 'padding segments grouped'),
    ),
)
def test_mechanism_equals_the_reference_or_refuses(text: str, option: str):
    """Forward and all gradients of what is no pattern, with the same hashes and features; 'auto' refuses as well."""
    refusal = MECHANISM_CELLS[text][option]
    if refusal is None:
        check('blocked', text, option, 20)
        return
    with pytest.raises(NotImplementedError, match=refusal):
        results('blocked', text, option, 20)
    line = refusal if text in DISTRIBUTIONS else f'no attention backend serves .*: {refusal}'
    with pytest.raises((ValueError, NotImplementedError), match=line):
        results('auto', text, option, 20)


def test_every_mechanism_has_cells():
    assert {parse_mechanism(text).name for text in MECHANISM_CELLS} == set(MECHANISMS) - {'softmax'}


@pytest.mark.parametrize('text', [text for text in MECHANISM_CELLS if not parse_mechanism(text).form.has_backends])
@pytest.mark.parametrize('backend', ['dense', 'jax_nn'])
def test_dense_backends_refuse_what_is_no_pattern(backend: str, text: str):
    name = text.split('(')[0]
    line = f'^{backend} is a way to execute Softmax; {name} has one fast form, under auto and blocked'
    with pytest.raises(NotImplementedError, match=line):
        results(backend, text, 'plain', 20)


def test_synthesizers_run_on_the_backends_of_softmax():
    check('dense', "synthesizer('dense', 90, pattern=causal)", 'segments bias', 20)


@pytest.mark.parametrize('number, text', list(enumerate(PATTERNS)))
def test_every_pattern_on_tiles(number: int, text: str):
    """Each pattern with some of the options together, at a length that fills no tile."""
    check_together(text, TOGETHER[number % 3])


@pytest.mark.parametrize('text, option', [(MIXED[i], TOGETHER[(i + j) % 3]) for i in range(3) for j in (1, 2)])
def test_patterns_of_several_passes_or_schedules_on_tiles(text: str, option: str):
    check_together(text, option)


def test_queries_that_fill_up_a_tile_read_nothing():
    """Their position is 0, where this pattern reads keys that no query of their tile does."""
    check('blocked', 'random_tiles(2, 16)', 'offset', 70, tile=TILE)


@pytest.mark.slow
@pytest.mark.parametrize('option', OPTIONS)
@pytest.mark.parametrize('text', [*PATTERNS, *MIXED])
def test_every_pattern_with_every_option_on_tiles(text: str, option: str):
    check_together(text, option)


def check_together(text: str, option: str) -> None:
    """Equal to the reference, but for a bias function where each head has tiles of its own, which is refused."""
    if 'function bias' in option and ('random' in text or 'bigbird' in text):
        with pytest.raises(NotImplementedError, match='bias function together with tiles that differ by head'):
            results('blocked', text, option, 70, tile=TILE)
        return
    check('blocked', text, option, 70, tile=TILE)


@pytest.mark.parametrize(
    'text, length', [*(('longformer(20, 3)', length) for length in LENGTHS), *(('causal', n) for n in (1, 64, 127))]
)
def test_every_length_on_tiles(text: str, length: int):
    check('blocked', text, 'plain', length, jnp.float32, 1, 2)


@pytest.mark.parametrize(
    'text, length',
    [('sparse_strided(50)', 1), ('sparse_strided(50)', 1000), ('bigbird(64, 1)', 65), ('bigbird(64, 1)', 1025)],
)
def test_lengths_that_residues_and_blocks_do_not_divide(text: str, length: int):
    check('blocked', text, 'plain', length, jnp.float32, 1, 2)


@pytest.mark.parametrize('backend', ['dense', 'jax_nn'])
@pytest.mark.parametrize('length', [1, 64])
def test_short_lengths(backend: str, length: int):
    check(backend, 'causal', 'plain', length)


@pytest.mark.parametrize('text', ['full', 'linear()', 'nystrom(4)'])
def test_the_reference_has_forward_mode_derivatives(text: str):
    query, change, other = (jax.random.normal(jax.random.key(seed), (1, 9, 2, 4)) for seed in range(3))

    def out(query: jax.Array, backend: str) -> jax.Array:
        return attend(query, other, other, parse_mechanism(text), backend=backend)

    forward = jax.jvp(lambda query: out(query, 'reference'), (query,), (change,))[1]
    gradient = jax.grad(lambda query: (out(query, 'auto') * other).sum())(query)
    assert_close((forward * other).sum(), (gradient * change).sum(), gradient=True)


@pytest.mark.lenient_promotion  # jax.nn's own backward pass mixes dtypes
@pytest.mark.parametrize('backend, text', [*((name, 'causal') for name in HERE), ('blocked', 'sparse_strided(9)')])
def test_bfloat16_stays_near_the_float32_reference(backend: str, text: str):
    exact = half_precision('reference', text, jnp.float32)
    for rounded, expected in zip(half_precision(backend, text, jnp.bfloat16), exact, strict=False):
        assert rounded.dtype == jnp.bfloat16
        assert jnp.linalg.norm(rounded.astype(jnp.float32) - expected) <= 2e-2 * jnp.linalg.norm(expected)


@pytest.mark.parametrize('length', [1, 65, 130])
@pytest.mark.parametrize('text', ['causal', 'lsh(16, 2)', 'favor(8)'])
def test_bfloat16_stays_near_the_float32_reference_at_other_lengths(text: str, length: int):
    """Outputs of each mechanism, with buckets and features of the same rounded inputs."""
    mechanism = parse_mechanism(text)
    arrays, extra = inputs(length, 'padding', jnp.bfloat16)
    extra |= {'rng': jax.random.key(5)} if mechanism.draws.always else {}

    def run(backend: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, q if mechanism.needs.shared_qk else k, v, mechanism, backend=backend, **extra)

    @quick
    def outputs(arrays: tuple) -> tuple:
        exact = run('reference', *(x.astype(jnp.float32) for x in arrays))
        return exact, [
            run(backend, *arrays) for backend in (['blocked'] if mechanism.draws.always else ['dense', 'blocked'])
        ]

    exact, rounded = outputs(arrays)
    for out in rounded:
        assert out.dtype == jnp.bfloat16
        assert jnp.linalg.norm(out.astype(jnp.float32) - exact) <= 2e-2 * jnp.linalg.norm(exact)


@functools.cache
def half_precision(backend: str, text: str, dtype: jnp.dtype) -> tuple:
    """Output, and gradients where they are ours, from inputs that are rounded to bfloat16, computed in `dtype`."""
    arrays, extra = inputs(65, 'padding', jnp.bfloat16)

    def total(*arrays: jax.Array) -> tuple:
        out = attend(*arrays, parse_mechanism(text), backend=backend, **extra)
        return (out.astype(jnp.float32) * jnp.sin(jnp.arange(out.size).reshape(out.shape))).sum(), out

    rounded = [x.astype(dtype) for x in arrays]
    if backend not in ('reference', 'blocked'):  # gradients of the others are JAX's own
        return (quick(total)(*rounded)[1],)
    gradients, out = quick(jax.grad(total, (0, 1, 2), has_aux=True))(*rounded)
    return out, *gradients


def test_reference_equals_a_loop_over_queries():
    (q, k, v), _ = inputs(9)
    out = np.asarray(quick(lambda *arrays: attend(*arrays, Softmax(Causal()), backend='reference'))(q, k, v))
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    for b, i, h in itertools.product(range(2), range(9), range(4)):
        logits = k[b, : i + 1, h] @ q[b, i, h] / np.sqrt(8)
        weights = np.exp(logits - logits.max())
        np.testing.assert_allclose(out[b, i, h], weights @ v[b, : i + 1, h] / weights.sum(), atol=1e-5)


@pytest.mark.lenient_promotion  # jax.nn's own backward pass mixes dtypes
@pytest.mark.parametrize(
    'backend, dtype', [*((name, jnp.float32) for name in HERE), ('blocked', jnp.bfloat16), ('jax_nn', jnp.bfloat16)]
)
def test_a_query_without_keys_gives_zeros_and_zero_gradients(backend: str, dtype: jnp.dtype):
    arrays, _ = inputs(7, dtype=dtype)
    segments = jnp.asarray([[0] * 7, [1] * 5 + [0] * 2])

    def total(*arrays: jax.Array) -> jax.Array:
        out = attend(*arrays, Softmax(), query_segments=segments, key_segments=segments, backend=backend)
        return (out.astype(jnp.float32) ** 2).sum() + out.astype(jnp.float32).sum(), out

    gradients, out = quick(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(*arrays)
    assert not out[0].any() and not out[1, 5:].any() and out[1, :5].all()
    for gradient in gradients:
        assert jnp.isfinite(gradient).all() and not gradient[0].any() and not gradient[1, 5:].any()


@pytest.mark.parametrize('backend', HERE)
def test_causal_gradient_to_later_positions_is_exactly_zero(backend: str):
    (q, k, v), _ = inputs(64)

    @quick
    def gradients(position: int) -> tuple:
        return jax.grad(lambda k, v: attend(q, k, v, Softmax(Causal()), backend=backend)[:, position].sum(), (0, 1))(
            k, v
        )

    for position in (0, 31, 63):
        assert all(not gradient[:, position + 1 :].any() for gradient in gradients(position))
        assert gradients(position)[1][:, : position + 1].all()


@pytest.mark.parametrize('backend', HERE)
def test_packed_equals_unpacked(backend: str):
    (q, k, v), _ = inputs(12)
    segments = jnp.asarray([[1] * 5 + [2] * 4 + [0] * 3] * 2)
    run = quick(lambda *arrays, **extra: attend(*arrays, Softmax(), backend=backend, **extra))
    packed = run(q, k, v, query_segments=segments, key_segments=segments)
    for part in (slice(0, 5), slice(5, 9)):
        alone = run(q[:, part], k[:, part], v[:, part])
        assert_close(packed[:, part], alone)


def test_log_sum_exp_merges_partial_results():
    (q, k, v), _ = inputs(16)
    run = quick(functools.partial(attend, mechanism=Softmax(), return_lse=True))
    parts = [run(q, k[:, cut], v[:, cut]) for cut in (slice(0, 6), slice(6, 16))]
    lses = jnp.stack([lse for _, lse in parts])
    shares = jax.nn.softmax(lses, axis=0).swapaxes(2, 3)[..., None]
    assert_close((shares * jnp.stack([out for out, _ in parts])).sum(0), run(q, k, v)[0])


def test_dropout_drops_its_share_and_keeps_the_mean():
    arrays, _ = inputs(64)
    drop = quick(jax.vmap(lambda rng: attend(*arrays, Softmax(), dropout_rate=0.2, rng=rng)))
    outs = drop(jax.random.split(jax.random.key(0), 100))
    spread = jnp.std(outs, axis=0).mean()
    assert spread > 0.01
    assert jnp.abs(outs.mean(0) - quick(lambda *arrays: attend(*arrays, Softmax()))(*arrays)).mean() < spread / 5


def test_what_nothing_serves_is_an_error():
    arrays, _ = inputs(7)
    with pytest.raises(ValueError, match='no attention backend serves Mechanism'):
        attend(*arrays, Mechanism())


@pytest.mark.parametrize(
    'change, message',
    [
        ({'backend': 'cuda'}, "unknown attention backend 'cuda'; known: auto, reference"),
        ({'dropout_rate': 0.1}, 'needs dropout_rng or rng'),
        ({'dropout_rate': 1.0}, r'must be at least 0 and below 1'),
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


@pytest.mark.parametrize('mechanism', [Softmax, Causal(), 'causal'], ids=str)
def test_what_is_no_mechanism_is_named(mechanism: object):
    with pytest.raises(ValueError, match=r'pass an instance such as Softmax\(Causal\(\)\)'):
        check_mechanism(mechanism)


# ---- weights ----


@pytest.mark.parametrize(
    'text', ['causal & window(3)', 'lsh(4, 2)', 'lsh(4, 2, causal=True)', 'favor(16, causal=True)']
)
def test_weights_sum_to_1_and_mix_the_values_as_attend_does(text: str):
    mechanism = parse_mechanism(text)
    q, k, v = (jax.random.normal(rng, (2, 14, 2, 8)) for rng in jax.random.split(jax.random.key(0), 3))
    segments = jnp.asarray([[1] * 8 + [2] * 6, [1] * 11 + [0] * 3])
    options = {'rng': jax.random.key(1), 'query_segments': segments, 'key_segments': segments}

    @quick
    def both(q: jax.Array, k: jax.Array) -> tuple:
        k = q if mechanism.needs.shared_qk else k
        return attention_weights(q, k, mechanism, **options), attend(q, k, v, mechanism, **options)

    weights, out = both(q, k)
    np.testing.assert_allclose(weights.sum(-1), jnp.broadcast_to(segments[:, None] > 0, (2, 2, 14)), atol=1e-5)
    assert (weights >= 0).all()
    assert_close(jnp.einsum('BHLM,BMHK->BLHK', weights, v), out)


@pytest.mark.parametrize('option', ['backend', 'return_lse', 'dropout_rate', 'dropout_rng'])
def test_weights_refuse_what_would_change_nothing(option: str):
    q = jnp.ones((1, 4, 1, 8))
    with pytest.raises(TypeError, match=f'attention_weights takes no {option}'):
        attention_weights(q, q, Softmax(), **{option: 0.5})


@pytest.mark.parametrize('backend', HERE)
def test_float64_has_the_error_of_float32(backend: str):
    """As docs/attention.md says: the dtype of a result is no promise of its digits."""
    q = np.random.default_rng(0).normal(size=(1, 12, 2, 8))
    expected = contract.mixed(contract.softmax(contract.scaled_logits(q[0], q[0]), np.tri(12) > 0)[0], q[0])
    with jax.enable_x64(True):
        out = attend(*map(jnp.asarray, (q, q, q)), Softmax(Causal()), backend=backend)
        assert out.dtype == 'float64'
        assert_close(out[0], expected)
        assert abs(out[0] - expected).max() > 1e-10
