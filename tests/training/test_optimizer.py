"""Tests update rules against the papers' formulas in NumPy, step by step in float64."""

import dataclasses
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.models.sharding import path_name
from efficient_attention.training.optimizer import (
    STACKED_LAYERS,
    check_frozen,
    exclude_pruning_scores,
    make_optimizer,
    weight_decay_mask,
)
from efficient_attention.training.schedules import make_schedule
from efficient_attention.training.step_extensions import FrozenParams
from tests.tolerances import assert_close

CONFIG = OptimizerConfig(learning_rate=0.1, warmup_steps=2, schedule='linear', weight_decay=0.1, clip_norm=1.0)
FLAT = dataclasses.replace(CONFIG, schedule='constant', warmup_steps=0, weight_decay=0.0, clip_norm=0.0)
OPTAX_ADAM = pytest.mark.lenient_promotion  # optax's bias correction raises Python floats to int32 counts
STEPS = 5
LAYERS = 3


def make_params(seed: int = 0) -> dict:
    draw = np.random.default_rng(seed).standard_normal
    return {
        'embeddings': {'token': {'embedding': draw((7, 4))}},
        'layers': {
            'attention': {'kernel': draw((LAYERS, 4, 4)), 'bias': draw((LAYERS, 4))},
            'attention_norm': {'scale': draw((LAYERS, 4)), 'bias': draw((LAYERS, 4))},
        },
    }


def in_float32(tree: dict) -> dict:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)


def run(config: OptimizerConfig, params: dict, gradients: list[dict], stacked: str | None = None) -> tuple[dict, tuple]:
    optimizer = make_optimizer(config, STEPS, stacked=stacked)

    @jax.jit
    def step(params: dict, state: tuple, gradient: dict) -> tuple[dict, tuple]:
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = in_float32(params)
    state = jax.jit(optimizer.init)(params)
    for gradient in gradients:
        params, state = step(params, state, in_float32(gradient))
    return params, state


def first_update(optimizer: optax.GradientTransformation, params: dict, gradients: dict) -> tuple[dict, tuple]:
    """Returns the first updates and the state after them, computed by one program."""
    update = jax.jit(lambda params, gradients: optimizer.update(gradients, optimizer.init(params), params))
    return update(params, gradients)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def named(tree: dict) -> dict[str, np.ndarray]:
    return {path_name(path): np.asarray(leaf, np.float64) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def by_the_paper(config: OptimizerConfig, params: dict, gradients: list[dict], is_per_layer: bool = False) -> dict:
    """Does the same run in plain NumPy; returns {path: parameter after all gradients}."""
    weights = named(params)
    rates = np.asarray(jax.jit(jax.vmap(make_schedule(config, STEPS)))(np.arange(STEPS, dtype=np.int32)))
    m = {name: np.zeros_like(weight) for name, weight in weights.items()}
    v = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step, tree in enumerate(gradients):
        gradient = named(tree)
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
        clip = min(1.0, config.clip_norm / norm) if config.clip_norm else 1.0
        for name, weight in weights.items():
            m[name] = config.beta1 * m[name] + (1 - config.beta1) * clip * gradient[name]
            v[name] = config.beta2 * v[name] + (1 - config.beta2) * (clip * gradient[name]) ** 2
            mean, square = m[name], v[name]
            if config.bias_correction:
                mean, square = mean / (1 - config.beta1 ** (step + 1)), square / (1 - config.beta2 ** (step + 1))
            update = mean / (np.sqrt(square) + config.eps)
            if name.split('/')[-1] not in ('bias', 'scale'):
                update = update + config.weight_decay * weight
                axes = tuple(range(is_per_layer and name.startswith('layers/'), weight.ndim))
                if config.name == 'lamb':
                    ratio = np.sqrt(np.sum(weight**2, axes, keepdims=True) / np.sum(update**2, axes, keepdims=True))
                    update = ratio * update
            weights[name] = weight - float(rates[step]) * update
    return weights


GRADIENTS = [make_params(seed) for seed in range(1, STEPS + 1)]


@pytest.mark.parametrize('bias_correction', [False, pytest.param(True, marks=OPTAX_ADAM)])
@pytest.mark.parametrize(('name', 'stacked'), [('adamw', None), ('lamb', None), ('lamb', STACKED_LAYERS)])
def test_several_steps_equal_the_formulas(name, stacked, bias_correction):
    config = dataclasses.replace(CONFIG, name=name, bias_correction=bias_correction)
    found, _ = run(config, make_params(), GRADIENTS, stacked)
    expected = by_the_paper(config, make_params(), GRADIENTS, is_per_layer=stacked is not None)
    for path, leaf in named(found).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=2e-5, atol=2e-6, err_msg=path)


