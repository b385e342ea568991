"""Tests that the dense backend's loop over rows and heads equals the reference, and when `attend` takes the loop.

The test suite has eight devices, where `attend` does not take the loop; so this file registers it as a separate
backend.
"""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention import reference_backend
from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_device_tuning, using_platform
from efficient_attention.attention.logits.definition import attend_dense
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.softmax import backend_choice, dense_loop
from efficient_attention.attention.softmax.backend_choice import BACKENDS
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.layer_stack import Stack
from efficient_attention.modules.layer_context import Context
from tests.attention.cells import check, inputs, quick
from tests.attention.requests import make_request
from tests.models.drawn import drawn
from tests.tolerances import assert_close

OPTIONS = ('plain', 'bias', 'key bias dropout', 'cross')
# These combinations together cover all options.
TOGETHER = ('grouped segments bias lse', 'traced offset dropout function bias', 'row positions padding lse key bias')
STEPS = (1, 2, 4)  # The values are numbers of heads in a step.


def in_steps_of(heads: int) -> contextlib.AbstractContextManager:
    """Sets the device tuning so that a step computes this number of four heads, at 20 queries and up to 90 keys."""
    return using_device_tuning(dense_step_bytes=heads * 4 * 20 * 90, cores=1)


@pytest.fixture
def _loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the loop as a backend."""
    monkeypatch.setitem(BACKENDS, 'loop', dense_loop.attend_by_rows)


@pytest.mark.usefixtures('_loop')
@pytest.mark.parametrize(
    'heads, option', [*((2, option) for option in OPTIONS + TOGETHER), *itertools.product((1, 4), TOGETHER[:2])]
)
def test_equals_the_reference(heads: int, option: str):
    """Outputs, all gradients and dropout bits are equal; options that differ by head run in steps of one and of all
    heads.
    """
    with in_steps_of(heads):
        check('loop', 'causal', option, 20)


@pytest.mark.usefixtures('_loop')
@pytest.mark.parametrize('heads', STEPS)
def test_heads_with_patterns_of_their_own_equal_the_reference(heads: int):
    with in_steps_of(heads):
        check('loop', 'per_head(causal & window(9), full)', 'segments bias dropout lse', 20)


@pytest.mark.parametrize('shape, batch', [((4, 20, 20), 4), ((20, 20), 20), ((4, 1, 20), 4), ((4, 1, 1, 1), 4)])
def test_bias_of_fewer_axes_equals_the_reference(shape: tuple[int, ...], batch: int):
    """A bias with fewer axes is right also where its first axis, of heads or queries, is as long as the batch."""

    @quick
    def all_ways(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> tuple:
        request, found = make_request(q, k, v, Softmax(), bias=bias), []
        for heads in STEPS:
            with in_steps_of(heads):
                found.append(dense_loop.attend_by_rows(request))
        return found, reference_backend.compute_attention(request)

    bias = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    found, expected = all_ways(*inputs(20, batch=batch)[0], bias)
    for one in found:
        assert_close(one, expected)


@pytest.mark.usefixtures('_loop')
def test_bias_that_forbids_every_allowed_key_equals_the_reference():
    """The bias masks padding on the left: the first queries of a causal row have no key, and no query reads a later
    one.
    """

    @quick
    def both_ways(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> list:
        options = {'bias': bias, 'return_lse': True}
        with in_steps_of(2):
            return [attend(q, k, v, Softmax(Causal()), backend=name, **options) for name in ('loop', 'reference')]

    is_padding = (np.arange(20)[None] < np.asarray([[0], [3]]))[:, None, None]
    for forbidding in (-np.inf, float(np.finfo(np.float32).min), -1e9):
        bias = np.where(is_padding, forbidding, 0.0).astype(np.float32)
        found, expected = jax.device_get(both_ways(*inputs(20)[0], bias))
        assert_close(found, expected)
        assert (forbidding == -1e9) or not found[0][1, :3].any()


@pytest.mark.usefixtures('_loop')
@pytest.mark.parametrize('heads', [1, 4])
def test_one_row_and_vmap_equal_the_reference(heads: int):
    (q, k, v), extra = inputs(20, 'padding', batch=1)

    @quick
    def all_ways(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        queries = jnp.stack([q, 2 * q])

        def call(q: jax.Array, backend: str = 'loop') -> jax.Array:
            return attend(q, k, v, Softmax(Causal()), backend=backend, **extra)

        with in_steps_of(heads):
            return call(q), jax.vmap(call)(queries), [call(q, 'reference') for q in queries]

    found, mapped, expected = all_ways(q, k, v)
    assert_close(found, expected[0])
    assert_close(mapped, np.stack(expected))


@pytest.mark.usefixtures('_loop')
@pytest.mark.parametrize('heads, is_traced', [(1, False), (2, True), (4, False)])
def test_relative_term_equals_the_reference(heads: int, is_traced: bool):
    (q, k, v), extra = inputs(20, 'traced offset' if is_traced else 'offset')
    rng = np.random.default_rng(1)
    p, table = (rng.normal(size=shape).astype(np.float32) for shape in (q.shape, (50, 4, 8)))

    def loss(p: jax.Array, table: jax.Array, q: jax.Array, backend: str) -> jax.Array:
        relative = Relative(p, table)
        return (attend(q, k, v, Softmax(Causal()), relative=relative, backend=backend, **extra) ** 2).sum()

    @quick
    def both_ways(*arrays: jax.Array) -> list:
        with in_steps_of(heads):
            return [jax.value_and_grad(loss, (0, 1, 2))(*arrays, backend) for backend in ('loop', 'reference')]

    found, expected = both_ways(p, table, q)
    assert_close(found, expected, gradient=True)


def test_bfloat16_is_as_close_to_the_reference_as_its_rounding():
    """Products are in float32, so that the loop's error is at most that of the dense backend without it."""
    arrays, extra = inputs(20, 'padding')

    @quick
    def all_ways(*arrays: jax.Array) -> tuple:
        rounded = [x.astype(jnp.bfloat16) for x in arrays]
        request = make_request(*rounded, Softmax(), **extra)
        with in_steps_of(2):
            found = dense_loop.attend_by_rows(request)[0]
        return found, attend_dense(request)[0], attend(*arrays, Softmax(), backend='reference', **extra)

    out, plain, exact = jax.device_get(all_ways(*arrays))
    assert out.dtype == jnp.bfloat16
    errors = [np.abs(x.astype(np.float32) - exact).max() for x in (out, plain)]
    assert errors[0] <= 1.1 * errors[1]


