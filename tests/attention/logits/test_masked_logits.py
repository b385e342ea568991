"""Tests attention in chunks of queries: dropout is equal to the bit for all queries at once, on one device or
several.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from efficient_attention.attention.attend import attend
from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.logits import query_chunks as logits_serve
from efficient_attention.attention.logits.query_chunks import compute_attention
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.models.sharding import make_mesh
from tests.attention.cells import inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close


def test_dropout_does_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch):
    arrays, extra = inputs(13, 'dropout segments')
    rng = extra.pop('rng')

    def run() -> jax.Array:
        return quick(
            lambda: compute_attention(make_request(*arrays, parse_mechanism('causal'), dropout_rng=rng, **extra))[0]
        )()

    expected = run()
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 4 * 2 * 4 * 13 * 3)
    assert_close(run(), expected)


@pytest.mark.parametrize('text', ['entmax(causal)', 'hard(causal, sampled=True)', 'local_p(3)'])
def test_rows_and_heads_may_lie_on_several_devices(text: str):
    """Outputs and gradients are those of one device, with additive scores, dropout and random draws."""
    mechanism, (arrays, extra) = parse_mechanism(text), inputs(13, 'dropout segments padding')
    extra |= (
        {'centres': jnp.asarray(np.random.default_rng(8).uniform(size=(2, 13, 4)), jnp.float32)}
        if mechanism.requirements.centres
        else {}
    )
    mesh = make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])

    def loss(additive: jax.Array, *arrays: jax.Array) -> jax.Array:
        return jnp.sin(attend(*arrays, mechanism, additive=additive, **extra)).sum()

    vector = np.random.default_rng(9).normal(size=(4, 8)).astype(np.float32)
    step = jax.value_and_grad(loss, (0, 1, 2, 3))
    lie = NamedSharding(mesh, PartitionSpec('data', None, 'tensor'))
    spread_arrays = [jax.device_put(x, lie) for x in arrays]
    found = quick(using_mesh(mesh)(step))(jax.device_put(vector, NamedSharding(mesh, PartitionSpec())), *spread_arrays)
    assert_close(jax.device_get(found), quick(step)(vector, *arrays), gradient=True)