def test_the_first_step_of_berts_adamw_is_3_16_rates_long():
    params, gradient = {'kernel': np.zeros(4)}, {'kernel': np.array([2.0, -3.0, 1e-2, 40.0])}
    found, _ = run(FLAT, params, [gradient])
    g = np.asarray(gradient['kernel'], np.float64)
    exact = -FLAT.learning_rate * 0.1 * g / (np.sqrt(0.001 * g**2) + FLAT.eps)
    np.testing.assert_allclose(found['kernel'], exact, rtol=1e-5)
    np.testing.assert_allclose(found['kernel'], -3.16 * FLAT.learning_rate * np.sign(g), rtol=5e-3)


@OPTAX_ADAM
def test_with_bias_correction_the_first_step_is_one_rate_long():
    config = dataclasses.replace(FLAT, bias_correction=True)
    found, _ = run(config, {'kernel': np.zeros(2)}, [{'kernel': np.array([2.0, -3.0])}])
    np.testing.assert_allclose(found['kernel'], [-0.1, 0.1], rtol=1e-5)


def test_biases_and_scales_do_not_decay_and_everything_else_does():
    mask = named(weight_decay_mask(make_params(), CONFIG.no_decay))
    assert {path for path, is_decayed in mask.items() if is_decayed} == {
        'embeddings/token/embedding',
        'layers/attention/kernel',
    }


def test_without_gradients_excluded_parameters_stay_and_the_others_shrink_by_rate_times_decay():
    params = make_params()
    config = dataclasses.replace(FLAT, weight_decay=0.1)
    found = named(run(config, params, [jax.tree.map(np.zeros_like, params)])[0])
    for path, before in named(params).items():
        factor = 1.0 if path.endswith(('bias', 'scale')) else 1 - 0.1 * 0.1
        np.testing.assert_allclose(found[path], factor * before, rtol=1e-6, err_msg=path)


def test_the_trust_ratio_skips_excluded_parameters():
    lamb, _ = run(dataclasses.replace(CONFIG, name='lamb'), make_params(), GRADIENTS)
    adamw, _ = run(CONFIG, make_params(), GRADIENTS)
    for path, leaf in named(lamb).items():
        is_equal = np.allclose(leaf, named(adamw)[path], rtol=1e-6)
        assert is_equal == path.endswith(('bias', 'scale')), path


def test_lamb_moves_a_parameter_by_rate_times_its_norm():
    params = {'kernel': np.random.default_rng(0).standard_normal((6, 5)) * 100}
    found, _ = run(dataclasses.replace(FLAT, name='lamb'), params, [{'kernel': np.ones((6, 5))}])
    moved = np.linalg.norm(np.asarray(found['kernel'], np.float64) - params['kernel'])
    np.testing.assert_allclose(moved, 0.1 * np.linalg.norm(params['kernel']), rtol=1e-4)


@pytest.mark.parametrize(('weight', 'gradient'), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_zero_norms_give_ratio_one(weight, gradient):
    params, gradients = {'kernel': np.full((2, 3), weight)}, [{'kernel': np.full((2, 3), gradient)}]
    lamb, _ = run(dataclasses.replace(FLAT, name='lamb'), params, gradients)
    adamw, _ = run(FLAT, params, gradients)
    np.testing.assert_array_equal(lamb['kernel'], adamw['kernel'])


@pytest.mark.parametrize('name', ['adamw', 'lamb'])
def test_stacked_layers_are_updated_as_separate_ones(name):
    def separate(tree: dict) -> dict:
        layers = {f'layer_{i}': jax.tree.map(lambda leaf, i=i: leaf[i], tree['layers']) for i in range(LAYERS)}
        return {'embeddings': tree['embeddings'], **layers}

    config = dataclasses.replace(CONFIG, name=name)
    stacked, _ = run(config, make_params(), GRADIENTS, STACKED_LAYERS)
    alone, _ = run(config, separate(make_params()), [separate(gradient) for gradient in GRADIENTS])
    expected = named(alone)
    for path, leaf in named(separate(stacked)).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-5, atol=1e-6, err_msg=path)


