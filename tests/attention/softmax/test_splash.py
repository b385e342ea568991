"""Tests that the splash backend accepts only calls that it computes exactly, that its interpreted kernels equal the
definition, and that its program lowers and compiles without a TPU.
"""

import importlib.util
import logging
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.choice_log import log_choice
from efficient_attention.attention.device_mesh import shard_activations, using_mesh
from efficient_attention.attention.devices import using_device_tuning, using_platform
from efficient_attention.attention.parsing import parse_mechanism, parse_pattern
from efficient_attention.attention.patterns import dense_mask
from efficient_attention.attention.request import Lengths, with_padding_zeroed
from efficient_attention.attention.softmax.splash import (
    LARGEST_OTHER_TILE,
    LARGEST_TILES,
    WIDEST_HEAD,
    PatternMask,
    attend_tiles,
    check_supported,
    compute_attention,
    make_kernel,
    tile_size,
)
from efficient_attention.errors import InputError
from efficient_attention.planning.topology import make_topology_devices, parse_topology
from tests.attention.cells import inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close

pytestmark = pytest.mark.lenient_promotion  # JAX's kernels mix dtypes inside
Q = jnp.ones((2, 300, 4, 64), jnp.bfloat16)
IDS = jnp.ones((2, 300), jnp.int32)
# Rows with two texts and padding, with one text that does not start at 1, and with padding only.
PACKED = np.array([[1] * 90 + [2] * 31 + [0] * 9, [3] * 128 + [0] * 2, [0] * 130], np.int32)
# The second row's segment 1 has no key.
OF_KEYS = np.array([[1] * 40 + [2] * 160, [2] * 200, [0] * 200], np.int32)


def reference_and_kernels(text: str, arrays: tuple, given: dict[str, Any]) -> tuple[list, list]:
    """Returns output and gradients of the definition and of the interpreted kernels, with tiles of 128 positions."""
    mechanism = parse_mechanism(text)
    weights = np.cos(np.arange(arrays[0].size)).reshape(arrays[0].shape).astype(np.float32)

    def defined(*qkv: jax.Array) -> jax.Array:
        return attend(*qkv, mechanism, backend='reference', **given)

    def tiled(*qkv: jax.Array) -> jax.Array:
        return attend_tiles(with_padding_zeroed(make_request(*qkv, mechanism, **given)), is_interpreted=True)

    def gradients(form: Callable, *qkv: jax.Array) -> list:
        def weighted(*qkv: jax.Array) -> tuple:
            out = form(*qkv)
            return (out * weights).sum(), out

        return jax.grad(weighted, (0, 1, 2), has_aux=True)(*qkv)

    with using_device_tuning(splash_tile=128):
        return quick(lambda *qkv: (gradients(defined, *qkv), gradients(tiled, *qkv)))(*arrays)


@pytest.mark.parametrize(
    'text, length, option, segments',
    [
        ('causal', 130, 'plain', None),
        ('full', 128, 'plain', None),
        ('causal & window(20)', 130, 'grouped', (PACKED, PACKED)),
        ('longformer(9)', 130, 'plain', (Lengths(np.array([130, 7, 0], np.int32)),) * 2),
        ('per_head(causal, bigbird(32, 1))', 130, 'plain', None),
        ('full', 130, 'cross', (PACKED, OF_KEYS)),
    ],
)
def test_the_kernels_equal_the_definition(text: str, length: int, option: str, segments: tuple | None):
    """The rows do not fill their tiles; some queries have no key, and some rows no token."""
    arrays, given = inputs(length, option, batch=1 if segments is None else 3, heads=2)
    if segments is not None:
        one = segments[0] is segments[1]
        of_queries = jax.tree.map(jnp.asarray, segments[0])
        of_keys = of_queries if one else jax.tree.map(jnp.asarray, segments[1])
        given = {'query_segments': of_queries, 'key_segments': of_keys}
    expected, ours = reference_and_kernels(text, arrays, given)
    assert_close(ours, expected, gradient=True)


def test_nan_in_padding_changes_nothing():
    (q, k, v), _ = inputs(130, batch=3, heads=2)
    spoilt = [jnp.where(PACKED[..., None, None] == 0, jnp.nan, x) for x in (q, k, v)]
    ids = jnp.asarray(PACKED)
    expected, ours = reference_and_kernels('causal', tuple(spoilt), {'query_segments': ids, 'key_segments': ids})
    assert_close(ours, expected, gradient=True)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(ours))


def test_each_device_of_a_mesh_computes_its_rows_and_heads():
    (q, k, v), _ = inputs(130, 'grouped', batch=2, heads=4)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('data', 'tensor'))
    ids = jnp.asarray(PACKED[:2])

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (shard_activations(x, 'BLHK') for x in (q, k, v))
        request = make_request(q, k, v, parse_mechanism('causal'), query_segments=ids, key_segments=ids)
        return attend_tiles(request, is_interpreted=True)

    with using_device_tuning(splash_tile=128):
        alone, program = quick(run)(q, k, v), quick(using_mesh(mesh)(run)).lower(q, k, v).compile()
    assert_close(program(q, k, v), alone)
    assert not re.search('all-gather|all-to-all', program.as_text()), 'the kernels gathered the rows or heads'


