"""Tests `attend`: each backend equals the reference or refuses; also masks, empty rows, dropout and errors."""

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
from efficient_attention.attention.patterns.presets import bigbird
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention import contract
from tests.attention.cells import check, check_each, inputs, quick, results
from tests.attention.mechanism_cells import DISTRIBUTIONS, MECHANISM_CELLS
from tests.tolerances import assert_close

# The others need a GPU or a TPU; test_cudnn.py, test_mosaic.py and test_splash.py test them.
HERE = [name for name in BACKENDS if name not in ('cudnn', 'mosaic', 'splash')]
OTHERS = [name for name in HERE if name != 'reference']
TILE = 16  # Tiles of 16 positions give tables with many rows at short lengths.
# Each option adds one argument or property to a call; `cells.inputs` has the details.
OPTIONS = ('plain', 'padding', 'segments', 'bias', 'key bias', 'function bias', 'dropout', 'cross', 'grouped', 'lse')
OPTIONS += ('offset', 'traced offset', 'row positions')
# With these options full attention uses another code path than causal attention.
WITHOUT_ORDER = ('plain', 'padding', 'cross', 'lse')
# Calls that a backend does not support, with a word of its refusal; every other call equals the reference.
REFUSED = {
    ('jax_nn', 'dropout'): 'no attention dropout',
    ('jax_nn', 'lse'): 'log-sum-exp',
    ('jax_nn', 'function bias'): 'no bias as a function',
}
# Several options at once, so that a few programs cover their interplay on every pattern.
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
    """Returns parameters (text, option); those with one of the options in `fast` are marked as fast."""
    return [pytest.param(*pair, marks=[pytest.mark.fast] * (pair[1] in fast)) for pair in pairs]


@pytest.mark.parametrize(
    'text, option', cells(*(('causal', option) for option in OPTIONS), *(('full', option) for option in WITHOUT_ORDER))
)
def test_backends_equal_the_reference_or_refuse(text: str, option: str):
    """Outputs and all gradients are compared for each option; a refusal names the missing feature."""
    for backend, refused in REFUSED:
        if refused == option:
            with pytest.raises(NotImplementedError, match=f'{backend}.*{REFUSED[backend, option]}'):
                results(backend, text, option, 65)
    check_each([backend for backend in OTHERS if (backend, option) not in REFUSED], text, option, 65)


@pytest.mark.parametrize(
    'text, option',
    cells(
        *((text, option) for text, own in MECHANISM_CELLS.items() for option in own),
        fast=('padding segments lse', 'padding segments dropout lse', 'padding segments grouped'),
    ),
)
def test_mechanism_equals_the_reference_or_refuses(text: str, option: str):
    """Mechanisms that are no pattern give equal outputs and gradients with the same hashes and features; 'auto' refuses
    the same.
    """
    refusal = MECHANISM_CELLS[text][option]
    if refusal is None:
        check('blocked', text, option, 20)
        return
    with pytest.raises(NotImplementedError, match=refusal):
        results('blocked', text, option, 20)
    line = refusal if text in DISTRIBUTIONS else f'no attention backend supports .*: {refusal}'
    with pytest.raises((ValueError, NotImplementedError), match=line):
        results('auto', text, option, 20)


def test_every_mechanism_has_cells():
    assert {parse_mechanism(text).name for text in MECHANISM_CELLS} == set(MECHANISMS) - {'softmax'}


@pytest.mark.parametrize('backend', ['dense', 'jax_nn'])
def test_dense_backends_refuse_what_is_no_pattern(backend: str):
    for text in MECHANISM_CELLS:
        if not parse_mechanism(text).capabilities.has_backends:
            name = text.split('(')[0]
            line = f'^{backend} is a way to execute Softmax; {name} has one fast form, under auto and blocked'
            with pytest.raises(NotImplementedError, match=line):
                results(backend, text, 'plain', 20)


def test_synthesizers_run_on_the_backends_of_softmax():
    check('dense', "synthesizer('dense', 90, pattern=causal)", 'segments bias', 20)


@pytest.mark.parametrize('number, text', list(enumerate(PATTERNS)))
def test_every_pattern_on_tiles(number: int, text: str):
    """Each pattern is tested with several options together, at a length that is no multiple of the tile."""
    check_together(text, TOGETHER[number % 3])


@pytest.mark.parametrize('text, option', [(MIXED[i], TOGETHER[(i + j) % 3]) for i in range(3) for j in (1, 2)])
def test_patterns_of_several_passes_or_schedules_on_tiles(text: str, option: str):
    check_together(text, option)


