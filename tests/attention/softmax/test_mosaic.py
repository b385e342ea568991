"""Tests that the kernels of the backend `mosaic`, emulated on the CPU, equal the definition, and that the backend takes
only calls that it computes.
"""

import importlib.util
import logging
import math
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.block_sparse.tiles import KernelOptions, Tokens
from efficient_attention.attention.choice_log import log_choice
from efficient_attention.attention.dense_attention import MASKED, masked_softmax
from efficient_attention.attention.device_mesh import ACTIVATIONS, partition, shard_activations, using_mesh
from efficient_attention.attention.devices import using_device_tuning, using_platform
from efficient_attention.attention.dropout import hash_bits, is_kept
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.attention.request import with_padding_zeroed
from efficient_attention.attention.softmax import mosaic
from efficient_attention.attention.softmax.backend_choice import BACKENDS
from efficient_attention.attention.softmax.mosaic import attend_tiles, check_supported, compute_attention
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from efficient_attention.planning.topology import make_topology_devices, parse_topology
from tests.attention.abstract_gpu import on_abstract_gpu
from tests.attention.cells import quick, results_of
from tests.attention.emulation import emulating_kernels
from tests.attention.requests import make_request
from tests.tolerances import assert_close

Q = jnp.ones((2, 300, 4, 64), jnp.bfloat16)
IDS = jnp.ones((2, 300), jnp.int32)
H200 = 'NVIDIA H200'


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the backend run on emulated kernels during a test."""
    monkeypatch.setitem(BACKENDS, 'mosaic', lambda request: attend_tiles(request, is_interpreted=True))
    with emulating_kernels():
        yield


# Pattern, words of the option, dtype, rows, heads. 130 positions are two tiles of queries and three of keys.
CELLS = [
    ('causal', 'grouped segments dropout lse', 'bfloat16', 1, 2),
    ('full', 'cross padding', 'bfloat16', 2, 1),
    ('longformer(9)', 'plain', 'float16', 1, 1),
    ('bigbird(16, 1)', 'grouped lse', 'bfloat16', 1, 2),
    ('per_head(causal - window(2), sparse_strided(40))', 'plain', 'bfloat16', 1, 2),
    ('causal & window(20)', 'row positions dropout', 'float16', 2, 1),
]


@pytest.mark.fast
@pytest.mark.usefixtures('emulated')
@pytest.mark.parametrize('text, option, dtype, batch, heads', CELLS)
def test_the_kernels_equal_the_definition(text: str, option: str, dtype: str, batch: int, heads: int):
    """Compares outputs and gradients, also through the log-sum-exp."""
    found = results_of(('reference', 'mosaic'), text, option, 130, jnp.dtype(dtype), batch, heads)
    (expected_gradients, expected), (gradients, outs) = found['reference'], found['mosaic']
    assert_close(outs, expected, dtype=dtype)
    assert_close(gradients, expected_gradients, dtype=dtype, gradient=True)


@pytest.mark.fast
@pytest.mark.usefixtures('emulated')
def test_queries_without_keys_give_zeros_and_nan_in_padding_changes_nothing():
    """Some of the queries in a visited tile have no key, and the third row's tiles are not visited at all."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(3, 70, 1, 8)).astype(jnp.bfloat16) for _ in range(3))
    ids = np.array([[1] * 40 + [2] * 20 + [0] * 10, [3] * 70, [0] * 70], np.int32)
    of_keys = np.array([[1] * 70, [3] * 69 + [0], [4] * 70], np.int32)
    k[of_keys == 0], q[ids == 0] = np.nan, np.nan
    given = {'query_segments': jnp.asarray(ids), 'key_segments': jnp.asarray(of_keys)}

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        request = make_request(q, k, v, parse_mechanism('full'), return_lse=True, **given)
        out, lse = attend_tiles(with_padding_zeroed(request), is_interpreted=True)
        return out, lse, attend(q, k, v, parse_mechanism('full'), backend='reference', return_lse=True, **given)

    def slopes(backend: str) -> tuple:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            out, lse = attend(q, k, v, parse_mechanism('full'), backend=backend, return_lse=True, **given)
            factors = np.cos(np.arange(out.size)).reshape(out.shape).astype(np.float32)
            return (out.astype(jnp.float32) * factors).sum() + jnp.where(lse > MASKED, lse, 1.0).sum()

        return quick(jax.grad(loss, (0, 1, 2)))(q, k, v)

    out, lse, expected = quick(run)(q, k, v)
    assert_close((out, lse), expected, dtype='bfloat16')
    assert_close(slopes('mosaic'), slopes('reference'), dtype='bfloat16', gradient=True)
    is_empty = np.repeat([False, True, False, True], [40, 30, 70, 70]).reshape(3, 70)
    assert not np.asarray(out)[is_empty].any() and (np.asarray(lse)[:, 0][is_empty] == np.float32(MASKED)).all()