def test_stacking_matters_for_lamb_only():
    params = make_params()
    params['layers']['attention']['kernel'] *= np.array([1.0, 10.0, 100.0])[:, None, None]
    config = dataclasses.replace(CONFIG, name='lamb')
    per_layer, whole = run(config, params, GRADIENTS, STACKED_LAYERS)[0], run(config, params, GRADIENTS)[0]
    kernels = [tree['layers']['attention']['kernel'] for tree in (per_layer, whole)]
    assert not np.allclose(kernels[0], kernels[1], rtol=1e-3)


def test_the_gradients_are_clipped_together_before_anything_else():
    small = [jax.tree.map(lambda leaf: leaf * 1e-3, gradient) for gradient in GRADIENTS]
    large = [jax.tree.map(lambda leaf: leaf * 1e3, gradient) for gradient in GRADIENTS]
    config = dataclasses.replace(CONFIG, clip_norm=1e-4)
    for path, leaf in named(run(config, make_params(), small)[0]).items():
        np.testing.assert_allclose(leaf, named(run(config, make_params(), large)[0])[path], rtol=1e-5, atol=1e-6)


@OPTAX_ADAM
def test_the_schedule_counts_updates_from_zero():
    params = make_params()
    first, state = run(CONFIG, params, GRADIENTS[:1])
    assert int(optax.tree.get(state, 'ScaleByScheduleState').count) == 1
    for path, leaf in named(first).items():  # a warm-up begins with a rate of 0
        np.testing.assert_array_equal(leaf, named(in_float32(params))[path])
    _, state = run(dataclasses.replace(CONFIG, name='lamb', bias_correction=True), params, GRADIENTS)
    assert int(optax.tree.get(state, 'ScaleByScheduleState').count) == STEPS


def test_state_and_updates_are_float32():
    params, state = run(dataclasses.replace(CONFIG, name='lamb'), make_params(), GRADIENTS)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state))} == {jnp.dtype('float32'), jnp.dtype('int32')}


def test_the_trust_ratio_says_that_it_needs_the_parameters():
    optimizer = make_optimizer(dataclasses.replace(FLAT, name='lamb'), STEPS, stacked=None)
    params = in_float32(make_params())
    state = jax.jit(optimizer.init)(params)
    with pytest.raises(ValueError, match='parameters'):
        optimizer.update(params, state)


def test_the_stacked_layers_of_a_real_model_are_found_and_nothing_else():
    config = ModelConfig(layers=3)
    model = nnx.eval_shape(lambda: PretrainingModel(config, has_pairs=True, rngs=nnx.Rngs(0)))
    leaves = jax.tree.leaves_with_path(nnx.to_pure_dict(nnx.state(model)))
    stacked = {path_name(path): leaf.shape[0] for path, leaf in leaves if re.search(STACKED_LAYERS, path_name(path))}
    assert len(stacked) == 16 and set(stacked.values()) == {3}
    assert all(name.startswith('encoder/stack/layers/') for name in stacked)


def fine_tuned(**fields: object) -> dict:
    """Returns the first updates of a small encoder: Adam's first step is the gradient's sign times the parameter's
    rate.
    """
    config = OptimizerConfig(
        learning_rate=1.0,
        warmup_steps=0,
        schedule='constant',
        weight_decay=0.0,
        bias_correction=True,
        clip_norm=0.0,
        **fields,
    )
    params = {
        'encoder': {
            'embeddings': {'token': {'embedding': ones(5, 2)}},
            'stack': {'layers': {'attention': {'kernel': ones(3, 2, 2)}, 'norm': {'bias': ones(3, 2)}}},
        },
        'pooler': {'kernel': ones(2, 2)},
        'sentences': {'stack': {'layers': {'attention': {'kernel': ones(2, 2, 2)}}}},
        'head': {'out': {'kernel': ones(2, 2)}},
    }
    optimizer = make_optimizer(config, 10, stacked=STACKED_LAYERS)
    gradients = jax.tree.map(lambda leaf: 1000 * leaf, params)
    updates, _ = first_update(optimizer, params, gradients)
    return {path_name(path): -np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(updates)}