def test_queries_that_fill_up_a_tile_read_nothing():
    """Their position is 0, where this pattern reads keys that no real query of their tile reads."""
    check('blocked', 'random_tiles(2, 16)', 'offset', 70, tile=TILE)


@pytest.mark.slow
@pytest.mark.parametrize('option', OPTIONS)
@pytest.mark.parametrize('text', [*PATTERNS, *MIXED])
def test_every_pattern_with_every_option_on_tiles(text: str, option: str):
    check_together(text, option)


def check_together(text: str, option: str) -> None:
    """Checks equality with the reference.

    A bias function is refused instead where the heads have different tiles.
    """
    if 'function bias' in option and ('random' in text or 'bigbird' in text):
        with pytest.raises(NotImplementedError, match='bias function together with tiles that differ by head'):
            results('blocked', text, option, 70, tile=TILE)
        return
    check('blocked', text, option, 70, tile=TILE)


@pytest.mark.parametrize(
    'text, length', [*(('longformer(20, 3)', n) for n in (1, 7, 64, 65, 1025)), *(('causal', n) for n in (64, 127))]
)
def test_lengths_around_those_of_tiles(text: str, length: int):
    check('blocked', text, 'plain', length, jnp.float32, 1, 2)


@pytest.mark.parametrize(
    'text, length',
    [('sparse_strided(50)', 1), ('sparse_strided(50)', 1000), ('bigbird(64, 1)', 65), ('bigbird(64, 1)', 1025)],
)
def test_lengths_that_residues_and_blocks_do_not_divide(text: str, length: int):
    check('blocked', text, 'plain', length, jnp.float32, 1, 2)


@pytest.mark.parametrize('length', [1, 64])
def test_short_lengths(length: int):
    check_each(['dense', 'jax_nn'] + ['blocked'] * (length == 1), 'causal', 'plain', length)


@pytest.mark.parametrize('text', ['full', 'linear()', 'nystrom(4)'])
def test_the_reference_has_forward_mode_derivatives(text: str):
    query, change, other = map(jax.device_put, np.random.default_rng(0).normal(size=(3, 1, 9, 2, 4)).astype(np.float32))

    def out(query: jax.Array, backend: str) -> jax.Array:
        return attend(query, other, other, parse_mechanism(text), backend=backend)

    @quick
    def both(query: jax.Array, change: jax.Array) -> tuple[jax.Array, jax.Array]:
        forward = jax.jvp(lambda query: out(query, 'reference'), (query,), (change,))[1]
        gradient = jax.grad(lambda query: (out(query, 'auto') * other).sum())(query)
        return (forward * other).sum(), (gradient * change).sum()

    assert_close(*both(query, change), gradient=True)


@pytest.mark.lenient_promotion  # The backward pass of jax.nn mixes dtypes.
@pytest.mark.parametrize('backends, text', [(HERE, 'causal'), (['blocked'], 'sparse_strided(9)')])
def test_bfloat16_stays_near_the_float32_reference(backends: list[str], text: str):
    """Checks outputs from inputs rounded to bfloat16, and gradients of the backends whose backward pass this project
    writes.
    """
    arrays, extra = inputs(65, 'padding', jnp.bfloat16)

    def total(arrays: tuple, backend: str) -> tuple:
        out = attend(*arrays, parse_mechanism(text), backend=backend, **extra)
        return (out.astype(jnp.float32) * np.sin(np.arange(out.size, dtype=np.float32)).reshape(out.shape)).sum(), out

    @quick
    def both(arrays: tuple) -> tuple:
        differentiate, rounded = jax.grad(total, has_aux=True), {}
        for backend in backends:  # The gradients of other backends are JAX's own.
            is_ours = backend in ('reference', 'blocked')
            gradients, out = differentiate(arrays, backend) if is_ours else ((), total(arrays, backend)[1])
            rounded[backend] = out, *gradients
        gradients, out = differentiate(tuple(x.astype(jnp.float32) for x in arrays), 'reference')
        return (out, *gradients), rounded

    exact, rounded = jax.device_get(both(arrays))
    for found in rounded.values():
        for one, expected in zip(found, exact, strict=False):
            assert_near(one, expected)


def assert_near(rounded: np.ndarray, exact: np.ndarray) -> None:
    assert rounded.dtype == jnp.bfloat16
    assert np.linalg.norm(rounded.astype(np.float32) - exact) <= 2e-2 * np.linalg.norm(exact)