@pytest.mark.parametrize('text', ['full', 'causal', 'causal & window(100)', 'longformer(40)'])
def test_forward_and_backward_lower_to_kernels(text: str):
    def loss(q: jax.Array, k: jax.Array) -> jax.Array:
        return attend(q, k, k, parse_mechanism(text), query_segments=IDS, key_segments=IDS).astype(jnp.float32).sum()

    with using_platform('tpu', 1):
        lowered = jax.jit(jax.grad(loss, (0, 1))).trace(Q, Q[:, :, :2]).lower(lowering_platforms=('tpu',))
    program = lowered.as_text()
    names = re.findall(r'kernel_name = "([\w]+)"', program)
    assert sorted(re.sub('_segmented|_no_residuals|_residuals', '', name) for name in names) == [
        'splash_mha_dkv', 'splash_mha_dq', 'splash_mha_fwd',
    ]  # fmt: skip
    assert '4x384x384' not in program and '4x300x300' not in program, 'an array of all pairs'  # padded: 384


@pytest.mark.parametrize(
    'text, changes, line',
    [
        ('favor(16)', {'rng': jax.random.key(0)}, 'computes PatternAttention, not FAVOR'),
        ('full', {'bias': jnp.ones((300, 300))}, 'no additive bias'),
        ('full', {'dropout_rate': 0.1, 'rng': jax.random.key(0)}, 'no attention dropout'),
        ('full', {'return_lse': True}, 'no log-sum-exp'),
        ('window(8, 2)', {}, 'no dilated or strided patterns'),
        ('sparse_strided(8)', {}, 'no dilated or strided patterns'),
        ('causal', {'query_positions': np.arange(1, 301)[None]}, 'no support for positions other than 0, 1, ...'),
        ('causal - window(2)', {}, 'no support for queries without a key in their pattern'),
        ('causal', {'query_segments': IDS, 'key_segments': IDS + 1}, 'no support for queries without a key'),
    ],
)
def test_what_it_lacks_is_named(text: str, changes: dict, line: str):
    with using_platform('tpu'):
        check_supported(make_request(Q, Q, Q, parse_mechanism('causal')))
        with pytest.raises(NotImplementedError, match=line):
            compute_attention(make_request(Q, Q, Q, parse_mechanism(text), **changes))


def test_types_widths_and_devices_are_checked():
    with using_platform('tpu'):
        for q, line in [
            (Q.astype(jnp.float32), 'no inputs of type float32'),
            (Q[..., :12], 'no support for heads of width 12'),
        ]:
            with pytest.raises(NotImplementedError, match=line):
                check_supported(make_request(q, q, q, parse_mechanism('full')))
    with pytest.raises(NotImplementedError, match='^splash has no TPU on this machine$'):
        attend(Q, Q, Q, parse_mechanism('full'), backend='splash')


def test_patterns_that_differ_by_layer_are_refused():
    request = make_request(Q, Q, Q, parse_mechanism('bigbird(64, 1)').for_layer((0, 1)), layer=1)
    with using_platform('tpu'), pytest.raises(NotImplementedError, match='no patterns that differ by layer in one'):
        check_supported(request)


def test_patterns_with_many_different_tiles_are_refused():
    """Their masks would take most of the chip's memory."""
    q = jnp.ones((1, 2048, 12, 64), jnp.bfloat16)  # each head alone has at most 16 masks, 4 MiB
    with using_platform('tpu'), pytest.raises(NotImplementedError, match='no support for patterns with more than 4 '):
        compute_attention(make_request(q, q, q, parse_mechanism('bigbird(64)')))


def test_long_lists_of_tiles_are_refused():
    q = jax.ShapeDtypeStruct((1, 2**17, 1, 8), jnp.bfloat16)

    def refused(q: jax.Array) -> jax.Array:
        return compute_attention(make_request(q, q, q, parse_mechanism('full')))[0]

    with using_platform('tpu'), using_device_tuning(splash_tile=256):
        with pytest.raises(NotImplementedError, match='splash has no support for lists of 262144 tiles, only of'):
            jax.eval_shape(refused, q)


@pytest.mark.parametrize(
    'size, chip, line',
    [
        (100, 'cpu', 'device constant splash_tile is 100; it must be a multiple of 128, such as 512'),
        (1024, 'TPU v5 lite', 'device constant splash_tile is 1024; it must be at most 512 on a TPU v5 lite'),
        (2048, 'TPU v6 lite', 'device constant splash_tile is 2048; it must be at most 1024 on a TPU v6 lite'),
        (1024, 'TPU v4', 'device constant splash_tile is 1024; it must be at most 512 on a TPU v4'),
        (8192, 'TPU7x', 'device constant splash_tile is 8192; it must be at most 512 on a TPU7x'),
    ],
)
def test_tiles_that_do_not_fit_are_refused(size: int, chip: str, line: str):
    with using_platform('tpu', chip=chip), using_device_tuning(splash_tile=size):
        with pytest.raises(InputError, match=f'^{line}$'):
            tile_size(4096)


