"""Tests meshes, the sharding rules for parameter names, and the layout of batches."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from efficient_attention.attention.device_mesh import PARAMETERS, partition
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import (
    carry_sharding,
    check_divisible,
    check_hosts,
    make_mesh,
    partition_spec,
    path_name,
    state_shardings,
    to_devices,
)
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.embedding_table import EmbeddingTable
from efficient_attention.training.state import initial_state

MESH = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


@pytest.fixture(scope='module')
def abstract_state():
    config = ModelConfig(width=16, heads=2, vocab_size=24, layers=3, max_length=8, embedding_width=8)

    def make():
        model = PretrainingModel(config, has_pairs=True, rngs=nnx.Rngs(0))
        return initial_state(nnx.to_pure_dict(nnx.state(model)), optax.adam(1e-3), seed=0)

    return jax.eval_shape(make)


def test_data_takes_the_devices_that_the_others_leave():
    assert dict(make_mesh(MeshConfig()).shape) == {'data': 8, 'fsdp': 1, 'tensor': 1}
    assert dict(make_mesh(MeshConfig(fsdp=2, tensor=2)).shape) == {'data': 2, 'fsdp': 2, 'tensor': 2}
    assert dict(make_mesh(MeshConfig(), jax.devices()[:3]).shape) == {'data': 3, 'fsdp': 1, 'tensor': 1}


@pytest.mark.parametrize(
    'config, message',
    [
        (MeshConfig(data=3), 'mesh.data 3 x mesh.fsdp 1 x mesh.tensor 1 = 3 devices, but there are 8'),
        (MeshConfig(fsdp=3), 'mesh.data 2 x mesh.fsdp 3 x mesh.tensor 1 = 6 devices, but there are 8'),
        (MeshConfig(tensor=16), 'mesh.data 1 x mesh.fsdp 1 x mesh.tensor 16 = 16 devices'),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(config: MeshConfig, message: str):
    with pytest.raises(InputError, match=message):
        make_mesh(config)


def test_a_mesh_has_a_sequence_axis_where_tokens_are_spread():
    config = MeshConfig(fsdp=2, tensor=2, sequence=2)
    assert dict(make_mesh(config).shape) == {'data': 1, 'fsdp': 2, 'sequence': 2, 'tensor': 2}
    line = 'mesh.data 1 x mesh.fsdp 1 x mesh.sequence 3 x mesh.tensor 1 = 3 devices, but there are 8'
    with pytest.raises(InputError, match=line):
        make_mesh(MeshConfig(data=1, sequence=3))


def test_what_rows_carry_is_spread_as_its_name_says():
    mesh = make_mesh(MeshConfig(sequence=2))
    shapes = {'states_BNMD': (8, 3, 6, 16), 'segments_BM': (8, 6), 'odd_BM': (8, 7), 'totals': (8,)}
    specs = {name: carry_sharding(f'carry/{name}', shape, mesh).spec for name, shape in shapes.items()}
    rows = ('data', 'fsdp')
    assert specs['states_BNMD'] == PartitionSpec(rows, None, 'sequence', None)
    assert specs['segments_BM'] == PartitionSpec(rows, 'sequence')
    assert specs['odd_BM'] == PartitionSpec(rows, None)
    assert specs['totals'] == carry_sharding('carry/segments_BM', (8, 6), MESH).spec == PartitionSpec(rows)


def test_rows_must_divide_over_devices_and_micro_batches():
    check_divisible(MESH, batch_size=8, micro_batches=2, heads=2)
    with pytest.raises(InputError, match='eval.batch_size 6 does not divide over 4 devices .* x 1 micro-batches'):
        check_divisible(MESH, batch_size=6, micro_batches=1, heads=2, field='eval.batch_size')
    with pytest.raises(InputError, match='train.batch_size 4 does not divide over 4 devices .* x 2 micro-batches'):
        check_divisible(MESH, batch_size=4, micro_batches=2, heads=2)
    with pytest.raises(InputError, match='model.heads 3 does not divide over mesh.tensor 2'):
        check_divisible(MESH, batch_size=4, micro_batches=1, heads=3)


CONFIGS = {
    'encoder': ModelConfig(
        width=16,
        heads=2,
        vocab_size=24,
        layers=2,
        max_length=8,
        embedding_width=8,
        global_tokens=2,
        feed_forward_gate=True,
    ),
    'decoder': ModelConfig(
        width=16,
        heads=2,
        vocab_size=24,
        norm='pre',
        token_types=0,
        attention='causal',
        relative='transformer_xl',
        positions='none',
        adaptive_cutoffs=(8, 16),
        adaptive_divisor=2,
        tied_output=False,
    ),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_modules_gather_their_parameters_by_the_letters_of_the_rules(name: str):
    """A module knows its dimension letters, but not its name in the model; the state is sharded by names."""
    config = CONFIGS[name]

    def make():
        make_model = functools.partial(PretrainingModel, has_pairs=True) if name == 'encoder' else Decoder
        return make_model(config, rngs=nnx.Rngs(0))

    found = 0
    for path, module in nnx.iter_graph(nnx.eval_shape(make)):
        if isinstance(module, Dense | EmbeddingTable):
            array = 'kernel' if isinstance(module, Dense) else 'embedding'
            full = '/'.join(map(str, (*path, array)))
            shape = getattr(module, array).shape
            assert partition_spec(full, shape, MESH) == partition(module.axes, shape, MESH, PARAMETERS), full
            found += 1
    assert found > 8


@pytest.mark.parametrize(
    'name, shape, spec',
    [
        ('params/encoder/stack/layers/feed_forward/up/kernel', (3, 16, 64), (None, 'fsdp', 'tensor')),
        ('opt_state/0/mu/encoder/stack/layers/feed_forward/up/kernel', (3, 16, 64), (None, 'fsdp', 'tensor')),
        ('params/encoder/stack/layers/feed_forward/up/bias', (3, 64), (None, 'tensor')),
        ('params/encoder/stack/layers/feed_forward/down/kernel', (64, 16), ('tensor', 'fsdp')),
        ('params/encoder/stack/layers/feed_forward/down/bias', (3, 16), (None, None)),
        ('params/encoder/embeddings/token/embedding', (24, 8), ('tensor', 'fsdp')),
        ('params/encoder/embeddings/position/embedding', (8, 8), (None, 'fsdp')),
        ('params/masked_lm/bias', (24,), ('tensor',)),
        ('params/masked_lm/transform/kernel', (16, 8), ('fsdp', None)),
        ('params/encoder/embeddings/norm/scale', (8,), (None,)),
        ('step', (), ()),
    ],
)
def test_rules(name: str, shape: tuple[int, ...], spec: tuple):
    assert partition_spec(name, shape, MESH) == PartitionSpec(*spec)


def test_a_dimension_that_does_not_divide_stays_whole_and_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        assert partition_spec('a/up/kernel', (16, 63), MESH) == PartitionSpec('fsdp', None)
    assert 'a/up/kernel: dimension 1 of (16, 63) stays whole, mesh.tensor does not divide it' in caplog.text


def test_every_kernel_and_table_is_split_and_its_moments_like_itself(abstract_state):
    shardings = state_shardings(abstract_state, MESH)
    specs = {path_name(path): leaf.spec for path, leaf in jax.tree_util.tree_leaves_with_path(shardings)}
    parameters = {name.removeprefix('params/'): spec for name, spec in specs.items() if name.startswith('params/')}
    whole = [name for name, spec in parameters.items() if set(spec) <= {None}]
    assert not [name for name in whole if name.endswith(('kernel', 'embedding')) and 'pair/' not in name]
    for name, spec in parameters.items():
        assert specs[f'opt_state/0/mu/{name}'] == specs[f'opt_state/0/nu/{name}'] == spec


def test_each_device_holds_a_fourth_of_the_large_parameters(abstract_state):
    up = abstract_state.params['encoder']['stack']['layers']['feed_forward']['up']['kernel']
    sharding = state_shardings({'up': {'kernel': up}}, MESH)['up']['kernel']
    array = jax.device_put(jnp.zeros(up.shape), sharding)
    assert [shard.data.size for shard in array.addressable_shards] == [up.size // 4] * 8


def test_rows_of_a_batch_lie_in_order_over_data_and_fsdp():
    batch = to_devices({'tokens': np.arange(16).reshape(8, 2), 'labels': np.arange(8)}, MESH)
    np.testing.assert_array_equal(batch['tokens'], np.arange(16).reshape(8, 2))
    rows = [shard.data.ravel().tolist() for shard in batch['labels'].addressable_shards]
    assert rows == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]


def test_path_names_know_dicts_dataclasses_and_tuples(abstract_state):
    names = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(abstract_state)}
    assert {'step', 'key', 'opt_state/0/count', 'params/masked_lm/bias'} <= names


@pytest.mark.parametrize('owners', [[[0], [0], [1], [1]], [[0, 0], [1, 1]], [[0, 0]], [[0, 0, 0, 0]]])
def test_each_process_feeds_blocks_of_its_own(owners: list):
    check_hosts(np.asarray(owners))


@pytest.mark.parametrize('owners', [[[0, 1]], [[0, 0], [0, 1]], [[0], [0], [1]]])
def test_a_block_on_two_processes_or_unequal_shares_are_refused(owners: list):
    with pytest.raises(InputError, match='the tensor axis must stay within a process'):
        check_hosts(np.asarray(owners))
