"""Tests of low-rank kernels: with all energy the outputs stay the same, and a share of energy sets the ranks."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.interop.compact_export import quantize, save_compact
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.low_rank import low_rank, ranks_for_energy
from efficient_attention.interop.low_rank_factors import multiply_factors
from efficient_attention.interop.padded_layers import pad_layers, padded_config
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.interop.shrink import parameter_count, shrink
from efficient_attention.models.sharding import path_name
from tests.interop.folders import TEXT_TO_TEXT
from tests.interop.test_shrink import drawn, logits, masked

WIDE = {'width': 32, 'feed_forward_width': 128, 'vocab_size': 100}


def test_all_ranks_are_the_original(tmp_path: Path):
    whole = drawn(WIDE | {'width': 16, 'feed_forward_width': 64})
    kernels = whole.params()['encoder']['stack']['layers']['feed_forward']
    for name, rank in (('up', 4), ('down', 9)):  # The kernels get exactly these ranks, so no energy is lost.
        left, values, right = np.linalg.svd(kernels[name]['kernel'], full_matrices=False)
        kernels[name]['kernel'] = np.float32((left[..., :rank] * values[..., None, :rank]) @ right[..., :rank, :])
    params = whole.params() | {'encoder': whole.params()['encoder']}
    params['encoder']['stack']['layers']['feed_forward'] = kernels
    whole = type(whole)(**vars(whole) | {'params': lambda: params})
    assert ranks_for_energy(params['encoder'], 0.9999999)['up'] == 4
    small = low_rank(whole, ranks=('up=4', 'down=9'))
    np.testing.assert_allclose(logits(small), logits(whole), atol=1e-5)
    for save, name in ((save_pretrained, 'exported'), (save_compact, 'small')):
        save(tmp_path / name, small)
        back = open_pretrained(tmp_path / name)
        assert back.model.ranks == small.model.ranks
        np.testing.assert_allclose(logits(back), logits(whole), atol=1e-5)
        assert parameter_count(back.params()) == parameter_count(small.params()) < parameter_count(params)


def test_weights_decide_of_which_rows_least_is_lost():
    whole = drawn(WIDE)
    up = whole.params()['encoder']['stack']['layers']['feed_forward']['up']['kernel']
    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda leaf: rng.exponential(size=leaf.shape[:-1]) ** 4, whole.params())
    rows = weights['encoder']['stack']['layers']['feed_forward']['up']['kernel'][..., None]

    def lost(pretrained: Pretrained) -> float:
        found = multiply_factors(pretrained.params())['encoder']['stack']['layers']['feed_forward']['up']['kernel']
        return float((rows * (found - up) ** 2).sum())

    plain, weighted = low_rank(whole, ranks=('up=6',)), low_rank(whole, ranks=('up=6',), weights=weights)
    assert lost(weighted) < 0.6 * lost(plain)
    scale = np.sqrt(rows / rows.mean(-2, keepdims=True) + 0.01)
    left, values, right = np.linalg.svd(scale * up, full_matrices=False)
    best = ((left[..., :6] * values[..., None, :6]) @ right[..., :6, :]) / scale
    found = multiply_factors(weighted.params())['encoder']['stack']['layers']['feed_forward']['up']['kernel']
    np.testing.assert_allclose(found, best, atol=1e-5)
    assert low_rank(whole, share=0.5, weights=weights).model.ranks == low_rank(whole, share=0.5).model.ranks


def test_ranks_at_which_shrunk_layers_stay_whole_are_not_kept():
    small = shrink(masked(drawn({'vocab_size': 200})))
    made = low_rank(small, share=0.9)
    kinds = {entry.partition('=')[0] for entry in made.model.ranks}
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(made.params())]
    assert kinds == {'token', *(path.split('/')[-3] for path in paths if '/left/' in path)}
    with pytest.raises(InputError, match='--ranks query=8: no matrix of this kind has fewer numbers as a product'):
        low_rank(small, ranks=('token=6', 'query=8'))


def test_a_share_gives_each_kind_the_least_rank_that_keeps_it_everywhere():
    whole = drawn(WIDE)
    small = low_rank(whole, share=0.5)
    ranks = dict(entry.split('=') for entry in small.model.ranks)
    assert set(ranks) >= {'up', 'down', 'token'}
    for matrix in whole.params()['encoder']['stack']['layers']['feed_forward']['up']['kernel']:
        energy = np.cumsum(np.linalg.svd(matrix, compute_uv=False) ** 2)
        assert energy[int(ranks['up']) - 1] >= 0.5 * energy[-1]
    layers = small.params()['encoder']['stack']['layers']['feed_forward']['up']
    assert layers['left']['kernel'].shape == (3, 32, int(ranks['up'])) and layers['right']['bias'].shape == (3, 128)


def test_shrunk_taken_apart_and_rounded_together(tmp_path: Path):
    whole = masked(drawn({'vocab_size': 200}))
    made = quantize(low_rank(shrink(whole), ranks=('token=6', 'up=3')), 'int8')
    save_compact(tmp_path / 'small', made)
    back = open_pretrained(tmp_path / 'small')
    assert back.model == made.model and back.model.layer_heads == (2, 0, 4)
    found = jax.tree.map(np.shape, back.params())
    assert found == jax.tree.map(np.shape, made.params())
    up = found['encoder']['stack']['stretches']
    assert set(up[0]['layers']['feed_forward']['up']) == {'left', 'right'}


def test_a_layer_with_few_units_left_stays_whole():
    whole = masked(drawn(WIDE))
    kernels = whole.params()['encoder']['stack']['layers']['feed_forward']
    kernels['down']['kernel'][2, 3:] = 0.0
    small = low_rank(shrink(whole), ranks=('up=10', 'down=10'))
    assert small.model.layer_units[2] == 3
    multiplied = pad_layers(small.model, multiply_factors(small.params()))
    even_model = dataclasses.replace(small, model=padded_config(small.model), params=lambda: multiplied)
    np.testing.assert_allclose(logits(small), logits(even_model), atol=1e-5)
    last = small.params()['encoder']['stack']['stretches'][2]['layers']['feed_forward']
    assert set(last['up']) == {'kernel', 'bias'}


def test_an_encoder_decoder_is_not_taken_apart():
    with pytest.raises(InputError, match='the kernels of an encoder-decoder cannot be factored'):
        low_rank(open_pretrained(TEXT_TO_TEXT / 'bart_1'), ranks=('up=2',))


@pytest.mark.parametrize(
    'options, message',
    [
        (
            {'share': 1.5},
            r'the share of squared singular values that is kept \(--low_rank\) is 1.5; it must be above 0 and below 1',
        ),
        ({'share': 0.999999}, 'no matrix has fewer numbers as a product of two'),
        ({'ranks': ('up=40',)}, 'it must be at most 32 of up, its smaller side'),
        ({'ranks': ()}, 'no matrix has fewer numbers as a product of two'),
    ],
)
def test_what_saves_nothing_is_one_line(options: dict, message: str):
    with pytest.raises(InputError, match=message):
        low_rank(drawn(WIDE), **options)
    with pytest.raises(InputError, match='its kernels are factored already'):
        low_rank(low_rank(drawn(WIDE), ranks=('up=4',)), share=0.5)
