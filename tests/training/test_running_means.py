"""Tests running means against plain NumPy: the update rule, a whole step, and the cases in which they must not move."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from efficient_attention.attention.routing.centroids import centroid_statistics
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import RunStopped
from efficient_attention.models import reversible
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.sharding import batch_sharding, make_mesh, path_name
from efficient_attention.modules.attention import Attention
from efficient_attention.objectives.objective import Batch, Objective
from efficient_attention.training.loop import train
from efficient_attention.training.optimizer import (
    STACKED_LAYERS,
    is_none,
    make_optimizer,
    running_mean_update,
    with_running_means,
)
from efficient_attention.training.run import build_run
from efficient_attention.training.state import TrainState, initial_state, step_array_names
from efficient_attention.training.step import jit_train_step, make_train_step
from efficient_attention.training.step_extensions import (
    RunningMeans,
    build_step_extensions,
    has_running_means,
    is_running_mean,
    only_running_means,
    without_running_means,
)
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from tests.attention import contract_rows
from tests.one_device import EIGHT
from tests.tolerances import assert_close
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.tiny_run import tiny_config

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts

RULE = OptimizerConfig(learning_rate=0.1, warmup_steps=0, schedule='constant', weight_decay=0.1, clip_norm=0.01)
POINTS = 'stack/layers/attention/learned/running_means/centroids'


# ---- the update rule ----


def by_numpy(points: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Returns the points [..., K + 1] after a step; `sums` [..., K + 1] holds vector sums and, at the end, their
    counts.
    """
    points = np.array(points, np.float64)
    for place in np.ndindex(points.shape[:-1]):
        if sums[(*place, -1)] > 0:
            moved = 0.999 * points[place][:-1] + 0.001 * np.asarray(sums[place][:-1], np.float64) / sums[(*place, -1)]
            points[place][:-1] = moved / np.sqrt((moved**2).sum())
    return points