def test_short_rows_have_smaller_tiles():
    with using_device_tuning(splash_tile=512):
        assert [tile_size(length) for length in (1, 128, 130, 5000)] == [128, 128, 256, 512]


@pytest.mark.parametrize('text', ['causal & window(200)', 'longformer(30)', 'bigbird(64, 1)'])
def test_a_mask_equals_the_pattern(text: str):
    length, tile = 600, 128
    mask = PatternMask(parse_pattern(text).for_key_count(length), length, length, tile)
    assert mask.shape == (640, 640)
    cut = [slice(start, start + tile) for start in range(0, 640, tile)]
    whole = np.block([[mask[rows, columns] for columns in cut] for rows in cut])
    np.testing.assert_array_equal(whole[:length, :length], dense_mask(mask.pattern, length, length))
    np.testing.assert_array_equal(whole[length:], np.broadcast_to(whole[length - 1], (40, 640)))


def test_equal_tiles_are_one_array():
    """At 65,536 positions, the 128 tiles on the diagonal are one mask of 512 x 512. The lists of tiles of a kernel for
    such rows took 1.8 seconds of a core (docs/results/scaling.md); the limit allows for a busy machine.
    """
    mask = PatternMask(parse_pattern('causal'), 2**16, 2**16, 512)
    assert len(mask.partial_tiles) == 128
    assert len({id(tile) for tile in mask.partial_tiles.values()}) == 1
    before = time.process_time()
    kernel = make_kernel((parse_pattern('causal & window(1024)'),), 2, 2**16, 2**16, 512, False)
    assert time.process_time() - before <= 5.0
    assert kernel.fwd_mask_info.partial_mask_blocks.shape == (2, 512, 512)
    assert kernel.fwd_mask_info.block_mask.shape == (1, 128, 3)  # at most three tiles for each tile of queries


@pytest.mark.parametrize(
    'length, choice',
    [
        (256, 'splash over causal'),
        (128, 'dense over causal (auto takes splash only for rows of 256 positions or more)'),
    ],
)
def test_auto_takes_it_on_tpus(length: int, choice: str, caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    shape = jax.ShapeDtypeStruct((1, length, 2, 64), jnp.bfloat16)
    with caplog.at_level(logging.INFO), using_platform('tpu', 1):
        jax.eval_shape(lambda q: attend(q, q, q, parse_mechanism('causal')), shape)
    assert [record.message for record in caplog.records] == [f'attention: {choice}']


def test_auto_says_what_it_lacks(caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    shape = jax.ShapeDtypeStruct((1, 600, 2, 64), jnp.float32)
    with caplog.at_level(logging.INFO), using_platform('tpu', 1):
        jax.eval_shape(lambda q: attend(q, q, q, parse_mechanism('window(8, 2)')), shape)
    assert [record.message for record in caplog.records] == [
        'attention: blocked over window(8, dilation=2) (splash has no inputs of type float32, no dilated or strided '
        'patterns)'
    ]


@pytest.mark.slow
@pytest.mark.parametrize('topology, chip', [('v5e:2x2', 'TPU v5 lite'), ('v6e:2x2', 'TPU v6 lite')])
def test_it_compiles_for_tpus_in_linear_memory(topology: str, chip: str):
    """Twice the length takes at most 2.4 times the temporary memory, up to 65,536 positions. A call compiles in 60 s of
    processor time, also with the chip's largest tile and the widest heads.
    """
    if importlib.util.find_spec('libtpu') is None:
        pytest.skip('needs libtpu: make plan')
    device = make_topology_devices(parse_topology(topology))[:1]
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(device, ('data',)), jax.sharding.PartitionSpec())

    def loss(q: jax.Array, segments: jax.Array) -> jax.Array:
        given = {'query_segments': segments, 'key_segments': segments, 'backend': 'splash'}
        return attend(q, q, q, parse_mechanism('causal & window(1024)'), **given).astype(jnp.float32).sum()

    memory = []
    largest = LARGEST_TILES.get(chip, LARGEST_OTHER_TILE)
    for length, tile, width in ((2**15, 512, 64), (2**16, 512, 64), (2**15, largest, WIDEST_HEAD)):
        q = jax.ShapeDtypeStruct((1, length, 8, width), jnp.bfloat16, sharding=sharding)
        segments = jax.ShapeDtypeStruct((1, length), jnp.int32, sharding=sharding)
        before = time.process_time()
        with using_platform('tpu', 1, chip), using_device_tuning(splash_tile=tile):
            compiled = jax.jit(jax.grad(loss)).lower(q, segments).compile()
        seconds = time.process_time() - before
        print(
            f'{topology}, {length} positions, heads of {width}, tiles of {tile}: compiled in {seconds:.1f} s of a core'
        )
        assert seconds <= 60.0
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    assert memory[1] <= 2.4 * memory[0] and memory[1] <= 20 * 2**16 * 8 * 64 * 2