@OPTAX_ADAM
def test_lower_layers_learn_more_slowly():
    rates = fine_tuned(layer_decay=0.5)
    assert_close(rates['head/out/kernel'], ones(2, 2))
    assert_close(rates['pooler/kernel'], ones(2, 2))
    assert_close(rates['sentences/stack/layers/attention/kernel'], ones(2, 2, 2))
    for name in ('attention/kernel', 'norm/bias'):
        rate = rates[f'encoder/stack/layers/{name}']
        assert_close(rate.reshape(3, -1)[:, 0], np.array([0.125, 0.25, 0.5]))
        assert_close(rate, np.broadcast_to(rate[..., :1], rate.shape))
    assert_close(rates['encoder/embeddings/token/embedding'], np.full((5, 2), 0.0625))


@OPTAX_ADAM
def test_frozen_layers_and_parameters_stay_as_they_are():
    rates = fine_tuned(frozen_layers=2, frozen=('^pooler/', 'norm/bias$'))
    assert not rates['encoder/embeddings/token/embedding'].any() and not rates['pooler/kernel'].any()
    assert not rates['encoder/stack/layers/norm/bias'].any()
    kernel = rates['encoder/stack/layers/attention/kernel']
    assert not kernel[:2].any() and (kernel[2] > 0.9).all()
    assert (rates['head/out/kernel'] > 0.9).all()


@OPTAX_ADAM
def test_without_either_the_rates_are_one():
    assert all((rate > 0.9).all() for rate in fine_tuned().values())


@pytest.mark.parametrize(
    'fields, stacked, message',
    [
        (
            {'frozen': ('^decoder/',)},
            STACKED_LAYERS,
            r"^optimizer\.frozen has '\^decoder/', which is found in",
        ),
        ({'frozen_layers': 4}, STACKED_LAYERS, r'^optimizer\.frozen_layers is 4; the model has 3 layers$'),
        ({'frozen_layers': 1}, None, r'^optimizer\.frozen_layers is 1; the model has 1 layer, which all share$'),
    ],
)
def test_what_is_frozen_must_be_there(fields: dict, stacked: str | None, message: str):
    with pytest.raises(InputError, match=message):
        check_frozen(OptimizerConfig(**fields), make_params(), stacked)
    check_frozen(OptimizerConfig(frozen=('^embeddings/',), frozen_layers=2), make_params(), STACKED_LAYERS)


@OPTAX_ADAM
def test_frozen_gradients_do_not_count_in_the_norm_that_is_clipped():
    config = dataclasses.replace(FLAT, clip_norm=1.0, frozen=('^embeddings/',))
    gradients = make_params(1)
    small = gradients | {'embeddings': jax.tree.map(lambda leaf: leaf * 1e-6, gradients['embeddings'])}
    updated = [run(config, make_params(), [own], STACKED_LAYERS)[1] for own in (gradients, small)]
    first, second = (named(optax.tree.get(state, 'mu')['layers']) for state in updated)
    for name, moment in first.items():
        np.testing.assert_allclose(moment, second[name], rtol=1e-6)


def test_adadelta_is_the_papers_formula():
    """The updates of Zeiler 2012, algorithm 1, have no learning rate, so the rate 1 gives the paper's updates."""
    config = dataclasses.replace(FLAT, name='adadelta', learning_rate=1.0, beta2=0.95)
    params, gradients = make_params(), [make_params(seed) for seed in range(1, 4)]
    found = named(run(config, params, gradients)[0])
    for path, w in named(params).items():
        squares = updates = np.zeros_like(w)
        for gradient in gradients:
            g = named(gradient)[path]
            squares = 0.95 * squares + 0.05 * g**2
            u = g * np.sqrt(updates + 1e-6) / np.sqrt(squares + 1e-6)
            updates, w = 0.95 * updates + 0.05 * u**2, w - u
        assert_close(found[path], w)
    with pytest.raises(InputError, match="beta1 is 0.5, which 'adadelta' does not read; leave it at 0.9"):
        OptimizerConfig(name='adadelta', beta1=0.5)


