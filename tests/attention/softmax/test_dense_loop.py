"""The dense backend's loop over rows and heads equals the reference, and is taken where it should be.

The suite has eight devices, where `attend` does not take the loop; here it is a backend of its own.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from efficient_attention.attention import reference
from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import compiled_for, using_forms
from efficient_attention.attention.logits.definition import serve_dense
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.softmax import dense_loop, serve
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.softmax.serve import BACKENDS
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.fine_tuning import FineTuningModel
from tests.attention.cells import check, inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close

OPTIONS = (
    'plain',
    'padding lse',
    'bias',
    'key bias dropout',
    'function bias lse',
    'cross',
    'grouped segments bias lse',
)
OPTIONS += ('traced offset dropout', 'row positions padding lse key bias')
# All of them in a few.
TOGETHER = ('grouped segments bias lse', 'traced offset dropout function bias', 'row positions padding lse key bias')


@pytest.fixture(params=[1, 2, 4])
def heads_of_a_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loop as a backend, for four heads at 20 queries and up to 90 keys in steps of one, two or all of them."""
    monkeypatch.setitem(BACKENDS, 'loop', dense_loop.attend_by_rows)
    with using_forms(dense_step_bytes=request.param * 4 * 20 * 90, cores=1):
        yield


@pytest.mark.parametrize(
    'heads_of_a_step, option',
    [*((2, option) for option in OPTIONS), *((heads, option) for heads in (1, 4) for option in TOGETHER)],
    indirect=['heads_of_a_step'],
)
@pytest.mark.usefixtures('heads_of_a_step')
def test_equals_the_reference(option: str):
    """Forward and all gradients, dropout bit for bit; each option in steps of two heads, all of them in the others."""
    check('loop', 'causal', option, 20)


@pytest.mark.usefixtures('heads_of_a_step')
def test_heads_with_patterns_of_their_own_equal_the_reference():
    check('loop', 'per_head(causal & window(9), full)', 'segments bias dropout lse', 20)


@pytest.mark.usefixtures('heads_of_a_step')
@pytest.mark.parametrize('shape, batch', [((4, 20, 20), 4), ((20, 20), 20), ((4, 1, 20), 4), ((4, 1, 1, 1), 4)])
def test_bias_of_fewer_axes_equals_the_reference(shape: tuple[int, ...], batch: int):
    """Its first axis as long as the batch, though it may be that of heads or queries."""
    (q, k, v), _ = inputs(20, batch=batch)
    request = make_request(q, k, v, Softmax(), bias=jax.random.normal(jax.random.key(1), shape))
    assert_close(dense_loop.attend_by_rows(request), reference.serve(request))


@pytest.mark.usefixtures('heads_of_a_step')
@pytest.mark.parametrize('forbidding', [-jnp.inf, float(jnp.finfo(jnp.float32).min), -1e9])
def test_bias_that_forbids_every_allowed_key_equals_the_reference(forbidding: float):
    """Padding on the left by a bias: the first queries of a causal row have no key; nobody reads a later one."""
    (q, k, v), _ = inputs(20)
    bias = jnp.where(jnp.arange(20)[None] < jnp.asarray([[0], [3]]), forbidding, 0.0)[:, None, None]
    options = {'bias': bias, 'return_lse': True}
    found, expected = (attend(q, k, v, Softmax(Causal()), backend=name, **options) for name in ('loop', 'reference'))
    assert_close(found, expected)
    assert (forbidding == -1e9) or not found[0][1, :3].any()


@pytest.mark.usefixtures('heads_of_a_step')
def test_one_row_and_vmap_equal_the_reference():
    (q, k, v), extra = inputs(20, 'padding', batch=1)
    expected = attend(q, k, v, Softmax(Causal()), backend='reference', **extra)
    assert_close(attend(q, k, v, Softmax(Causal()), backend='loop', **extra), expected)
    mapped = jax.vmap(lambda q: attend(q, k, v, Softmax(Causal()), backend='loop', **extra))(jnp.stack([q, 2 * q]))
    assert_close(mapped[0], expected)
    assert_close(mapped[1], attend(2 * q, k, v, Softmax(Causal()), backend='reference', **extra))


@pytest.mark.usefixtures('heads_of_a_step')
@pytest.mark.parametrize('is_traced', [False, True])
def test_relative_term_equals_the_reference(is_traced: bool):
    (q, k, v), extra = inputs(20, 'traced offset' if is_traced else 'offset')
    p, table = jax.random.normal(jax.random.key(1), q.shape), jax.random.normal(jax.random.key(2), (50, 4, 8))

    def loss(p: jax.Array, table: jax.Array, q: jax.Array, backend: str) -> jax.Array:
        relative = Relative(p, table)
        return (attend(q, k, v, Softmax(Causal()), relative=relative, backend=backend, **extra) ** 2).sum()

    found, expected = (
        quick(jax.value_and_grad(functools.partial(loss, backend=backend), (0, 1, 2)))(p, table, q)
        for backend in ('loop', 'reference')
    )
    assert_close(found, expected, gradient=True)


