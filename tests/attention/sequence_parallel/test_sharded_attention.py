"""Tests that unsplittable calls are refused, and that short or indivisible sequences stay whole and give right
results.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import NAMES, load_implementation
from efficient_attention.attention.sequence_parallel.sharded_attention import has_sequence_axis
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from tests.tolerances import assert_close

MESH = make_mesh(MeshConfig(sequence=2, tensor=2), jax.devices()[:4])


def arrays(queries: int, keys: int, batch: int = 1) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(
        jnp.asarray(rng.standard_normal((batch, length, 2, 4)), jnp.float32) for length in (queries, keys, keys)
    )


def test_an_implementation_shards_what_its_mechanism_says():
    assert all(
        (implementation.compute_shard is not None) == implementation.kind().capabilities.splits_tokens
        for implementation in map(load_implementation, NAMES)
    )


def test_only_a_mesh_with_a_sequence_axis_splits_rows():
    assert (
        has_sequence_axis(MESH)
        and not has_sequence_axis(None)
        and not has_sequence_axis(make_mesh(MeshConfig(tensor=2)))
    )


@pytest.mark.parametrize(
    'text, options, line',
    [
        ('lsh(8, 1)', {}, 'lsh has no implementation for rows sharded over a sequence axis'),
        (
            'per_head(causal, full)',
            {},
            'a sequence axis has no support for patterns that differ by head together with a tensor axis',
        ),
        (
            'causal',
            {'query_positions': np.arange(8)[None] * 2},
            'a sequence axis has no support for positions that do not rise by 1',
        ),
        ('full', {'backend': 'jax_nn'}, 'jax_nn has no log-sum-exp that can be merged'),
    ],
)
def test_what_cannot_be_split_is_refused(text: str, options: dict, line: str):
    inputs, mechanism = arrays(8, 8), parse_mechanism(text)
    options |= {'rng': jax.random.key(0)} if mechanism.randomness.always else {}
    with using_mesh(MESH), pytest.raises((ValueError, NotImplementedError), match=line):
        jax.eval_shape(
            lambda q, k, v: attend(q, q if mechanism.requirements.shared_qk else k, v, mechanism, **options), *inputs
        )


@pytest.mark.parametrize('queries, keys', [(8, 1), (1, 8), (7, 7)])
def test_sides_that_stay_whole(queries: int, keys: int):
    """Global tokens are such a case: few queries or few keys, which every device keeps whole."""
    inputs, mechanism = arrays(queries, keys), parse_mechanism('full')

    def both(*inputs: jax.Array) -> tuple:
        out, pull = jax.vjp(lambda *x: attend(*x, mechanism, backend='dense'), *inputs)
        return out, pull(out)

    assert_close(jax.jit(using_mesh(MESH)(both))(*inputs), jax.jit(both)(*inputs))