def drawn(layers: int = 2) -> tuple[dict, dict]:
    """Returns random parameters of a stack and their gradients; the second point of each head has no vectors."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((layers, 3, 4, 6)).astype(np.float32)
    points[..., -1] = 0.0
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    sums = rng.standard_normal(points.shape).astype(np.float32)
    sums[..., -1] = rng.integers(1, 9, points.shape[:-1])
    sums[:, :, 1] = 0.0
    kernels = [rng.standard_normal((layers, 5, 5)).astype(np.float32) for _ in range(2)]
    trees = [
        {'layers': {'learned': {'running_means': {'points': array}}, 'query': {'kernel': kernel}}}
        for array, kernel in zip((points, sums), kernels, strict=True)
    ]
    return tuple(trees)


def points_of(tree: dict) -> jax.Array:
    return tree['layers']['learned']['running_means']['points']


def stepped(optimizer: optax.GradientTransformation, params: dict, gradients: dict) -> tuple[dict, Any]:
    """Returns parameters and state after a first update, computed by one program."""

    @jax.jit
    def update(params: dict, gradients: dict) -> tuple[dict, Any]:
        updates, state = optimizer.update(gradients, optimizer.init(params), params)
        return optax.apply_updates(params, updates), state

    return jax.device_get(update(params, gradients))


def test_running_means_are_found_by_their_path():
    params, _ = drawn()
    alone, others = only_running_means(params), without_running_means(params)
    assert len(jax.tree.leaves(alone)) == len(jax.tree.leaves(others)) == 1
    assert points_of(alone) is points_of(params) and points_of(others) is None
    assert is_none(None) and not is_none(0.0)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    assert sum(map(is_running_mean, paths)) == 1 and has_running_means(params)
    plain = {'running': {'means': 1.0}, 'my_running_means': {'x': 2.0}}
    assert without_running_means(plain) == plain and not has_running_means(plain)
    assert not jax.tree.leaves(only_running_means(plain))


def test_a_point_moves_to_the_mean_of_what_belongs_to_it_and_stays_without_any():
    params, gradients = drawn()
    points, sums = points_of(params), points_of(gradients)
    step, scaled = (np.asarray(jax.jit(running_mean_update)(points, scale * sums)) for scale in (1, 4))
    assert_close(points + step, by_numpy(points, sums), within=1e-6)
    assert not step[:, :, 1].any() and not step[..., -1].any() and step[:, :, 0, :-1].any()
    np.testing.assert_allclose(np.linalg.norm((points + step)[..., :-1], axis=-1), 1.0, rtol=1e-6)
    assert_close(scaled, step, within=1e-7)  # a common factor of sums and counts changes nothing


@pytest.mark.parametrize('name', ['adamw', 'lamb', 'adafactor', 'adadelta'])
def test_other_parameters_move_as_if_there_were_none_and_no_state_is_kept_of_them(name: str):
    """The other parameters keep their moments, norms and trust ratios."""
    params, gradients = drawn()
    optimizer = make_optimizer(dataclasses.replace(RULE, name=name), 5, stacked=STACKED_LAYERS)
    moved_to, state = stepped(optimizer, params, gradients)
    others, their_gradients = ({'layers': {'query': tree['layers']['query']}} for tree in (params, gradients))
    expected, expected_state = stepped(optimizer, others, their_gradients)
    np.testing.assert_array_equal(moved_to['layers']['query']['kernel'], expected['layers']['query']['kernel'])
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state), jax.tree.leaves(expected_state))
    moved = points_of(moved_to)
    assert_close(moved, by_numpy(*(np.asarray(points_of(tree)) for tree in (params, gradients))), within=1e-6)


def test_without_any_the_state_is_that_of_the_rule_itself():
    params = without_running_means(drawn()[0])
    rule = optax.adam(0.1)
    jax.tree.map(np.testing.assert_array_equal, with_running_means(rule, rule).init(params), rule.init(params))
    with pytest.raises(ValueError, match='running means need the parameters'):
        with_running_means(rule, rule).update(params, rule.init(params))


def test_what_is_frozen_stays():
    params, gradients = drawn()
    for fields, is_held in (
        ({'frozen': ('running_means',)}, [True, True]),
        ({'frozen': ('kernel',)}, [False, False]),
        ({'frozen_layers': 1}, [True, False]),
        ({'layer_decay': 0.5}, [False, False]),
    ):
        optimizer = make_optimizer(dataclasses.replace(RULE, **fields), 5, stacked=STACKED_LAYERS)
        moved, _ = stepped(optimizer, params, gradients)
        expected = np.array(by_numpy(*(np.asarray(points_of(tree)) for tree in (params, gradients))))
        for layer, held in enumerate(is_held):
            expected[layer] = points_of(params)[layer] if held else expected[layer]
        assert_close(points_of(moved), expected, within=1e-6)


# ---- a whole step ----

CONFIG = ModelConfig(
    width=16, heads=4, head_width=8, vocab_size=11, layers=2, max_length=12, token_types=0, dropout_rate=0.0,
    attention='routing(3, 5, local_heads=1, window=4)', attention_dropout_rate=0.0, init_std=0.3,
)  # fmt: skip


class OneLayer(nnx.Module):
    """A model of one attention sub-layer, whose inputs are vectors."""

    def __init__(self) -> None:
        self.attention = Attention(CONFIG, rngs=nnx.Rngs(0))

    def __call__(self, x_BLD: jax.Array, segments_BL: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(x_BLD.shape[1]), segments_BL.shape)
        return self.attention(x_BLD, segments_BL, positions)


@dataclasses.dataclass(frozen=True)
class Squares(Objective):
    """An objective: the weighted sum of squares of a layer's outputs."""

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {'square': batch['weights'].sum()}

    def sums(self, model, batch, carry, rng, step=0):
        del rng, step
        out = model(batch['x'], batch['segments'])
        return {'square': {'loss': (jnp.square(out).sum((1, 2)) * batch['weights']).sum()}}, carry


