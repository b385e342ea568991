"""Tests that evaluation of a split gives equal metrics for every batch size and mesh, and counts each example once."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.data.corpus.batches import evaluation_row_count
from efficient_attention.data.corpus.masked_corpus_rows import MaskedCorpusRows
from efficient_attention.inference.evaluate import evaluate, with_batch_callback
from efficient_attention.training.run import Run, build_run
from tests.training.tiny_run import tiny_config

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = [pytest.mark.lenient_promotion, pytest.mark.devices]

SETTINGS = {  # values: (rows at a time, mesh)
    'one at a time': (1, (1, 1, 1)),
    'three devices and a batch that does not divide': (3, (3, 1, 1)),
    'eight devices': (8, (2, 2, 2)),
    'one batch': (64, (4, 2, 1)),
}


@pytest.fixture(scope='module')
def config(tmp_path_factory) -> RunConfig:
    return tiny_config(tmp_path_factory.mktemp('evaluate'), **{'model.layers': 1})


def run_of(config: RunConfig, batch_size: int, mesh: tuple[int, int, int]) -> Run:
    train, held_out = (dataclasses.replace(part, batch_size=batch_size) for part in (config.train, config.eval))
    config = dataclasses.replace(config, train=train, eval=held_out, mesh=MeshConfig(*mesh))
    return build_run(config, devices=jax.devices()[: np.prod(mesh)])


def random_params(run: Run) -> dict:
    rng = np.random.default_rng(0)

    def place(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.device_put(0.3 * rng.standard_normal(leaf.shape, np.float32), leaf.sharding)

    return jax.tree.map(place, run.abstract_state.params)


def evaluated(config: RunConfig, batch_size: int, mesh: tuple[int, int, int]) -> dict[str, float]:
    run = run_of(config, batch_size, mesh)
    return evaluate(
        run.evaluation.step(), random_params(run), run.task.evaluation_batches(0, 1), run.put_batch_on_devices
    )


@pytest.fixture(scope='module')
def expected(config) -> dict[str, float]:
    """Returns the metrics of all examples in one batch on one device."""
    run = run_of(config, 8, (1, 1, 1))
    held_out = MaskedCorpusRows(
        run.task.corpus.held_out, run.task.corpus.vocabulary, run.config.data, run.config.train.seed
    )
    count = evaluation_row_count(run.task.corpus, run.config.data, run.config.train.seed)
    assert all(count % rows for rows in (3, 8, 64)), f'{count} examples divide evenly'
    rows = [held_out.row(0, index) for index in range(count)]
    batch = {name: jnp.asarray(np.stack([row[name] for row in rows])) for name in rows[0]}
    batch['unigram_losses'] = jnp.asarray(run.task.unigram_losses_V)[batch['masked_tokens']]
    sums, weights = run.evaluation.step()(random_params(run), batch)
    assert weights['pair'] == count
    means = {f'{term}_{name}': value / weights[term] for term in sums for name, value in sums[term].items()}
    return {name: float(value) for name, value in means.items()} | {
        f'{term}_weight': float(weight) for term, weight in weights.items()
    }


@pytest.mark.parametrize('batch_size, mesh', SETTINGS.values(), ids=SETTINGS)
def test_batch_size_and_mesh_change_nothing(config, expected, batch_size: int, mesh: tuple[int, int, int]):
    assert evaluated(config, batch_size, mesh) == pytest.approx(expected, rel=1e-5)


# ---- Tests of sums, weights and names with a step that only adds ----


def add(params: float, batch: dict) -> tuple[dict, dict]:
    pair, other = {'loss': params * batch['x'].sum()}, {'loss': batch['x'].max(), 'accuracy': np.float32(1)}
    return {'pair': pair, 'pair_b': other}, {'pair': np.float32(len(batch['x'])), 'pair_b': np.float32(2)}


def test_sums_are_divided_once_by_all_weights():
    batches = [{'x': np.asarray([1.0, 2.0, 3.0])}, {'x': np.asarray([10.0])}]
    assert evaluate(add, 2.0, batches, lambda batch: batch) == {
        'pair_loss': 32 / 4,
        'pair_b_loss': 13 / 4,
        'pair_b_accuracy': 2 / 4,
        'pair_weight': 4,
        'pair_b_weight': 4,
    }


def test_sums_are_added_in_float64():
    batches = [{'x': np.asarray([2.0**25], np.float32)}, *[{'x': np.asarray([1.0], np.float32)}] * 10]
    assert evaluate(add, np.float32(1), batches, lambda batch: batch)['pair_loss'] == (2**25 + 10) / 11


def test_the_device_has_a_batch_while_the_next_is_built():
    """Evaluation builds, transfers and reads back batches in order, and is never more than two batches ahead."""
    log = []

    class OnDevice:
        def __init__(self, index: int) -> None:
            self.index = index

        def __array__(self, dtype: type | None = None, copy: bool | None = None) -> np.ndarray:
            del dtype, copy
            log.append(('read', self.index))
            return np.float32(self.index)

    def batches() -> Iterator[dict]:
        for index in range(4):
            log.append(('build', index))
            yield {'index': index}

    def step(params: None, batch: dict) -> tuple[dict, dict]:
        del params
        log.append(('compute', batch['index']))
        return {'pair': {'loss': OnDevice(batch['index'])}}, {'pair': np.float32(1)}

    assert evaluate(step, None, batches(), lambda batch: batch) == {'pair_loss': 6 / 4, 'pair_weight': 4.0}
    given = [[('build', index), ('compute', index)] for index in range(4)]
    assert log == [*given[0], *given[1], *given[2], ('read', 0), *given[3], ('read', 1), ('read', 2), ('read', 3)]


def test_no_batch_is_no_metric():
    assert evaluate(add, 2.0, [], lambda batch: batch) == {}


@pytest.mark.parametrize('loss, weight, mean', [(0.0, 0.0, 0.0), (1.0, 0.25, 4.0), (3.0, 1.0, 3.0)])
def test_a_term_is_divided_by_any_weight_and_is_0_without(loss: float, weight: float, mean: float):
    def step(params: None, batch: dict) -> tuple[dict, dict]:
        del params, batch
        return {'pair': {'loss': np.float32(loss)}}, {'pair': np.float32(weight)}

    assert evaluate(step, None, [{}], lambda batch: batch) == {'pair_loss': mean, 'pair_weight': weight}


def test_batches_are_announced_before_they_are_read_and_after_the_last():
    happened: list = []

    def batches() -> Iterator[int]:
        for number in range(2):
            happened.append(number)
            yield number

    assert list(with_batch_callback(batches(), lambda: happened.append('announced'))) == [0, 1]
    assert happened == ['announced', 0, 'announced', 1, 'announced']