@pytest.mark.parametrize('length', [1, 130])
@pytest.mark.parametrize('text', ['causal', 'lsh(16, 2)', 'favor(8)'])
def test_bfloat16_stays_near_the_float32_reference_at_other_lengths(text: str, length: int):
    """Checks outputs of each mechanism, with buckets and features of the same rounded inputs."""
    mechanism = parse_mechanism(text)
    arrays, extra = inputs(length, 'padding', jnp.bfloat16)
    extra |= {'rng': jax.random.key(5)} if mechanism.randomness.always else {}

    def run(backend: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, q if mechanism.requirements.shared_qk else k, v, mechanism, backend=backend, **extra)

    @quick
    def outputs(arrays: tuple) -> tuple:
        exact = run('reference', *(x.astype(jnp.float32) for x in arrays))
        return exact, [
            run(backend, *arrays) for backend in (['blocked'] if mechanism.randomness.always else ['dense', 'blocked'])
        ]

    exact, rounded = jax.device_get(outputs(arrays))
    for out in rounded:
        assert_near(out, exact)


def test_reference_equals_a_loop_over_queries():
    (q, k, v), _ = inputs(9)
    out = np.asarray(quick(lambda *arrays: attend(*arrays, Softmax(Causal()), backend='reference'))(q, k, v))
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    for b, i, h in itertools.product(range(2), range(9), range(4)):
        logits = k[b, : i + 1, h] @ q[b, i, h] / np.sqrt(8)
        weights = np.exp(logits - logits.max())
        np.testing.assert_allclose(out[b, i, h], weights @ v[b, : i + 1, h] / weights.sum(), atol=1e-5)


@pytest.mark.lenient_promotion  # The backward pass of jax.nn mixes dtypes.
@pytest.mark.parametrize('dtype, backends', [(jnp.float32, HERE), (jnp.bfloat16, ['blocked', 'jax_nn'])])
def test_a_query_without_keys_gives_zeros_and_zero_gradients(dtype: jnp.dtype, backends: list[str]):
    segments = np.array([[0] * 7, [1] * 5 + [0] * 2], np.int32)

    def total(arrays: tuple, backend: str) -> tuple:
        out = attend(*arrays, Softmax(), query_segments=segments, key_segments=segments, backend=backend)
        return (out.astype(jnp.float32) ** 2).sum() + out.astype(jnp.float32).sum(), out

    differentiate = jax.grad(total, has_aux=True)
    found = quick(lambda arrays: [differentiate(arrays, backend) for backend in backends])(inputs(7, dtype=dtype)[0])
    for gradients, out in jax.device_get(found):
        assert not out[0].any() and not out[1, 5:].any() and out[1, :5].all()
        for gradient in gradients:
            assert np.isfinite(gradient).all() and not gradient[0].any() and not gradient[1, 5:].any()


def test_causal_gradient_to_later_positions_is_exactly_zero():
    (q, k, v), _ = inputs(64)

    def output(k: jax.Array, v: jax.Array, position: int, backend: str) -> jax.Array:
        return attend(q, k, v, Softmax(Causal()), backend=backend)[:, position].sum()

    @quick
    def gradients(position: int) -> list:
        return [jax.grad(output, (0, 1))(k, v, position, backend) for backend in HERE]

    for position in (0, 31, 63):
        for of_key, of_value in jax.device_get(gradients(position)):
            assert not of_key[:, position + 1 :].any() and not of_value[:, position + 1 :].any()
            assert of_value[:, : position + 1].all()


def test_packed_equals_unpacked():
    segments = np.array([[1] * 5 + [2] * 4 + [0] * 3] * 2, np.int32)
    parts = slice(0, 5), slice(5, 9)

    @quick
    def run(*arrays: jax.Array) -> list:
        found = []
        for backend in HERE:
            packed = attend(*arrays, Softmax(), backend=backend, query_segments=segments, key_segments=segments)
            alone = [attend(*(x[:, part] for x in arrays), Softmax(), backend=backend) for part in parts]
            found.append(([packed[:, part] for part in parts], alone))
        return found

    for packed, alone in run(*inputs(12)[0]):
        assert_close(packed, alone)