def batch_of(seed: int = 0, weight: float = 0.25) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, 10, 8)
    segments = (np.arange(9) < lengths[:, None]).astype(np.int32)
    x = rng.standard_normal((8, 9, 16), np.float32)
    return {'x': x, 'segments': segments, 'weights': np.full(8, weight, np.float32)}


OPTIMIZER = make_optimizer(RULE, 10, stacked=None)


@functools.cache
def graph_and_start() -> tuple[nnx.GraphDef, TrainState]:
    """Returns the layer's graph, and the state before the first step."""

    @jax.jit
    def start() -> TrainState:
        return initial_state(nnx.to_pure_dict(nnx.state(OneLayer())), OPTIMIZER, seed=0)

    return nnx.split(nnx.eval_shape(OneLayer))[0], start()


@functools.cache
def step_and_start(micro_batches: int = 1) -> tuple[Any, TrainState]:
    graph, start = graph_and_start()
    step = make_train_step(graph, Squares(), OPTIMIZER, micro_batches=micro_batches, parts=[RunningMeans()])
    return jax.jit(step), start


def centroids_of(state: TrainState) -> np.ndarray:
    return np.asarray(state.params['attention']['learned']['running_means']['centroids'])


def sums_by_numpy(state: TrainState, batch: Batch) -> np.ndarray:
    """Computes the sums and counts of a step in NumPy, from the batch and the state before it."""
    x, valid = np.asarray(batch['x'], np.float64), np.asarray(batch['segments']) > 0
    found = []
    for name in ('query', 'key'):
        kernel, bias = (np.asarray(state.params['attention'][name][part], np.float64) for part in ('kernel', 'bias'))
        found.append((x @ kernel + bias).reshape(*x.shape[:2], 4, 8)[valid])
    tokens = [np.concatenate([vectors[:, head] for vectors in found]) for head in range(1, 4)]
    return contract_rows.routing_statistics(tokens, centroids_of(state).astype(np.float64)[..., :8])


@pytest.mark.parametrize('micro_batches', [1, 4])
def test_three_steps_are_those_of_plain_numpy(micro_batches: int):
    """A row's weight in the loss does not matter, and the first points are on the unit sphere."""
    step, state = step_and_start(micro_batches)
    start = centroids_of(state)
    np.testing.assert_allclose(np.linalg.norm(start[..., :-1], axis=-1), 1.0, rtol=1e-6)
    assert start.shape == (3, 3, 9) and not start[..., -1].any()
    for number in range(3):
        batch = batch_of(number, weight=0.25 * 7**number)
        expected = by_numpy(centroids_of(state), sums_by_numpy(state, batch))
        before, (state, _) = centroids_of(state), step(state, batch)
        assert_close(centroids_of(state), expected, within=1e-6)
        assert np.abs(centroids_of(state) - before).max() > 1e-5


def test_they_are_in_no_gradient_norm():
    """The norm is that of the other gradients, however many tokens there are."""
    step, state = step_and_start()
    batch = batch_of()
    graph, _ = graph_and_start()

    @jax.jit
    def norms(params: dict) -> tuple[jax.Array, jax.Array]:
        gradients = jax.grad(loss)(params)
        return optax.tree.norm(gradients), optax.tree.norm(without_running_means(gradients))

    def loss(params: dict) -> jax.Array:
        model = nnx.merge(graph, params)
        return (jnp.square(model(batch['x'], batch['segments'])).sum((1, 2)) * batch['weights']).sum() / 2.0

    all_, others = norms(state.params)
    assert all_ > 1.01 * others
    np.testing.assert_allclose(step(state, batch)[1]['gradient_norm'], others, rtol=1e-5)


