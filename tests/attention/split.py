"""Compares calls of `attend` on rows that are split over devices with the same calls on one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from tests.tolerances import assert_close


def numbers(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def vectors(length: int, memory: int = 0, batch: int = 2, heads: int = 2, groups: int = 2) -> tuple[jax.Array, ...]:
    """Returns query, key and value; there are `memory` more keys than queries."""
    rng = np.random.default_rng(0)
    keys = (batch, memory + length, groups, 4)
    return numbers(rng, batch, length, heads, 4), numbers(rng, *keys), numbers(rng, *keys)


def packed(length: int) -> jax.Array:
    """Returns segments [2, L]: texts that begin and end in the middle of a device's share, and padding."""
    places = np.arange(length)
    rows = (
        np.digitize(places, [length // 3, length // 2 + 1, length - 2]),
        np.digitize(places, [length // 4, length - 1]),
    )
    return jnp.asarray([(row + 1) * (places < length - 1 - number) for number, row in enumerate(rows)], jnp.int32)


def assert_split_equals_whole(
    mesh: MeshConfig, mechanism: Mechanism, inputs: tuple, terms: Any = (None, None), **options: Any
) -> None:
    """Checks output, log-sum-exp where the mechanism has one, and gradients of inputs and terms (bias, relative)."""
    count = mesh.data * mesh.sequence * mesh.tensor
    has_lse = mechanism.capabilities.has_logits

    def loss(inputs: tuple, terms: Any) -> Any:
        named = dict(zip(('bias', 'relative'), terms, strict=True))
        out, lse = attend(*inputs, mechanism, return_lse=True, **named, **options) if has_lse else (
            attend(*inputs, mechanism, **options), jnp.zeros(()),
        )  # fmt: skip
        weights = jnp.cos(jnp.arange(out.size)).reshape(out.shape)
        return (out * weights).sum() + jnp.where(lse > -1e30, lse, 0.0).sum(), (out, lse)

    both = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    split = jax.jit(using_mesh(make_mesh(mesh, jax.devices()[:count]))(both))
    actual, expected = (jax.tree.leaves(compiled(inputs, terms)) for compiled in (split, jax.jit(both)))
    for left, right in zip(actual, expected, strict=True):
        # This is stricter than tests/tolerances.py, because sums are only reordered.
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)
    assert_close(actual, expected)
