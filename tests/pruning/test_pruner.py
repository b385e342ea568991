"""Tests the way from parameters, scores and a step to masked parameters, and the gradients back."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from efficient_attention.config.prune import PruneConfig
from efficient_attention.pruning.pruner import LEAST, Pruner, flatten_by_path, make_pruner
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
        return {'kernel': rng.normal(size=shape).astype(np.float32), 'bias': np.ones((N, shape[-1]), np.float32)}

    attention = {name: kernel(N, D, D) for name in ('query', 'key', 'value', 'out')}
    layers = {'attention': attention, 'feed_forward': {'up': kernel(N, D, F), 'down': kernel(N, F, D)}}
    return {'encoder': {'stack': {'layers': layers}}, 'head': {'out': {'kernel': np.ones((D, 2), np.float32)}}}


def pruner_of(method: str, **fields: Any) -> Pruner:
    made = make_pruner(PruneConfig(method=method, **fields), make_params(), head_width=D // H, steps=100)
    assert made is not None
    return made


@pytest.mark.parametrize('attention, feed_forward, scope', WAYS, ids='-'.join)
@pytest.mark.parametrize('method', ['magnitude', 'movement', 'random'])
def test_the_share_is_kept_and_nothing_else_is_touched(method: str, attention: str, feed_forward: str, scope: str):
    block = {'block': 4} if 'block' in (attention, feed_forward) else {}
    pruner = pruner_of(method, attention=attention, feed_forward=feed_forward, scope=scope, keep=0.25, **block)

    @jax.jit
    def at_step(params: Any, step: jax.Array) -> tuple[Any, dict[str, jax.Array], dict[str, jax.Array]]:
        scores = pruner.initial_scores(jax.random.key(0))
        choice = pruner.choose_masks(params, scores, step)
        return pruner.pruned(params, scores, step), pruner.kept_share_per_kernel(params, scores, step), choice

    params = make_params()
    before, _, _ = at_step(params, np.int32(0))
    jax.tree.map(np.testing.assert_array_equal, before, params)
    after, kept, choice = jax.device_get(at_step(params, np.int32(80)))
    after, flat = flatten_by_path(after), flatten_by_path(params)
    for path, array in flat.items():
        is_left = after[path] != 0.0
        np.testing.assert_array_equal(after[path][is_left], array[is_left])
        zeros = 1.0 - float(is_left.mean())
        assert zeros == (pytest.approx(1.0 - float(kept[path].mean()), abs=1e-6) if path in kept else 0.0)
    if scope == 'matrix':
        for group in pruner.groups:  # The number of kept entries is exact, and at least one.
            assert (choice[group.path].reshape(N, -1).sum(axis=1) == max(group.entries // 4, 1)).all()
    if scope == 'global' and attention == 'weight':
        kernels = [flat[path] for path in kept]
        left = sum(int((after[path] != 0.0).sum()) for path in kept)
        assert left == sum(kernel.size for kernel in kernels) // 4


def pruned(pruner: Pruner, params: Any, scores: Any, step: int = 100) -> dict[str, np.ndarray]:
    """Returns the pruned parameters that a model computes with, by path."""
    return flatten_by_path(jax.device_get(jax.jit(pruner.pruned, static_argnums=2)(params, scores, step)))


def test_magnitude_keeps_the_largest_weights_of_each_layer():
    params = make_params()
    after = pruned(pruner_of('magnitude', keep=0.25), params, None)[UP]
    for layer, kernel in enumerate(flatten_by_path(params)[UP]):
        assert np.abs(kernel[after[layer] != 0]).min() > np.abs(kernel[after[layer] == 0]).max()
        assert (after[layer] != 0).sum() == D * F // 4


def test_a_global_share_is_of_all_layers_together():
    pruner, params = pruner_of('magnitude', keep=0.25, scope='global'), make_params()
    flatten_by_path(params)[UP][...] *= np.float32([100.0, 0.001])[:, None, None]
    kept = jax.jit(lambda params: pruner.kept_share_per_kernel(params, None, 100)[UP])(params)
    assert float(kept[0]) > 0.9 and float(kept[1]) == 0.0  # A layer may lose all of its weights.


def test_the_gradient_of_a_score_is_that_of_the_masked_weight_times_the_weight():
    pruner = pruner_of('movement', keep=0.5, attention='head', feed_forward='unit', keep_attention=0.5)
    params, factors = make_params(), make_params(1)

    def loss(params: Any, scores: Any) -> tuple[jax.Array, Any]:
        choice = pruner.choose_masks(params, scores, 100)
        masked = pruner.masked(params, scores, choice)
        products = jax.tree.map(lambda one, factor: (one * factor).sum(), masked, factors)
        return sum(jax.tree.leaves(products), jnp.float32(0)), choice

    @jax.jit
    def both(params: Any) -> tuple[Any, Any]:
        """Returns the gradients, and the expected gradients."""
        scores = pruner.initial_scores(jax.random.key(0))
        (to_params, to_scores), choice = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, scores)
        found, expected = (flatten_by_path(to_params), flatten_by_path(to_scores)), ({}, {})
        for group in pruner.groups:
            products = [
                member.sums_per_entry(flatten_by_path(params)[member.path] * flat_factors[member.path])
                for member in group.members
            ]
            expected[1][group.path] = sum(products[1:], products[0])
            for member in group.members:
                mask = jnp.broadcast_to(member.broadcast_entries(jnp.float32(choice[group.path])), member.shape)
                expected[0][member.path] = flat_factors[member.path] * mask
        return ({path: found[0][path] for path in expected[0]}, found[1]), expected

    flat_factors = flatten_by_path(factors)
    assert_close(*both(params))


def test_soft_movement_goes_by_the_threshold_and_keeps_a_few_at_least():
    pruner, params = pruner_of('soft_movement', penalty=2.0, threshold=0.4), make_params()
    scores = jax.device_get(pruner.initial_scores(jax.random.key(0)))
    assert all((one == 0.0).all() for one in jax.tree.leaves(scores))
    choice, penalty = jax.jit(pruner.choose_masks, static_argnums=2), jax.jit(pruner.penalty)
    scores = jax.tree.map(lambda one: np.linspace(-1.0, 1.0, one.size, dtype=np.float32).reshape(one.shape), scores)
    found = choice(params, scores, 100)
    sigmoids = jax.tree.map(lambda one: 1 / (1 + np.exp(-np.float64(one))), scores)
    for path, one in flatten_by_path(sigmoids).items():
        np.testing.assert_array_equal(found[path], one > 0.4)
    hopeless = jax.tree.map(lambda one: one - np.float32(50.0), scores)
    counts = {path: int(np.sum(mask)) for path, mask in choice(params, hopeless, 100).items()}
    assert set(counts.values()) == {N * max(round(LEAST * D * D), 1)}
    expected = np.mean([np.mean(one) for one in jax.tree.leaves(sigmoids)])
    assert_close(penalty(scores, np.int32(100)), np.float32(2.0 * expected))
    assert float(penalty(scores, np.int32(0))) == 0.0


@pytest.mark.parametrize('method, first', [('movement', 80), ('fixed', 0), ('l0', 100), ('soft_movement', 100)])
def test_what_is_left_of_a_penalty_is_settled_by_the_last_step_alone(method: str, first: int):
    fields = {'penalty': 1.0} if first == 100 else {}
    assert pruner_of(method, **fields).final_share_step == first


def test_l0_draws_in_training_alone():
    pruner, params = pruner_of('l0', penalty=1.0), make_params()
    scores = jax.device_get(pruner.initial_scores(jax.random.key(0)))
    draw = jax.jit(lambda key: pruner.choose_masks(params, scores, 5, key))
    first, second, again = (jax.device_get(draw(jax.random.key(seed))) for seed in (0, 1, 0))
    assert all((first[path] != second[path]).all() and (first[path] == again[path]).all() for path in first)
    evaluate = jax.jit(
        lambda scores: (
            flatten_by_path(pruner.pruned(params, scores, 5))[UP],
            pruner.kept_share_per_kernel(params, scores, 5),
        )
    )
    # 0.98 is 1.2 sigmoid(2.197) - 0.1.
    assert_close(evaluate(scores)[0], np.float32(0.98) * flatten_by_path(params)[UP])
    up, kept = evaluate(jax.tree.map(lambda one: one - np.float32(10.0), scores))
    assert not np.asarray(up).any()
    assert all(np.max(one) == 0.0 for one in kept.values())


def test_l0_multiplies_a_head_once():
    """Of the four kernels of a head, only one is scaled by its gate; the others are unchanged, or zero."""
    pruner = pruner_of('l0', penalty=1.0, attention='head', feed_forward='none')
    params, scores = make_params(), pruner.initial_scores(jax.random.key(0))
    half = jax.tree.map(np.zeros_like, scores)  # Scores of 0 give gates of 0.5 in an evaluation.
    after, before = pruned(pruner, params, half, 5), flatten_by_path(params)
    changed = [path for path, one in after.items() if (one != before[path]).any()]
    # This kernel is linear in the head's output, including the bias.
    assert changed == ['encoder/stack/layers/attention/out/kernel']
    assert_close(after[changed[0]], np.float32(0.5) * before[changed[0]])


def test_a_fixed_mask_is_the_zeros_of_other_parameters():
    pruner, params = pruner_of('fixed', mask_from='a'), make_params()
    sparse = pruned(pruner_of('magnitude', keep=0.25), make_params(1), None)
    scores = jax.jit(pruner.fixed_scores)(unflatten_dict(sparse, sep='/'))
    found = pruned(pruner, params, scores, 0)
    for path, one in sparse.items():
        np.testing.assert_array_equal(found[path] == 0.0, one == 0.0)


def test_without_a_method_nothing_is_pruned():
    assert make_pruner(PruneConfig(), make_params(), head_width=D // H, steps=10) is None