@pytest.mark.parametrize('name', ['weights', 'x'])
def test_a_skipped_step_moves_none_and_the_next_goes_on_from_there(name: str):
    step, state = step_and_start()
    batch = batch_of()
    spoiled = batch[name].copy()
    spoiled[2] = np.nan
    after, metrics = step(state, batch | {name: spoiled})
    assert after.skipped == 1 and not metrics['is_spoiled']
    np.testing.assert_array_equal(centroids_of(after), centroids_of(state))
    np.testing.assert_array_equal(centroids_of(step(after, batch)[0]), centroids_of(step(state, batch)[0]))


def test_a_step_without_the_part_of_running_means_is_refused():
    graph, start = graph_and_start()
    with pytest.raises(ValueError, match='missing: RunningMeans;'):
        jax.eval_shape(make_train_step(graph, Squares(), OPTIMIZER), start, batch_of())


def test_sums_that_are_not_finite_make_a_step_be_skipped_though_its_loss_is(monkeypatch: pytest.MonkeyPatch):
    place = 'efficient_attention.attention.routing.centroids.centroid_statistics'
    monkeypatch.setattr(place, lambda near: centroid_statistics(near) + jnp.inf)
    graph, start = graph_and_start()
    after, metrics = jax.jit(make_train_step(graph, Squares(), OPTIMIZER, parts=[RunningMeans()]))(start, batch_of())
    assert np.isfinite(metrics['loss']) and np.isfinite(metrics['gradient_norm']) and after.skipped == 1
    assert step_array_names(batch_of(), after)[metrics['cause']].endswith('running_means/centroids')
    np.testing.assert_array_equal(centroids_of(after), centroids_of(start))


def test_eight_devices_take_the_sums_of_one():
    step, state = step_and_start()
    batch = jax.device_put(batch_of(), batch_sharding(make_mesh(MeshConfig(), EIGHT)))
    spread = alone = state
    for _ in range(2):
        spread, _ = step(spread, batch)
        alone, _ = step(alone, batch_of())
    assert len(batch['x'].sharding.device_set) == 8
    assert_close(centroids_of(spread), centroids_of(alone), within=1e-6)


# ---- stacks ----

TOKENS = np.arange(20, dtype=np.int32).reshape(2, 10) % 11
SEGMENTS = np.asarray([[1] * 10, [1] * 6 + [0] * 4])


@functools.cache
def encoder_params(**fields: Any) -> dict:
    """Returns the parameters of an encoder."""
    config = dataclasses.replace(CONFIG, **fields)
    return jax.jit(lambda: nnx.to_pure_dict(nnx.state(Encoder(config, rngs=nnx.Rngs(0)))))()


