"""Tests centroids: which tokens they take, which tokens count for their means, and how sums travel as their
gradient.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.routing.centroids import (
    CentroidScores,
    attach_centroid_statistics,
    centroid_statistics,
    layer_norm,
    nearest_tokens,
    score_centroids,
    top_k_indices,
)
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from tests.attention import contract_rows
from tests.attention.cells import drawn_operands, inputs, quick
from tests.tolerances import assert_close


def drawn(mechanism_text: str = 'routing(5, 4)', heads: int = 2) -> jax.Array:
    return drawn_operands(parse_mechanism(mechanism_text), heads, 8)['centroids']


def near(valid: Any = None, dtype: Any = jnp.float32) -> tuple[CentroidScores, jax.Array]:
    x = inputs(12, heads=2, dtype=dtype)[0][0]
    return jax.jit(lambda x, *rest: score_centroids(layer_norm(x).swapaxes(1, 2), *rest))(x, drawn(), valid), x


def test_normalised_vectors_have_no_mean_and_length_sqrt_of_the_width():
    x = np.asarray(inputs(12)[0][0]).astype(jnp.bfloat16)
    norm = jax.jit(layer_norm)
    out = np.asarray(norm(x))
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.mean(-1), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.square(out).sum(-1), 8.0, rtol=1e-4)
    assert not np.asarray(norm(np.zeros((2, 12, 4, 8), np.float32))).any()
    assert_close(norm(3.0 * x.astype(np.float32) + 1.0), out)


def test_centroids_take_the_nearest_tokens_and_padding_last():
    valid = np.arange(12)[None] < np.array([[12], [3]])
    found, x = near(valid)
    places = np.asarray(jax.jit(nearest_tokens, static_argnums=1)(found, 4))
    exact, centroids = np.asarray(x, np.float64), np.asarray(drawn(), np.float64)[..., :8]
    for row in range(2):
        expected = contract_rows.nearest_places(exact[row], centroids, valid[row], 4)
        for head in range(2):
            for cluster in range(5):
                count = min(4, int(valid[row].sum()))
                np.testing.assert_array_equal(places[row, head, cluster, :count], expected[head][cluster])
    alike = CentroidScores(found.unit_BHLK, np.zeros_like(found.products_BHCL), None)
    np.testing.assert_array_equal(jax.jit(nearest_tokens, static_argnums=1)(alike, 30)[0, 0, 0], np.arange(12))


@pytest.mark.parametrize('fields', [{}, {'tensor': 2}, {'data': 2, 'fsdp': 2, 'tensor': 2}], ids=str)
def test_each_device_looks_at_its_own_rows_and_heads(fields: dict):
    """An axis that the mesh does not divide stays whole."""
    x = np.random.default_rng(0).normal(size=(8, 6 if fields else 3, 3, 10)).astype(np.float32)
    mesh = make_mesh(MeshConfig(**fields))
    found = jax.jit(using_mesh(mesh)(functools.partial(top_k_indices, count=4)))(x)
    np.testing.assert_array_equal(found, quick(functools.partial(top_k_indices, count=4))(x))
    assert len(found.sharding.device_set) == 8 and found.addressable_shards[0].data.size < found.size


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_statistics_are_sums_of_the_unit_vectors_of_each_centroid_and_their_number(dtype: str):
    valid = np.arange(12)[None] < np.array([[12], [7]])
    found, x = near(valid, jnp.dtype(dtype))
    out = np.asarray(jax.jit(centroid_statistics)(found))
    tokens = [np.concatenate([np.asarray(x[row, valid[row], h], np.float64) for row in range(2)]) for h in range(2)]
    assert out.dtype == jnp.float32
    assert_close(out, contract_rows.routing_statistics(tokens, np.asarray(drawn(), np.float64)[..., :8]))
    np.testing.assert_array_equal(out[..., -1].sum(1), 19)
    alike = CentroidScores(found.unit_BHLK, np.zeros_like(found.products_BHCL), None)
    np.testing.assert_array_equal(np.asarray(jax.jit(centroid_statistics)(alike))[..., -1], [[24, 0, 0, 0, 0]] * 2)


def test_the_gradient_of_centroids_is_the_statistics_and_nothing_else_gets_one():
    found, x = near()

    def loss(scale: jax.Array, x: jax.Array, centroids: jax.Array) -> jax.Array:
        queries = score_centroids(layer_norm(x).swapaxes(1, 2), centroids, None)
        return scale * attach_centroid_statistics(jnp.ones((3, 2)), centroids, queries, found).sum()

    gradients, expected = quick(jax.grad(loss, (1, 2))), np.asarray(jax.jit(centroid_statistics)(found))
    for scale in (1.0, -7.0):
        to_x, to_centroids = jax.device_get(gradients(scale, x, drawn()))
        assert not to_x.any()
        np.testing.assert_array_equal(to_centroids, 2.0 * expected)


@pytest.mark.parametrize('backend', ['reference', 'blocked'])
def test_a_call_s_statistics_are_those_of_its_queries_and_keys(backend: str):
    """Only heads that are not local count; a grouped key counts once for each of its heads, padding never."""
    (q, k, v), extra = inputs(20, 'padding grouped')
    mechanism = parse_mechanism('routing(5, 4, local_heads=1)')
    centroids = drawn_operands(mechanism, 4, 8)['centroids']

    def loss(centroids: jax.Array) -> jax.Array:
        out = attend(q, k, v, mechanism, learned={'centroids': centroids}, backend=backend, **extra)
        return jnp.sin(out).sum()

    found = quick(jax.grad(loss))(centroids)
    valid = np.asarray(extra['query_segments']) > 0
    rows = [np.asarray(x, np.float64) for x in (q, np.repeat(k, 2, axis=2))]
    tokens = [np.concatenate([x[row, valid[row], h] for x in rows for row in range(2)]) for h in range(1, 4)]
    assert_close(found, contract_rows.routing_statistics(tokens, np.asarray(centroids, np.float64)[..., :8]))
