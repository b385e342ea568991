"""A table that lies over a mesh gives the vectors of one that does not."""

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.modules.table import Table
from tests.tolerances import assert_close

MESH = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), ('data', 'fsdp', 'tensor'))
NUMBERS = np.arange(24, dtype=np.int32).reshape(8, 3) % 10


def test_vectors_and_their_gradient_are_those_of_one_device():
    graph, state = nnx.split(Table(10, 4, axes='VE', rngs=nnx.Rngs(0)))

    def loss(state: nnx.State) -> jax.Array:
        table = nnx.merge(graph, state)
        return (table(NUMBERS) ** 2).sum() + (table.vectors(np.float32)[3] * 2.0).sum()

    one = jax.jit(jax.value_and_grad(loss))(state)
    spread = jax.jit(using_mesh(MESH)(jax.value_and_grad(loss)))(state)
    assert_close(spread, one, gradient=True)
    gradient = jax.tree.leaves(spread[1])[0]
    assert {shard.data.shape for shard in gradient.addressable_shards} == {(5, 2)}