@using_device_tuning(cores=1)
def test_no_buffer_of_the_gradient_holds_the_scores_of_all_rows():
    """The compiled program's temporary memory is less than the scores of half of the rows; without the loop it
    is more.
    """
    x = jax.ShapeDtypeStruct((16, 128, 8, 16), jnp.float32)
    scores = 4 * 16 * 8 * 128 * 128

    def temporary(serve: object) -> int:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return serve(make_request(q, k, v, Softmax(Causal())))[0].sum()

        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    assert temporary(dense_loop.attend_by_rows) < scores / 2
    assert temporary(attend_dense) > scores


@pytest.mark.parametrize('remat, stack, norm', [('full', 'plain', 'post'), ('none', 'reversible', 'pre')])
def test_a_model_trains_the_same_through_it(remat: str, stack: str, norm: str, monkeypatch: pytest.MonkeyPatch):
    """Loss and gradients of a stack with dropout and a learned relative-position bias are those without the loop."""
    fields = {'width': 16, 'heads': 2, 'layers': 2, 'max_length': 16, 'relative': 't5', 'dropout_rate': 0.1}
    config = ModelConfig(**fields, remat=remat, stack=stack, norm=norm, attention_dropout_rate=0.1)
    graph, params = drawn(lambda: Stack(config, rngs=nnx.Rngs(0)))
    x = np.random.default_rng(1).normal(size=(3, 12, 16)).astype(np.float32)
    segments = (np.arange(12)[None] < np.asarray([[12], [5], [9]])).astype(np.int32)
    places = np.broadcast_to(np.arange(12, dtype=np.int32), (3, 12))

    def loss(params: dict) -> jax.Array:
        out = nnx.merge(graph, params)(jnp.asarray(x), Context(segments, places, rng=jax.random.key(2)))
        return (jnp.where(segments[..., None] > 0, out, 0.0) ** 3).sum()

    programs = []
    for is_taken in (False, True):
        monkeypatch.setattr(backend_choice, 'is_row_loop_faster', lambda _, is_taken=is_taken: is_taken)
        programs.append(quick(jax.value_and_grad(loss)).lower(params))
    assert programs[0].as_text() != programs[1].as_text()
    results = [program.compile()(params) for program in programs]
    assert_close(*results, gradient=True)


def test_refuses_what_is_no_softmax():
    (q, k, v), _ = inputs(20)
    with pytest.raises(NotImplementedError, match='logits computes PatternAttention, not LSH'):
        dense_loop.attend_by_rows(make_request(q, q, v, LSH(8, 2), rng=jax.random.key(0)))


@pytest.mark.parametrize(
    'shape, cores, devices, expected',
    [
        ((32, 64, 12, 8), 1, 1, True),
        ((32, 64, 12, 8), 1, 8, False),  # Rows may be spread over the devices.
        ((1, 128, 12, 8), 1, 1, False),  # The scores fit in the CPU's caches.
        ((32, 128, 12, 8), 2, 1, False),  # One row is too little work for two cores.
        ((16, 256, 12, 8), 2, 1, True),
        ((16, 256, 12, 8), 4, 1, False),
    ],
)
def test_when_it_is_taken(shape: tuple[int, ...], cores: int, devices: int, expected: bool):
    x = jnp.zeros(shape)
    with using_platform('cpu', devices), using_device_tuning(cores=cores):
        assert backend_choice.is_row_loop_faster(make_request(x, x, x, Softmax())) is expected
        program = str(jax.make_jaxpr(lambda q, k, v: attend(q, k, v, Softmax(), backend='dense'))(x, x, x))
    assert ('scan[' in program) is expected


@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_it_is_taken_on_no_accelerator(platform: str):
    x = jnp.zeros((32, 64, 12, 8))
    with using_platform(platform, 1), using_device_tuning(cores=1):
        assert not backend_choice.is_row_loop_faster(make_request(x, x, x, Softmax()))
