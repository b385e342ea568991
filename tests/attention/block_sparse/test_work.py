"""Tests that each kernel of `mosaic` states the products and loads that follow from the tiles that a pattern keeps."""

import contextlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import make_request
from efficient_attention.attention.block_sparse import listed_attention
from efficient_attention.attention.devices import using_device_tuning, using_platform
from efficient_attention.attention.kernel_work import KernelWork, stated_work, stating_work
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns.pattern import dense_mask
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax import mosaic
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError
from tests.attention.abstract_gpu import on_abstract_gpu

BATCH, LENGTH, HEADS, KEY_HEADS, WIDTH = 3, 512, 4, 2, 64


def output_and_gradients(text: str, **options: Any) -> tuple[Any, list[Any]]:
    """Returns a function that calls the kernels with gradients, and the shapes of its arguments."""
    mechanism = parse_mechanism(text)

    def both(q: jax.Array, k: jax.Array, v: jax.Array, rng: jax.Array) -> Any:
        given = {'dropout_rng': rng} if options.get('dropout_rate') else {}

        def call(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return mosaic.attend_tiles(make_request(q, k, v, mechanism, CallOptions(**options, **given)))[0]

        out, pull = jax.vjp(call, q, k, v)
        return out, pull(out)

    q = jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS, WIDTH), 'bfloat16')
    k = jax.ShapeDtypeStruct((BATCH, LENGTH, KEY_HEADS, WIDTH), 'bfloat16')
    return both, [q, k, k, jax.eval_shape(lambda: jax.random.key(0))]


def stated_works(monkeypatch: pytest.MonkeyPatch, text: str, **options: Any) -> dict[str, KernelWork]:
    """Returns the works that a call with gradients states, by the kernels' names."""
    found: list[KernelWork] = []

    def state(work: KernelWork) -> contextlib.AbstractContextManager[None]:
        found.append(work)
        return stating_work(work)

    monkeypatch.setattr(listed_attention, 'stating_work', state)
    both, shapes = output_and_gradients(text, **options)
    with using_platform('cuda', 1, 'NVIDIA H200'), on_abstract_gpu():
        jax.eval_shape(both, *shapes)
    works = {work.name: work for work in found}
    assert len(set(found)) == len(works)
    return works


def test_the_program_for_a_gpu_contains_the_work_of_each_kernel(monkeypatch: pytest.MonkeyPatch):
    both, shapes = output_and_gradients('full')
    with using_platform('cuda', 1, 'NVIDIA H200'), on_abstract_gpu():
        lowered = jax.jit(both).trace(*shapes).lower(lowering_platforms=('cuda',))
    scopes = set(re.findall(r'kernel_\w+', lowered.as_text(debug_info=True)))
    works = [work for work in map(stated_work, scopes) if work]
    assert {work.name: work for work in works} == stated_works(monkeypatch, 'full')


def kept_tiles(text: str, queries: int, keys: int) -> int:
    """Returns how many tiles of these sizes have an allowed pair, over all query heads."""
    mechanism = parse_mechanism(text)
    assert isinstance(mechanism, Softmax)
    mask_HLM = np.broadcast_to(dense_mask(mechanism.pattern, LENGTH, LENGTH, HEADS), (HEADS, LENGTH, LENGTH))
    return int(mask_HLM.reshape(HEADS, LENGTH // queries, queries, LENGTH // keys, keys).any(axis=(2, 4)).sum())


@pytest.mark.parametrize('text', ['full', 'causal', 'longformer(48)', 'bigbird(32, 1)'])
def test_products_follow_the_kept_tiles(text: str, monkeypatch: pytest.MonkeyPatch):
    by_query, by_key = (BATCH * kept_tiles(text, *sizes) for sizes in ((128, 64), (64, 128)))
    product = 2 * 128 * 64 * WIDTH
    found = stated_works(monkeypatch, text)
    assert {name: work.flops for name, work in found.items()} == {
        'forward': 2 * by_query * product,
        'dq': 3 * by_query * product,
        'dkv': 4 * by_key * product,
    }


def test_products_follow_other_tiles(monkeypatch: pytest.MonkeyPatch):
    with using_device_tuning(mosaic_tile=128):
        found = stated_works(monkeypatch, 'causal')
    tiles = BATCH * kept_tiles('causal', 128, 128)
    assert [work.flops for work in found.values()] == [products * tiles * 2 * 128**2 * WIDTH for products in (2, 3, 4)]


@pytest.mark.parametrize(
    'change, message',
    [
        ({'mosaic_tile': 96}, 'mosaic_tile is 96; it must be 64 or 128'),
        ({'mosaic_stages': 1}, 'it must be from 2 to 4'),
    ],
)
def test_other_sizes_of_tiles_are_refused(change: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch):
    with using_device_tuning(**change), pytest.raises(InputError, match=message):
        stated_works(monkeypatch, 'full')


def test_a_word_has_a_bit_for_each_block_of_a_tile(monkeypatch: pytest.MonkeyPatch):
    with using_device_tuning(mosaic_tile=128):
        assert set(stated_works(monkeypatch, 'bigbird(32, 1)')) == {'forward', 'dq', 'dkv'}
        with pytest.raises(NotImplementedError, match='no tables of blocks of 16 positions in tiles of 128 x 128'):
            stated_works(monkeypatch, 'bigbird(16, 1)')


def test_loads_count_each_visit(monkeypatch: pytest.MonkeyPatch):
    """Without positions, segments and dropout, a visit loads two vectors for each token, and two numbers if they are
    queries.
    """
    visits, tokens, key_tokens = BATCH * HEADS * 4 * 8, BATCH * HEADS * LENGTH, BATCH * KEY_HEADS * LENGTH
    vector = 2 * WIDTH
    assert {name: work.loaded_bytes for name, work in stated_works(monkeypatch, 'full').items()} == {
        'forward': visits * 64 * 2 * vector + tokens * (2 * vector + 4),
        'dq': visits * 64 * 2 * vector + tokens * (3 * vector + 8),
        'dkv': visits * 64 * (2 * vector + 8) + key_tokens * 4 * vector,
    }


def test_packed_rows_and_dropout_add_only_numbers_of_tokens(monkeypatch: pytest.MonkeyPatch):
    plain = stated_works(monkeypatch, 'causal')
    packed = jnp.asarray(np.repeat([[1, 2, 3]], BATCH, 0).repeat([100, 300, 112], axis=1))
    more = stated_works(monkeypatch, 'causal', query_segments=packed, key_segments=packed, dropout_rate=0.1)
    for name, work in more.items():
        assert work.flops == plain[name].flops
        assert plain[name].loaded_bytes < work.loaded_bytes < 1.05 * plain[name].loaded_bytes