@pytest.mark.parametrize('name', ['adamw', 'lamb'])
def test_scores_of_pruning_have_a_rate_of_their_own_and_no_decay(name: str):
    config = dataclasses.replace(FLAT, name=name, weight_decay=0.1)
    params = {'encoder': {'kernel': ones(3, 4)}, 'scores': {'encoder': {'kernel': 5 * ones(3, 4)}}}
    gradients = jax.tree.map(np.ones_like, params)
    updates = {}
    for rate in (0.1, 0.02):
        optimizer = make_optimizer(config, 10, stacked=None, scores_rate=rate)
        updates[rate] = first_update(optimizer, params, gradients)[0]
    first = 0.1 / (np.sqrt(0.001) + 1e-6)  # Adam's first update without bias correction
    for rate, found in updates.items():
        assert_close(found['scores']['encoder']['kernel'], np.full((3, 4), -rate * first, np.float32))
        np.testing.assert_array_equal(found['encoder']['kernel'], updates[0.1]['encoder']['kernel'])


def test_a_score_moves_by_gradients_that_are_far_below_the_eps_of_weights():
    """The eps of scores is 1e-8; a weight with this gradient hardly moves."""
    params = {'encoder': {'kernel': ones(3)}, 'scores': {'encoder': {'kernel': ones(3)}}}
    optimizer = make_optimizer(FLAT, 10, stacked=None, scores_rate=0.1)
    gradients = jax.tree.map(lambda leaf: np.float32(2e-7) * leaf, params)
    updates, _ = first_update(optimizer, params, gradients)
    for leaf, eps in ((updates['scores'], 1e-8), (updates, 1e-6)):
        first = -0.1 * 2e-8 / (np.sqrt(0.001) * 2e-7 + eps)
        np.testing.assert_allclose(leaf['encoder']['kernel'], np.full(3, first), rtol=1e-4)


def test_what_is_trained_beside_the_model_is_never_frozen():
    """The map between the embeddings of teacher and student does not count as an embedding of the model."""
    params = {'encoder': {'embeddings': {'token': ones(3)}}, 'beside': {'embeddings': {'kernel': ones(3)}}}
    config = dataclasses.replace(FLAT, frozen=('embeddings/',), frozen_layers=1, layer_decay=0.5)
    optimizer = make_optimizer(config, 10, stacked=STACKED_LAYERS)
    updates, _ = first_update(optimizer, params, params)
    assert not updates['encoder']['embeddings']['token'].any()
    np.testing.assert_allclose(
        updates['beside']['embeddings']['kernel'], np.full(3, -0.1 * 0.1 / 0.001**0.5), rtol=1e-4
    )

    def held(params: dict) -> dict:
        return FrozenParams(config.frozen).transform_params(params, None, None)[0]

    gradients = jax.jit(jax.grad(lambda params: sum(leaf.sum() for leaf in jax.tree.leaves(held(params)))))(params)
    assert not gradients['encoder']['embeddings']['token'].any() and gradients['beside']['embeddings']['kernel'].all()


def test_scores_that_stay_have_no_moments():
    params = {'encoder': {'kernel': ones(3, 4)}, 'scores': {'encoder': {'kernel': 5 * ones(3, 4)}}}
    plain = make_optimizer(FLAT, 10, stacked=None)
    still = exclude_pruning_scores(plain)
    model = {'encoder': params['encoder']}
    chex.assert_trees_all_equal(still.init(params), plain.init(model))
    gradients = jax.tree.map(np.ones_like, params)
    updates, state = first_update(still, params, gradients)
    alone, its_state = first_update(plain, model, {'encoder': gradients['encoder']})
    chex.assert_trees_all_equal((updates['encoder'], state), (alone['encoder'], its_state))
    assert not updates['scores']['encoder']['kernel'].any()
