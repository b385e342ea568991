"""From parameters, scores and a step to masked parameters; the gradients that flow back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.prune import PruneConfig
from efficient_attention.pruning.pruner import LEAST, Pruner, by_path, make_pruner
from tests.tolerances import assert_close

N, D, F, H = 2, 8, 16, 2
UP = 'encoder/stack/layers/feed_forward/up/kernel'
WAYS = [
    ('weight', 'weight', 'matrix'),
    ('block', 'unit', 'matrix'),
    ('head', 'unit', 'global'),
    ('weight', 'weight', 'global'),
]


def make_params(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def kernel(*shape: int) -> dict[str, Any]:
        return {'kernel': jnp.asarray(rng.normal(size=shape), jnp.float32), 'bias': jnp.ones((N, shape[-1]))}

    attention = {name: kernel(N, D, D) for name in ('query', 'key', 'value', 'out')}
    layers = {'attention': attention, 'feed_forward': {'up': kernel(N, D, F), 'down': kernel(N, F, D)}}
    return {'encoder': {'stack': {'layers': layers}}, 'head': {'out': {'kernel': jnp.ones((D, 2))}}}


def pruner_of(method: str, **fields: Any) -> Pruner:
    made = make_pruner(PruneConfig(method=method, **fields), make_params(), head_width=D // H, steps=100)
    assert made is not None
    return made


@pytest.mark.parametrize('attention, feed_forward, scope', WAYS, ids='-'.join)
@pytest.mark.parametrize('method', ['magnitude', 'movement', 'random'])
def test_the_share_is_kept_and_nothing_else_is_touched(method: str, attention: str, feed_forward: str, scope: str):
    block = {'block': 4} if 'block' in (attention, feed_forward) else {}
    pruner = pruner_of(method, attention=attention, feed_forward=feed_forward, scope=scope, keep=0.25, **block)
    params, scores = make_params(), pruner.initial_scores(jax.random.key(0))
    masked = jax.jit(pruner.pruned)
    before = masked(params, scores, 0)
    jax.tree.map(np.testing.assert_array_equal, before, params)
    after, flat = by_path(masked(params, scores, 80)), by_path(params)
    kept = pruner.kept(params, scores, 80)
    zeros = {path: float((array == 0.0).mean()) for path, array in after.items()}
    for path, array in flat.items():
        np.testing.assert_array_equal(
            np.asarray(after[path])[np.asarray(after[path]) != 0.0], array[after[path] != 0.0]
        )
        assert zeros[path] == (pytest.approx(1.0 - float(kept[path].mean()), abs=1e-6) if path in kept else 0.0)
    for group in pruner.groups:  # exactly so many, at least one
        mask = pruner.choice(params, scores, 80)[group.path]
        if scope == 'matrix':
            assert (mask.reshape(N, -1).sum(axis=1) == max(group.entries // 4, 1)).all()
    if scope == 'global' and attention == 'weight':
        kernels = [flat[path] for path in kept]
        left = sum(int((after[path] != 0.0).sum()) for path in kept)
        assert left == sum(kernel.size for kernel in kernels) // 4


def test_magnitude_keeps_the_largest_weights_of_each_layer():
    pruner, params = pruner_of('magnitude', keep=0.25), make_params()
    after = np.asarray(by_path(pruner.pruned(params, None, 100))[UP])
    for layer, kernel in enumerate(np.asarray(by_path(params)[UP])):
        assert np.abs(kernel[after[layer] != 0]).min() > np.abs(kernel[after[layer] == 0]).max()
        assert (after[layer] != 0).sum() == D * F // 4


def test_a_global_share_is_of_all_layers_together():
    pruner, params = pruner_of('magnitude', keep=0.25, scope='global'), make_params()
    params['encoder']['stack']['layers']['feed_forward']['up']['kernel'] *= jnp.array([100.0, 0.001])[:, None, None]
    kept = pruner.kept(params, None, 100)[UP]
    assert float(kept[0]) > 0.9 and float(kept[1]) == 0.0  # none of a layer's may be left


def test_the_gradient_of_a_score_is_that_of_the_masked_weight_times_the_weight():
    pruner = pruner_of('movement', keep=0.5, attention='head', feed_forward='unit', keep_attention=0.5)
    params, factors = make_params(), make_params(1)
    scores = pruner.initial_scores(jax.random.key(0))
    choice = pruner.choice(params, scores, 100)

    def loss(params: Any, scores: Any) -> jax.Array:
        masked = pruner.masked(params, scores, choice)
        return sum(
            jax.tree.leaves(jax.tree.map(lambda one, factor: (one * factor).sum(), masked, factors)), jnp.float32(0)
        )

    to_params, to_scores = jax.grad(loss, argnums=(0, 1))(params, scores)
    flat, flat_factors, found = by_path(params), by_path(factors), by_path(to_scores)
    for group in pruner.groups:
        products = [member.sums(flat[member.path] * flat_factors[member.path]) for member in group.members]
        assert_close(found[group.path], sum(products[1:], products[0]))
        for member in group.members:
            mask = jnp.broadcast_to(member.spread(jnp.float32(choice[group.path])), member.shape)
            assert_close(by_path(to_params)[member.path], flat_factors[member.path] * mask)


def test_soft_movement_goes_by_the_threshold_and_keeps_a_few_at_least():
    pruner, params = pruner_of('soft_movement', penalty=2.0, threshold=0.4), make_params()
    scores = pruner.initial_scores(jax.random.key(0))
    assert all((one == 0.0).all() for one in jax.tree.leaves(scores))
    scores = jax.tree.map(lambda one: jnp.linspace(-1.0, 1.0, one.size).reshape(one.shape), scores)
    found = pruner.choice(params, scores, 100)
    for path, one in by_path(scores).items():
        np.testing.assert_array_equal(found[path], jax.nn.sigmoid(one) > 0.4)
    hopeless = jax.tree.map(lambda one: one - 50.0, scores)
    counts = {path: int(mask.sum()) for path, mask in pruner.choice(params, hopeless, 100).items()}
    assert set(counts.values()) == {N * max(round(LEAST * D * D), 1)}
    expected = np.mean([np.mean(jax.nn.sigmoid(one)) for one in jax.tree.leaves(scores)])
    assert_close(pruner.penalty(scores, 100), np.float32(2.0 * expected))
    assert float(pruner.penalty(scores, 0)) == 0.0


@pytest.mark.parametrize('method, first', [('movement', 80), ('fixed', 0), ('l0', 100), ('soft_movement', 100)])
def test_what_is_left_of_a_penalty_is_settled_by_the_last_step_alone(method: str, first: int):
    fields = {'penalty': 1.0} if first == 100 else {}
    assert pruner_of(method, **fields).settled_step == first


def test_l0_draws_in_training_alone():
    pruner, params = pruner_of('l0', penalty=1.0), make_params()
    scores = pruner.initial_scores(jax.random.key(0))
    first, second, again = (pruner.choice(params, scores, 5, jax.random.key(seed)) for seed in (0, 1, 0))
    assert all((first[path] != second[path]).all() and (first[path] == again[path]).all() for path in first)
    assert_close(by_path(pruner.pruned(params, scores, 5))[UP], 0.98 * by_path(params)[UP])  # 1.2 sigmoid(2.197) - 0.1
    closed = jax.tree.map(lambda one: one - 10.0, scores)
    assert not np.asarray(by_path(pruner.pruned(params, closed, 5))[UP]).any()
    kept = pruner.kept(params, closed, 5)
    assert all(float(one.max()) == 0.0 for one in kept.values())


def test_l0_multiplies_a_head_once():
    """Of the four kernels of a head one is scaled by its gate; the others are as they are, or zero."""
    pruner = pruner_of('l0', penalty=1.0, attention='head', feed_forward='none')
    params, scores = make_params(), pruner.initial_scores(jax.random.key(0))
    half = jax.tree.map(jnp.zeros_like, scores)  # gates of an evaluation: 0.5
    changed = [
        path for path, one in by_path(pruner.pruned(params, half, 5)).items() if (one != by_path(params)[path]).any()
    ]
    assert changed == ['encoder/stack/layers/attention/out/kernel']  # linear in what the head gives, its bias too
    assert_close(by_path(pruner.pruned(params, half, 5))[changed[0]], 0.5 * by_path(params)[changed[0]])


def test_a_fixed_mask_is_the_zeros_of_other_parameters():
    pruner, params = pruner_of('fixed', mask_from='a'), make_params()
    sparse = pruner_of('magnitude', keep=0.25).pruned(make_params(1), None, 100)
    scores = pruner.fixed_scores(sparse)
    found = by_path(pruner.pruned(params, scores, 0))
    for path, one in by_path(sparse).items():
        np.testing.assert_array_equal(found[path] == 0.0, one == 0.0)


def test_without_a_method_nothing_is_pruned():
    assert make_pruner(PruneConfig(), make_params(), head_width=D // H, steps=10) is None