def sums_in(params: dict, **fields: Any) -> np.ndarray:
    """Returns the gradients of an encoder's centroids, which are the sums and counts of their vectors."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: Encoder(dataclasses.replace(CONFIG, **fields), rngs=nnx.Rngs(0))))

    def loss(params: dict) -> jax.Array:
        return jnp.sin(nnx.merge(graph, params)(TOKENS, SEGMENTS)).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    (found,) = (leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradients) if is_running_mean(path))
    return np.asarray(found)


@functools.cache
def plain_sums() -> np.ndarray:
    return sums_in(encoder_params())


@pytest.mark.parametrize('fields', [{'remat': 'full'}, {'remat': 'dots'}, {'scan_unroll': 2}], ids=str)
def test_layers_that_are_computed_again_count_once(fields: dict):
    plain = plain_sums()
    np.testing.assert_array_equal(plain[..., -1].sum(-1), 2 * 16)  # queries and keys of 16 tokens in each head
    assert_close(sums_in(encoder_params(), **fields), plain)


def test_a_reversible_stack_has_the_sums_of_its_ordinary_derivative(monkeypatch: pytest.MonkeyPatch):
    fields = {'stack': 'reversible', 'norm': 'pre'}
    params = encoder_params(**fields)
    found = sums_in(params, **fields)
    monkeypatch.setattr(reversible, 'run_reversible_streams', reversible.reversible_forward)
    np.testing.assert_array_equal(found[..., -1].sum(-1), 2 * 16)
    assert_close(found, sums_in(params, **fields), gradient=True)


def test_layers_that_share_centroids_add_up():
    shared = sums_in(encoder_params(sharing='all'), sharing='all')
    np.testing.assert_array_equal(shared[..., -1].sum(-1), 2 * 2 * 16)


# ---- whole runs ----


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('routing')


def routed(folder: Path, **fields: Any) -> Any:
    usual = {'model.attention': 'routing(4, 8, local_heads=1, window=4)', 'train.steps': 6, 'model.remat': 'full'}
    usual |= {'checkpoint.every_steps': 3, 'eval.every_steps': 4, 'train.log_every_steps': 2, 'data.pairs': 'none'}
    return tiny_config(folder, **usual | fields)


def saved(folder: Path, workdir: Path, step: int, **fields: Any) -> TrainState:
    run = build_run(routed(folder, **fields))
    return CheckpointReader(workdir).restore(run.abstract_state, step).state


def centroids_in(state: TrainState) -> np.ndarray:
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)}
    (found,) = (np.asarray(leaf) for name, leaf in leaves.items() if name.endswith(POINTS))
    return found


@pytest.mark.usefixtures('shared_programs')
def test_a_run_that_goes_on_has_the_centroids_of_one_that_never_stopped(folder, monkeypatch):
    """The centroids are in the checkpoint, and an evaluation, which only the stopped run does in between, moves
    none.
    """
    train(routed(folder, **{'eval.every_steps': 6}), folder / 'unbroken')
    with monkeypatch.context() as patch:
        steps = itertools.count(1)
        patch.setattr('efficient_attention.training.guarded_run.GracefulStop.is_stop_due', lambda _: next(steps) == 3)
        with pytest.raises(RunStopped):
            train(routed(folder), folder / 'stopped')
    train(routed(folder), folder / 'stopped')
    left, right = (saved(folder, folder / name, 6) for name in ('unbroken', 'stopped'))
    jax.tree.map(np.testing.assert_array_equal, left, right)
    before = centroids_in(saved(folder, folder / 'unbroken', 3))
    assert (np.abs(centroids_in(left) - before).max((1, 2, 3)) > 1e-4).all()


def test_meshes_and_micro_batches_give_the_same_centroids(folder):
    found = []
    plain = {'train.batch_size': 16, 'model.remat': 'none'}
    parted = {'train.micro_batches': 4, 'mesh.fsdp': 2, 'mesh.tensor': 2}
    alone = build_run(routed(folder, **plain))
    start = jax.device_get(alone.init_random_state())
    for run in (alone, build_run(routed(folder, **plain, **parted), EIGHT)):
        state, step = jax.device_put(start, run.shardings), jit_train_step(run)
        for batch in run.task.training_batches(0, 2, 0, 1):
            state, metrics = step(state, run.put_batch_on_devices(batch))
        assert int(metrics['skipped']) == 0
        found.append(centroids_in(state))
    assert_close(*found, within=1e-5)


def test_frozen_centroids_stay_as_they_are():
    graph, start = graph_and_start()
    frozen = ('running_means',)
    optimizer = make_optimizer(dataclasses.replace(RULE, frozen=frozen), 10, stacked=None)
    step = jax.jit(make_train_step(graph, Squares(), optimizer, parts=build_step_extensions(start, frozen=frozen)))
    state = dataclasses.replace(start, opt_state=jax.jit(optimizer.init)(start.params))
    for number in range(2):
        state, _ = step(state, batch_of(number))
    np.testing.assert_array_equal(centroids_of(state), centroids_of(start))
    kernels = [np.asarray(one.params['attention']['query']['kernel']) for one in (state, start)]
    assert (kernels[0] != kernels[1]).any()


def test_a_model_that_computes_in_bfloat16_sums_in_float32():
    sums = sums_in(encoder_params(), dtype='bfloat16')
    assert sums.dtype == np.float32
    np.testing.assert_array_equal(sums[..., -1].sum(-1), 2 * 16)