def test_log_sum_exp_merges_partial_results():
    @quick
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        parts = [attend(q, k[:, cut], v[:, cut], Softmax(), return_lse=True) for cut in (slice(0, 6), slice(6, 16))]
        shares = jax.nn.softmax(jnp.stack([lse for _, lse in parts]), axis=0).swapaxes(2, 3)[..., None]
        return (shares * jnp.stack([out for out, _ in parts])).sum(0), attend(q, k, v, Softmax())

    assert_close(*run(*inputs(16)[0]))


def test_dropout_drops_its_share_and_keeps_the_mean():
    @quick
    def run(*arrays: jax.Array) -> tuple:
        keys = jax.random.split(jax.random.key(0), 100)
        dropped = jax.vmap(lambda rng: attend(*arrays, Softmax(), dropout_rate=0.2, rng=rng))(keys)
        return dropped, attend(*arrays, Softmax())

    outs, whole = jax.device_get(run(*inputs(64)[0]))
    spread = outs.std(axis=0).mean()
    assert spread > 0.01
    assert abs(outs.mean(0) - whole).mean() < spread / 5


def test_what_nothing_serves_is_an_error():
    arrays, _ = inputs(7)
    with pytest.raises(ValueError, match='no attention backend supports Mechanism'):
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
    last = jnp.asarray([[6]])
    run = quick(functools.partial(attend, mechanism=Softmax(Causal())))
    assert_close(run(q[:, 6:], k, v, query_positions=last), run(q, k, v)[:, 6:])


def test_head_counts_that_do_not_divide_are_named():
    (q, k, v), _ = inputs(7)
    with pytest.raises(ValueError, match='query has 4 heads, which is not a multiple of the 3 heads'):
        attend(q, k[:, :, :3], v[:, :, :3], Softmax())


@pytest.mark.parametrize('mechanism', [Softmax, 'causal'], ids=str)
def test_what_is_no_mechanism_is_named(mechanism: object):
    with pytest.raises(ValueError, match=r'pass an instance such as Softmax\(Causal\(\)\)'):
        check_mechanism(mechanism)


def test_a_pattern_in_place_of_a_mechanism_is_named_in_one_short_line():
    with pytest.raises(ValueError, match=r'^mechanism is a pattern; wrap it: Softmax\(<your pattern>\)$'):
        check_mechanism(bigbird(16, 1))


# ---- weights ----


@pytest.mark.parametrize(
    'text', ['causal & window(3)', 'lsh(4, 2)', 'lsh(4, 2, causal=True)', 'favor(16, causal=True)']
)
def test_weights_sum_to_1_and_mix_the_values_as_attend_does(text: str):
    mechanism = parse_mechanism(text)
    q, k, v = map(jax.device_put, np.random.default_rng(0).normal(size=(3, 2, 14, 2, 8)).astype(np.float32))
    segments = jax.device_put(np.array([[1] * 8 + [2] * 6, [1] * 11 + [0] * 3], np.int32))
    options = {'rng': jax.random.key(1), 'query_segments': segments, 'key_segments': segments}

    @quick
    def both(q: jax.Array, k: jax.Array) -> tuple:
        k = q if mechanism.requirements.shared_qk else k
        return attention_weights(q, k, mechanism, **options), attend(q, k, v, mechanism, **options)

    weights, out = jax.device_get(both(q, k))
    is_text = np.asarray(segments)[:, None] > 0
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(is_text, (2, 2, 14)), atol=1e-5)
    assert (weights >= 0).all()
    assert_close(np.einsum('BHLM,BMHK->BLHK', weights, np.asarray(v)), out)


@pytest.mark.parametrize('option', ['backend', 'return_lse', 'dropout_rate', 'dropout_rng'])
def test_weights_refuse_what_would_change_nothing(option: str):
    q = jnp.ones((1, 4, 1, 8))
    with pytest.raises(TypeError, match=f'attention_weights takes no {option}'):
        attention_weights(q, q, Softmax(), **{option: 0.5})


@pytest.mark.parametrize('backend', HERE)
def test_float64_has_the_error_of_float32(backend: str):
    """As docs/attention.md says, a float64 result is not more precise than a float32 one."""
    q = np.random.default_rng(0).normal(size=(1, 12, 2, 8))
    expected = contract.mixed(contract.softmax(contract.scaled_logits(q[0], q[0]), np.tri(12) > 0)[0], q[0])
    with jax.enable_x64(True):
        out = np.asarray(quick(lambda q: attend(q, q, q, Softmax(Causal()), backend=backend))(q))
        assert out.dtype == 'float64'
        assert_close(out[0], expected)
        assert abs(out[0] - expected).max() > 1e-10
