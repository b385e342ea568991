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
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.kernel_work import KernelWork, stated_work, stating_work
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns.pattern import dense_mask
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax import mosaic
from efficient_attention.attention.softmax.definition import Softmax
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