@pytest.mark.usefixtures('heads_of_a_step')
def test_bfloat16_is_as_close_to_the_reference_as_its_rounding():
    """Products are float32's here, so it is no further off than the plain way."""
    (q, k, v), extra = inputs(20, 'padding')
    exact = attend(q, k, v, Softmax(), backend='reference', **extra)
    rounded = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    out = attend(*rounded, Softmax(), backend='loop', **extra)
    assert out.dtype == jnp.bfloat16
    plain = serve_dense(make_request(*rounded, Softmax(), **extra))[0]
    errors = [float(jnp.abs(x.astype(jnp.float32) - exact).max()) for x in (out, plain)]
    assert errors[0] <= 1.1 * errors[1]


@using_forms(cores=1)
def test_no_buffer_of_the_gradient_holds_the_scores_of_all_rows():
    """The compiled program's temporary memory is less than the scores of half of the rows; the plain way's is more."""
    x = jax.ShapeDtypeStruct((16, 128, 8, 16), jnp.float32)
    scores = 4 * 16 * 8 * 128 * 128

    def temporary(serve: object) -> int:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return serve(make_request(q, k, v, Softmax(Causal())))[0].sum()

        return jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes

    assert temporary(dense_loop.attend_by_rows) < scores / 2
    assert temporary(serve_dense) > scores


@pytest.mark.parametrize('remat, stack, norm', [('full', 'plain', 'post'), ('none', 'reversible', 'pre')])
def test_a_model_trains_the_same_through_it(remat: str, stack: str, norm: str, monkeypatch: pytest.MonkeyPatch):
    """Loss and gradients of a stack under dropout, with relative buckets as a bias that is learned."""
    sizes = {'width': 16, 'heads': 2, 'layers': 2, 'vocab_size': 13, 'max_length': 16, 'relative': 't5'}
    config = ModelConfig(**sizes, remat=remat, stack=stack, norm=norm, dropout_rate=0.1, attention_dropout_rate=0.1)
    graph, state = nnx.split(FineTuningModel(config, HeadConfig(kind='sequence', outputs=2), rngs=nnx.Rngs(0)))
    tokens = jax.random.randint(jax.random.key(1), (3, 12), 0, 13)
    batch = {
        'tokens': tokens,
        'token_types': tokens % 2,
        'segments': (jnp.arange(12)[None] < jnp.asarray([[12], [5], [9]])),
    }
    batch['segments'] = batch['segments'].astype(jnp.int32)

    def loss(state: nnx.State) -> jax.Array:
        return (nnx.merge(graph, state)(batch, rng=jax.random.key(2))['logits'] ** 2).sum()

    params, programs = nnx.to_pure_dict(state), []
    for is_taken in (False, True):
        monkeypatch.setattr(serve, 'is_faster_by_rows', lambda _, is_taken=is_taken: is_taken)
        programs.append(quick(jax.value_and_grad(loss)).lower(params))
    assert programs[0].as_text() != programs[1].as_text()
    results = [program.compile()(params) for program in programs]
    assert_close(*results, gradient=True)


def test_refuses_what_is_no_softmax():
    (q, k, v), _ = inputs(20)
    with pytest.raises(NotImplementedError, match='logits computes OverPattern, not LSH'):
        dense_loop.attend_by_rows(make_request(q, q, v, LSH(8, 2), rng=jax.random.key(0)))


@pytest.mark.parametrize(
    'shape, cores, devices, expected',
    [
        ((32, 64, 12, 8), 1, 1, True),
        ((32, 64, 12, 8), 1, 8, False),  # rows may be spread over the devices
        ((1, 128, 12, 8), 1, 1, False),  # the caches hold its scores
        ((32, 128, 12, 8), 2, 1, False),  # a row is too little for two cores
        ((16, 256, 12, 8), 2, 1, True),
        ((16, 256, 12, 8), 4, 1, False),
    ],
)
def test_when_it_is_taken(shape: tuple[int, ...], cores: int, devices: int, expected: bool):
    x = jnp.zeros(shape)
    with compiled_for('cpu', devices), using_forms(cores=cores):
        assert serve.is_faster_by_rows(make_request(x, x, x, Softmax())) is expected
        program = str(jax.make_jaxpr(lambda q, k, v: attend(q, k, v, Softmax(), backend='dense'))(x, x, x))
    assert ('scan[' in program) is expected


@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_it_is_taken_on_no_accelerator(platform: str):
    x = jnp.zeros((32, 64, 12, 8))
    with compiled_for(platform, 1), using_forms(cores=1):
        assert not serve.is_faster_by_rows(make_request(x, x, x, Softmax()))
