"""Tests Adafactor against the paper's algorithm in NumPy, layer by layer, and against optax's own chain."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import make_mesh, path_name, state_shardings
from efficient_attention.training import adafactor
from efficient_attention.training.optimizer import STACKED_LAYERS, make_optimizer

pytestmark = pytest.mark.lenient_promotion  # optax's decay raises an int32 count to a Python float
CONFIG = OptimizerConfig(
    name='adafactor', learning_rate=0.1, warmup_steps=0, schedule='constant', weight_decay=0.0, clip_norm=0.0
)
STEPS = 4
MESH = make_mesh(MeshConfig(fsdp=2))


def make_params(seed: int) -> dict:
    draw = np.random.default_rng(seed).standard_normal
    return {
        'layers': {'up': {'kernel': draw((2, 6, 9)), 'bias': draw((2, 9))}},
        'token': {'embedding': draw((12, 6))},
        'norm': {'scale': np.zeros(6)},
    }


def as_jax(tree: dict) -> dict:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def run(optimizer: optax.GradientTransformation) -> tuple[dict, optax.OptState]:
    params = as_jax(make_params(0))
    state = optimizer.init(params)
    step = jax.jit(optimizer.update)
    for seed in range(1, STEPS + 1):
        updates, state = step(as_jax(make_params(seed)), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def by_the_paper(weight: np.ndarray, gradients: list[np.ndarray], *, is_factored: bool) -> np.ndarray:
    """Computes algorithm 4 of the paper for one matrix or vector."""
    row, column, full = (np.zeros(1) for _ in range(3))
    for step, gradient in enumerate(gradients, 1):
        decay, square = 1 - step**-0.8, gradient**2 + 1e-30
        if is_factored:
            row = decay * row + (1 - decay) * square.mean(1)
            column = decay * column + (1 - decay) * square.mean(0)
            moment = np.outer(row, column) / row.mean()
        else:
            moment = full = decay * full + (1 - decay) * square
        update = gradient / np.sqrt(moment)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        weight = weight - CONFIG.learning_rate * max(1e-3, np.sqrt(np.mean(weight**2))) * update
    return weight


@pytest.mark.parametrize('factored_from', [6, 128], ids=['factored', 'whole'])
def test_each_layer_moves_as_the_paper_says(factored_from: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adafactor, 'FACTORED_FROM', factored_from)
    found, _ = run(make_optimizer(CONFIG, STEPS, stacked=STACKED_LAYERS))
    weights, gradients = make_params(0), [make_params(seed) for seed in range(1, STEPS + 1)]

    def expected(path: tuple, weight: np.ndarray) -> np.ndarray:
        name = path_name(path)
        leaves = [dict(flat(tree))[name] for tree in gradients]
        is_factored = factored_from == 6 and not name.endswith(('bias', 'scale'))
        if not name.startswith('layers'):
            return by_the_paper(weight, leaves, is_factored=is_factored)
        layers = range(weight.shape[0])
        return np.stack([by_the_paper(weight[i], [x[i] for x in leaves], is_factored=is_factored) for i in layers])

    for path, leaf in flat(jax.tree_util.tree_map_with_path(expected, weights)):
        np.testing.assert_allclose(dict(flat(found))[path], leaf, rtol=2e-5, atol=1e-6, err_msg=path)


def flat(tree: dict) -> list[tuple[str, np.ndarray]]:
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def test_without_stacked_layers_it_is_optaxs_own():
    found, _ = run(make_optimizer(CONFIG, STEPS, stacked=None))
    expected, _ = run(optax.adafactor(CONFIG.learning_rate))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), found, expected)


def test_the_state_of_a_matrix_is_a_row_and_a_column(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adafactor, 'FACTORED_FROM', 6)
    _, state = run(make_optimizer(CONFIG, STEPS, stacked=STACKED_LAYERS))
    shapes = {name: leaf.shape for name, leaf in flat(state)}
    kernels = [shape for name, shape in shapes.items() if name.endswith('up/kernel')]
    assert sorted(kernels) == [(2, 1), (2, 6), (2, 9)]
    assert sum(np.prod(shape) for shape in shapes.values()) < 100  # for 210 parameters; Adam would keep 420 numbers


def test_on_a_mesh_rows_and_columns_are_copied_and_whole_moments_lie_as_their_parameter(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(adafactor, 'FACTORED_FROM', 6)
    params = as_jax(make_params(0)) | {'up': {'kernel': jnp.ones((4, 4))}}
    state = jax.eval_shape(make_optimizer(CONFIG, STEPS, stacked=STACKED_LAYERS).init, params)
    specs = {name: leaf.spec for name, leaf in flat(state_shardings({'opt_state': state}, MESH))}
    assert all(not any(spec) for name, spec in specs.items() if '/v_row/' in name or '/v_col/' in name)
    assert any(any(spec) for name, spec in specs.items() if name.endswith('/v/up/kernel'))


@pytest.mark.parametrize('field, value', [('beta1', 0.0), ('beta2', 0.98), ('eps', 1e-9), ('bias_correction', True)])
def test_what_adafactor_does_not_read_is_refused(field: str, value: float):
    with pytest.raises(
        InputError, match=rf"^optimizer\.{field} is {value}, which 'adafactor' does not read; leave it at "
    ):
        dataclasses.replace(CONFIG, **{field: value})
