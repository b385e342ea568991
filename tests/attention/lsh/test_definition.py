"""Tests the dense definition of LSH attention against loops in NumPy, and the recall of its hashing."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.lsh import definition, hashing
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.lsh.sorted_rounds import make_rounds
from efficient_attention.attention.request import Request
from tests.attention import contract
from tests.attention.requests import make_request
from tests.tolerances import assert_close

RNG = jax.random.key(3)
# These programs run once: compiling them with all optimisations takes three times as long.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.mark.parametrize(
    'options', [{}, {'causal': True}, {'within_buckets': True}, {'deduplicate': True}, {'causal': True, 'buckets': 4}]
)
def test_weights_equal_loops_over_queries(options: dict):
    mechanism = LSH(bucket_size=4, rounds=3, **options)
    q = jnp.asarray(1.5 * np.random.default_rng(0).normal(size=(2, 26, 2, 8)), jnp.float32)
    segments = np.stack([np.ones(26, int), np.where(np.arange(26) < 22, 1 + np.arange(26) // 9, 0)]).astype(np.int32)
    given = jnp.asarray(segments)
    request = make_request(q, q, q, mechanism, rng=RNG, query_segments=given, key_segments=given)
    buckets = definition.layout_from_request(request).buckets
    program = jit(lambda: (*definition.weights(request), hashing.draw_rotations(RNG, buckets, 3, 2, 8)))
    weights, lse, (rotations,) = jax.device_get(program())
    for row, head in itertools.product(range(2), range(2)):
        query = np.asarray(q[row, :, head], np.float64)
        own = [contract.lsh_buckets(query, [np.asarray(rotations[head, :, number], np.float64)]) for number in range(3)]
        named = {name: value for name, value in options.items() if name != 'buckets'}
        assert_close(weights[row, head], contract.lsh_weights(query, own, segments[row], 4, **named)[0])
    assert lse.shape == (2, 2, 26) and lse.dtype == jnp.float32
    assert_close(weights.sum(axis=-1), np.broadcast_to((segments != 0)[:, None], (2, 2, 26)).astype(np.float32))


def test_within_buckets_reads_no_other_bucket():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 2, 8)), jnp.float32)

    def read_elsewhere(within: bool) -> np.ndarray:
        mechanism = LSH(bucket_size=8, rounds=1, within_buckets=within)
        request = make_request(q, q, q, mechanism, rng=RNG)
        layout = definition.layout_from_request(request)

        @jit
        def weights_and_buckets() -> tuple:
            return definition.weights(request)[0], make_rounds(request, layout)[1][:, :, 0]

        weights, buckets = (np.asarray(x) for x in weights_and_buckets())
        return (weights > 0) & (buckets[..., :, None] != buckets[..., None, :])

    assert read_elsewhere(False).any() and not read_elsewhere(True).any()


def count_rounds_with_pair(request: Request) -> np.ndarray:
    layout = definition.layout_from_request(request)
    count = jit(lambda: definition.count_rounds_with_pair(layout, *definition.chunks_and_buckets(request, layout)))
    return np.asarray(count())


def test_a_pair_counts_once_or_as_often_as_it_was_found():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 2, 8)), jnp.float32)

    def times(deduplicate: bool) -> np.ndarray:
        request = make_request(q, q, q, LSH(bucket_size=8, rounds=4, deduplicate=deduplicate), rng=RNG)
        return count_rounds_with_pair(request)

    often, once = times(False), times(True)
    assert often.max() == 4 and (often == 2).any() and (often == 0).any()
    assert np.array_equal(once, np.minimum(often, 1))
    assert (often.sum(axis=-1) == 4 * 16).all()  # In each round a query reads its own chunk and the chunk before it.


def test_recall_rises_with_the_rounds():
    rng = np.random.default_rng(0)
    # The vectors form clusters of 16.
    q = rng.normal(size=(2, 512, 2, 16)) + 2.0 * rng.normal(size=(2, 32, 2, 16)).repeat(16, axis=1)
    q = jnp.asarray(q[:, rng.permutation(512)], jnp.float32)
    units = np.asarray(q) / np.linalg.norm(q, axis=-1, keepdims=True)
    similar = np.einsum('BLHK,BMHK->BHLM', np.asarray(q), units) - 1e5 * np.eye(512)
    nearest = np.argsort(-similar, axis=-1)[..., :16]

    @functools.cache
    def recall(rounds: int) -> float:
        request = make_request(q, q, q, LSH(bucket_size=32, rounds=rounds), rng=RNG)
        found = count_rounds_with_pair(request) > 0
        return float(np.take_along_axis(found, nearest, axis=-1).mean())

    curve = {rounds: recall(rounds) for rounds in (1, 2, 4)}
    print('recall of the true 16 nearest keys by rounds:', curve)
    values = list(curve.values())
    assert all(later > earlier + 0.02 for earlier, later in zip(values[:-1], values[1:], strict=True)), curve
    assert values[0] > 2 * 64 / 512  # Random chunks would find 64 of 512 keys.
