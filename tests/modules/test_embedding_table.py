"""Tests that an embedding table spread over a mesh gives the vectors of a table on one device."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.attention.device_mesh import shard_activations, using_mesh
from efficient_attention.modules.embedding_table import EmbeddingTable, table_logits
from tests.collectives import sent
from tests.tolerances import assert_close

MESH = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), ('data', 'fsdp', 'tensor'))
NUMBERS = np.arange(24, dtype=np.int32).reshape(8, 3) % 10


def words(width: int) -> EmbeddingTable:
    table = EmbeddingTable(10, width, rngs=nnx.Rngs(0))
    table.axes = 'VE'
    return table


def test_vectors_and_their_gradient_are_those_of_one_device():
    graph, state = nnx.split(words(4))

    def loss(state: nnx.State) -> jax.Array:
        table = nnx.merge(graph, state)
        return (table(NUMBERS) ** 2).sum() + (table.table_vectors(np.float32)[3] * 2.0).sum()

    one = jax.jit(jax.value_and_grad(loss))(state)
    on_mesh = jax.jit(using_mesh(MESH)(jax.value_and_grad(loss)))(state)
    assert_close(on_mesh, one, gradient=True)
    gradient = jax.tree.leaves(on_mesh[1])[0]
    assert {shard.data.shape for shard in gradient.addressable_shards} == {(5, 2)}


def test_a_width_that_does_not_divide_is_looked_up_without_gathering_the_vectors_of_all_rows():
    graph, state = nnx.split(words(3))

    def loss(state: nnx.State, numbers: jax.Array) -> jax.Array:
        return (shard_activations(nnx.merge(graph, state)(numbers), 'BLE') ** 2).sum()

    rows = jax.device_put(NUMBERS, NamedSharding(MESH, PartitionSpec(('data', 'fsdp'))))
    program = jax.jit(using_mesh(MESH)(jax.value_and_grad(loss))).lower(state, rows).compile()
    assert_close(program(state, rows), jax.jit(jax.value_and_grad(loss))(state, NUMBERS), gradient=True)
    assert sent(program.as_text(), MESH, 'all-gather') == []


def test_the_gradient_of_words_that_tensor_splits_lies_like_their_table():
    mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 1, 2), ('data', 'fsdp', 'tensor'))
    graph, state = nnx.split(words(4))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec('tensor')))
    gradient = jax.jit(using_mesh(mesh)(jax.grad(lambda state: (nnx.merge(graph, state)(NUMBERS) ** 2).sum())))(state)
    assert {shard.data.shape for shard in jax.tree.leaves(gradient)[0].addressable_shards} == {(5, 4)}


def test_logits_of_tokens_that_are_spread_over_devices_gather_neither_vectors_nor_gradients():
    mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ('data', 'sequence'))
    x_BLE = jnp.cos(jnp.arange(2 * 6 * 4.0)).reshape(2, 6, 4)
    table_VE = jnp.sin(jnp.arange(10 * 4.0)).reshape(10, 4)

    def both(x_BLE: jax.Array, table_VE: jax.Array) -> tuple:
        logits_BLV, pull = jax.vjp(table_logits, x_BLE, table_VE)
        return logits_BLV, pull(jnp.square(logits_BLV))

    rows = NamedSharding(mesh, PartitionSpec('data', 'sequence')), NamedSharding(mesh, PartitionSpec())
    arguments = jax.device_put((x_BLE, table_VE), rows)
    program = jax.jit(using_mesh(mesh)(both)).lower(*arguments).compile()
    assert_close(program(*arguments), jax.jit(both)(x_BLE, table_VE), gradient=True)
    # Only the gradient of the table is summed over devices.
    found = {shape.sizes for one in sent(program.as_text(), mesh) for shape in one.results}
    assert found == {(10, 4)}
