"""Tests groups of weights that are kept or removed as one: which numbers of which kernels belong to an entry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.prune import PruneConfig
from efficient_attention.errors import InputError
from efficient_attention.models.encoder import Encoder
from efficient_attention.pruning.groups import PruningGroup, find_groups

SIZES = {'vocab_size': 11, 'width': 8, 'heads': 2, 'layers': 3, 'feed_forward_width': 12, 'max_length': 4}


def groups_of(attention: str, feed_forward: str, block: int = 32, **fields: object) -> dict[str, PruningGroup]:
    model = ModelConfig(**(SIZES | fields))
    shapes = jax.eval_shape(lambda: nnx.to_pure_dict(nnx.state(Encoder(model, rngs=nnx.Rngs(0)))))
    config = PruneConfig(method='magnitude', attention=attention, feed_forward=feed_forward, block=block)
    return {group.path: group for group in find_groups(shapes, config, model.head_width)}


def test_each_kernel_of_the_layers_is_a_group_of_weights():
    groups = groups_of('weight', 'weight')
    assert {path.split('/')[-2] for path in groups} == {'query', 'key', 'value', 'out', 'up', 'down'}
    query = groups['stack/layers/attention/query/kernel']
    assert query.shape == (3, 8, 8) and query.entries == 64 and query.weights_per_entry == 1 and query.is_stacked
    assert set(groups_of('none', 'weight')) == {path for path in groups if 'feed_forward' in path}


def test_layers_that_share_their_kernels_have_one_set_of_entries():
    groups = groups_of('head', 'unit', sharing='all')
    assert groups['stack/layers/attention/heads'].shape == (2,)
    assert groups['stack/layers/feed_forward/units'].shape == (12,)
    assert not groups['stack/layers/feed_forward/units'].is_stacked


@pytest.mark.parametrize(
    'attention, feed_forward, path, count',
    [
        ('head', 'none', 'stack/layers/attention/heads', 4 * 8 * 4),
        ('none', 'unit', 'stack/layers/feed_forward/units', 2 * 8),
        ('block', 'none', 'stack/layers/attention/query/kernel', 4 * 4),
        ('none', 'weight', 'stack/layers/feed_forward/up/kernel', 1),
    ],
)
def test_an_entry_spreads_over_what_is_its_own(attention: str, feed_forward: str, path: str, count: int):
    group = groups_of(attention, feed_forward, block=4)[path] if 'block' in attention else None
    group = group or groups_of(attention, feed_forward)[path]
    assert group.weights_per_entry == count
    entries = np.zeros(group.shape, np.float32)
    place = tuple(size // 2 for size in group.shape)
    entries[place] = 1.0
    total = 0
    for member in group.members:
        kernel = np.broadcast_to(member.broadcast_entries(jnp.asarray(entries)), member.shape)
        total += int(kernel.sum())
        assert not kernel[:1].any() and kernel[1].any()  # Only the kernel of the middle layer changes.
        np.testing.assert_array_equal(member.sums_per_entry(jnp.asarray(kernel)) > 0, entries > 0)
    assert total == count


def test_a_gated_unit_has_a_column_of_both_kernels():
    group = groups_of('none', 'unit', feed_forward_gate=True)['stack/layers/feed_forward/units']
    assert [member.path.split('/')[-2] for member in group.members] == [
        'down',
        'gate',
        'up',
    ] and group.weights_per_entry == 24


def test_what_cannot_be_pruned_is_one_line():
    with pytest.raises(
        InputError, match=r'prune.block is 5, which does not divide stack/layers/attention/key/kernel of'
    ):
        groups_of('block', 'none', block=5)
    with pytest.raises(InputError, match='no layer of the model has kernels for prune.attention'):
        groups_of('head', 'none', cell='gru', heads=2, attention_dropout_rate=0.1)