@pytest.mark.usefixtures('emulated')
@pytest.mark.parametrize('sizes', [{'mosaic_tile': 128}, {'mosaic_stages': 4}])
def test_other_tiles_give_the_same(sizes: dict[str, int]):
    with using_device_tuning(**sizes):
        found = results_of(('reference', 'mosaic'), 'bigbird(32, 1)', 'plain', 200, jnp.dtype('bfloat16'), 1, 1)
    assert_close(found['mosaic'][1], found['reference'][1], dtype='bfloat16')
    assert_close(found['mosaic'][0], found['reference'][0], dtype='bfloat16', gradient=True)


def attend_listed(
    options: KernelOptions, q: jax.Array, k: jax.Array, v: jax.Array, tokens: Tokens, *_: Any
) -> tuple[jax.Array, jax.Array]:
    """Computes what the kernels compute for the causal pattern, from all pairs."""
    allowed = tokens.positions_bM[:, None] <= tokens.positions_bL[..., None]
    allowed &= tokens.segments_bM[:, None] == tokens.segments_bL[..., None]
    kept = is_kept(hash_bits(tokens.bits_BHL[..., None] + tokens.bits_1M[:, None, None]), options.dropout_rate)
    q, k, v = (x.astype(jnp.float32).repeat(q.shape[2] // x.shape[2], 2) for x in (q, k, v))
    weights, lse = masked_softmax(jnp.einsum('BLHK,BMHK->BHLM', q, k) * options.scale, allowed[:, None])
    weights = jnp.where(kept, weights / (1.0 - options.dropout_rate), 0.0)
    return jnp.einsum('BHLM,BMHK->BLHK', weights, v), lse


@pytest.mark.parametrize('axes', [{'data': 2, 'tensor': 2}, {'data': 2, 'tensor': 4}])
def test_each_device_of_a_mesh_computes_its_rows_and_heads(axes: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    """JAX emulates the kernels of only one device, so dense attention takes their place. Two key heads do not divide
    over four devices.
    """
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, 70, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    devices = np.array(jax.devices()[: math.prod(axes.values())]).reshape(*axes.values())
    ids = jnp.asarray(np.array([[1] * 40 + [2] * 30, [3] * 60 + [0] * 10], np.int32))
    given = {'query_segments': ids, 'key_segments': ids, 'dropout_rate': 0.3, 'dropout_rng': jax.random.key(3)}
    shapes = []

    def attend_shard(*arguments: Any) -> tuple[jax.Array, jax.Array]:
        shapes.append(arguments[1].shape)
        return attend_listed(*arguments)

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        q, k, v = (shard_activations(x, 'BLHK') for x in (q, k, v))
        return attend_tiles(make_request(q, k, v, parse_mechanism('causal'), **given))

    def define(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
        return attend(q, k, v, parse_mechanism('causal'), backend='reference', return_lse=True, **given)

    monkeypatch.setattr(mosaic, 'attend_lists', attend_shard)
    sharded = quick(using_mesh(jax.sharding.Mesh(devices, tuple(axes)))(run))
    assert_close(sharded(q, k, v), quick(define)(q, k, v))
    assert shapes == [(1, 128, 2 if axes['tensor'] == 2 else 4, 64)]


PATTERNS = ['causal & window(20)', 'bigbird(64, 1)', 'sparse_strided(8)', 'full - window(3)']
PATTERNS += ['global_tokens(2, last=3)', 'block(32, back=1)', 'prefix(9)', 'summary(64, 2)']


def loss(q: jax.Array, k: jax.Array, v: jax.Array, text: str, **given: Any) -> jax.Array:
    out, lse = attend(q, k, v, parse_mechanism(text), backend='mosaic', return_lse=True, **given)
    return out.astype(jnp.float32).sum() + lse.sum()


def lowered(text: str, q: Any, k: Any, **given: Any) -> str:
    """Returns the program of the gradients for an H200."""
    with using_platform('cuda', 1, H200), on_abstract_gpu():
        gradients = jax.jit(jax.grad(lambda *x: loss(*x, text, **given), (0, 1, 2)))
        return gradients.trace(q, k, k).lower(lowering_platforms=('cuda',)).as_text()


@pytest.mark.parametrize('text', PATTERNS)
def test_every_kind_of_pattern_lowers_to_kernels(text: str):
    program = lowered(text, Q[:1, :256, :2], Q[:1, :256, :1])
    names = set(re.findall(r'block_sparse_attention(?:_dq|_dkv)?(?=_mosaic_gpu)', program))
    assert len(names) == 3, 'a forward and two backward kernels'
    assert '256x256x' not in program and '2x256x256' not in program, 'an array of all pairs'


@pytest.mark.parametrize('width, dtype', [(128, 'float16'), (40, 'bfloat16')])
def test_options_lower_to_kernels(width: int, dtype: str):
    q = jax.ShapeDtypeStruct((2, 300, 4, width), dtype)
    k = jax.ShapeDtypeStruct((2, 300, 2, width), dtype)
    given = {'query_segments': IDS, 'key_segments': IDS, 'dropout_rate': 0.1, 'dropout_rng': jax.random.key(0)}
    assert 'block_sparse_attention_dkv' in lowered('causal', q, k, **given)


@pytest.mark.parametrize(
    'text, changes, line',
    [
        ('favor(16)', {'rng': jax.random.key(0)}, 'computes PatternAttention, not FAVOR'),
        ('full', {'bias': jnp.ones((300, 300))}, '^mosaic has no additive bias$'),
        ('full', {'relative': Relative(Q, Q[0, :5])}, '^mosaic has no additive bias$'),
        ('full', {'additive': jnp.ones((4, 64))}, '^mosaic has no additive scores$'),
        ('bigbird(24)', {}, '^mosaic has no tables of tiles that are not blocks of 16 positions$'),
        ('bigbird(64)', {'query_positions': jnp.arange(300)[None]}, 'no tables of tiles that are not blocks of 16'),
    ],
)
def test_what_it_lacks_is_named(text: str, changes: dict, line: str):
    with using_platform('cuda', 1, H200):
        check_supported(make_request(Q, Q, Q, parse_mechanism('causal')))
        with pytest.raises(NotImplementedError, match=line):
            compute_attention(make_request(Q, Q, Q, parse_mechanism(text), **changes))


@pytest.mark.parametrize('chip', ['NVIDIA A100-SXM4-80GB', 'NVIDIA B200', 'NVIDIA GeForce RTX 5090'])
def test_other_gpus_are_refused(chip: str):
    with using_platform('cuda', 1, chip), pytest.raises(NotImplementedError, match='no NVIDIA Hopper GPU on this'):
        check_supported(make_request(Q, Q, Q, parse_mechanism('full')))


def test_types_widths_and_devices_are_checked():
    with using_platform('cuda', 1, 'NVIDIA H100 80GB HBM3'):
        for q, line in [
            (Q.astype(jnp.float32), 'no inputs of type float32'),
            (Q.repeat(3, 3), 'no support for heads of width 192'),
        ]:
            with pytest.raises(NotImplementedError, match=line):
                check_supported(make_request(q, q, q, parse_mechanism('full')))
    with (
        using_platform('tpu', 1, H200),
        pytest.raises(NotImplementedError, match='^mosaic has no NVIDIA Hopper GPU on'),
    ):
        attend(Q, Q, Q, parse_mechanism('full'), backend='mosaic')


def test_heads_that_differ_are_refused_where_a_mesh_shards_them():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('tensor',))
    with using_mesh(mesh), using_platform('cuda', 2, H200):
        check_supported(make_request(Q, Q, Q, parse_mechanism('longformer(9)')))
        with pytest.raises(NotImplementedError, match='no patterns that differ by head where a mesh shards heads'):
            check_supported(make_request(Q, Q, Q, parse_mechanism('bigbird(64, 1)')))


@pytest.mark.parametrize(
    'text, length, given, chosen',
    [
        ('causal & window(9)', 256, {'query_segments': IDS[:, :256], 'key_segments': IDS[:, :256]}, 'mosaic'),
        ('window(9)', 2000, {}, 'mosaic'),
        ('full', 256, {'dropout_rate': 0.1, 'dropout_rng': jax.random.key(0)}, 'mosaic'),
        ('full', 100, {'dropout_rate': 0.1, 'dropout_rng': jax.random.key(0)}, 'dense'),
        ('window(9)', 2000, {'bias': jnp.ones((1, 1, 1, 2000))}, 'blocked'),
    ],
)
def test_auto_takes_it_where_cudnn_does_not_serve(
    text: str, length: int, given: dict, chosen: str, caplog: pytest.LogCaptureFixture
):
    log_choice.cache_clear()
    q = jax.ShapeDtypeStruct((2, length, 4, 64), jnp.bfloat16)
    with caplog.at_level(logging.INFO), using_platform('cuda', 1, H200), on_abstract_gpu():
        jax.eval_shape(lambda q: attend(q, q, q, parse_mechanism(text), **given), q)
    (record,) = caplog.records
    assert record.message.startswith(f'attention: {chosen} over {text} (cudnn ')
    assert ('; mosaic has no additive bias' in record.message) == (chosen == 'blocked')


def test_auto_says_that_a_gpu_is_too_old(caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    q = jax.ShapeDtypeStruct((1, 2000, 1, 64), jnp.bfloat16)
    with caplog.at_level(logging.INFO), using_platform('cuda', 1, 'NVIDIA A100-SXM4-80GB'):
        jax.eval_shape(lambda q: attend(q, q, q, parse_mechanism('window(9)')), q)
    assert caplog.records[0].message.endswith('; mosaic has no NVIDIA Hopper GPU on this machine)')


def compiled(text: str, mesh: jax.sharding.Mesh, *shape: int, **given: Any) -> Any:
    """Returns the compiled program of output and gradients, for packed rows sharded over absent GPUs."""
    sharded = {
        letters: jax.sharding.NamedSharding(mesh, partition(letters, shape[: len(letters)], mesh, ACTIVATIONS))
        for letters in ('BLHK', 'BL')
    }
    q = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharded['BLHK'])
    ids = jax.ShapeDtypeStruct(shape[:2], jnp.int32, sharding=sharded['BL'])

    def gradients(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> tuple:
        given_ids = {'query_segments': ids, 'key_segments': ids}
        return jax.grad(lambda *x: loss(*x, text, **given_ids, **given), (0, 1, 2))(q, k, v)

    with using_mesh(mesh):
        return jax.jit(gradients).lower(q, q, q, ids).compile()


def gpus(count: int, **axes: int) -> jax.sharding.Mesh:
    """Returns a mesh of absent H200s."""
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    return make_mesh(MeshConfig(**axes), make_topology_devices(parse_topology(f'h200:{count}')))


@pytest.mark.slow
@pytest.mark.parametrize('width', [64, 128])
def test_kernels_spill_no_registers(width: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The assembler reports the registers that each kernel saves in memory because it has too few."""
    monkeypatch.setenv('MOSAIC_GPU_DUMP_PTXAS', '1')
    given = {'dropout_rate': 0.1, 'dropout_rng': jax.random.key(0)}
    compiled('bigbird(64) & causal', gpus(1), 1, 1024, 2, width, **given)
    report = ''.join(capfd.readouterr())
    spills = re.findall(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', report)
    assert spills == [('0', '0', '0')] * 3


@pytest.mark.slow
def test_it_compiles_in_linear_memory():
    """Twice the length takes at most 2.2 times the temporary memory, up to 65,536 positions."""
    memory = []
    for length in (2**15, 2**16):
        program = compiled('bigbird(64)', gpus(1), 1, length, 8, 64)
        assert f'{length},{length}' not in program.as_text(), 'an array of all pairs'
        memory.append(program.memory_analysis().temp_size_in_bytes)
    assert memory[1] <= 2.2 * memory[0] and memory[1] <= 10 * 2**16 * 8 * 64 * 2


@pytest.mark.slow
def test_each_of_four_gpus_computes_its_own_rows_and_heads():
    text = compiled('causal', gpus(4, data=2, tensor=2), 4, 512, 8, 64).as_text()
    assert text.count('custom_call_target="mosaic_gpu') == 3
    assert re.search(r'bf16\[2,512,4,64\]', text) and 'bf16[4,512,8,64]' not in text
    assert not re.search(r'all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter', text)
