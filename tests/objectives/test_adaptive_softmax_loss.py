"""Tests the adaptive softmax's loss in chunks against dense log-probabilities, and that unused tails are left out."""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.adaptive_softmax import VocabularyCluster
from efficient_attention.models.decoder import Decoder
from efficient_attention.objectives.adaptive_softmax_loss import target_cluster_and_index
from efficient_attention.objectives.language_modelling import next_token_loss_sums
from efficient_attention.planning.cost import cost_of
from efficient_attention.planning.hlo_program import parse_program
from tests.models.drawn import drawn
from tests.tolerances import assert_close

ROWS, LENGTH, VOCABULARY = 8, 13, 60
CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=VOCABULARY, layers=1, token_types=0, positions='none', attention='causal', norm='pre',
    init_std=0.5, attention_dropout_rate=0.0, adaptive_cutoffs=(6, 20), output_bias=True, feed_forward_width=16,
)  # fmt: skip
RNG = np.random.default_rng(0)
HIDDEN = jax.device_put(RNG.normal(size=(ROWS, LENGTH, 16)).astype(np.float32))
DRAWN = RNG.integers(0, VOCABULARY, (ROWS, LENGTH), np.int32)
IS_WEIGHTED = (np.arange(ROWS)[:, None] != 3) | (np.arange(LENGTH) < 5)
WEIGHTS = jax.device_put((RNG.uniform(size=(ROWS, LENGTH)) * IS_WEIGHTED).astype(np.float32))
ANY = jax.device_put(DRAWN)
TARGETS = {
    'any': ANY,
    'first cluster': jax.device_put(DRAWN % 6),
    'last tail': jax.device_put(20 + DRAWN % 40),
    'rows of one cluster': jax.device_put(np.where(np.arange(ROWS)[:, None] < 4, DRAWN % 6, 6 + DRAWN % 14)),
}
KINDS: dict[str, dict[str, Any]] = {
    'one table': {},
    'narrow tails': {'adaptive_divisor': 2},
    'untied': {'adaptive_divisor': 2, 'tied_output': False, 'output_bias': False},
}


@functools.cache
def parts_of(chunk: int, name: str) -> tuple[nnx.GraphDef, dict]:
    config = dataclasses.replace(CONFIG, loss_chunk=chunk, **KINDS[name])
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), std=0.5)


@functools.partial(jax.jit, static_argnums=(0,))
def value_and_gradients(graph: nnx.GraphDef, state: nnx.State, *arrays: jax.Array) -> Any:
    """Returns the mean loss, with its gradients to parameters and vectors."""
    hidden, targets, weights = arrays

    def loss(state: nnx.State, hidden: jax.Array) -> jax.Array:
        return next_token_loss_sums(nnx.merge(graph, state), hidden, targets, weights)['loss'] / weights.sum()

    return jax.value_and_grad(loss, (0, 1))(state, hidden)


sums_of, logits_of = nnx.jit(next_token_loss_sums), nnx.jit(Decoder.logits)


def dense_sums(model: Decoder, targets: jax.Array) -> dict[str, float]:
    """Returns sums of loss and accuracy from all words' log-probabilities.

    A prediction is the best word among the target's cluster and the first cluster.
    """
    log_p, targets, weights = np.asarray(logits_of(model, HIDDEN)), np.asarray(targets), np.asarray(WEIGHTS)
    cluster, words = np.searchsorted((6, 20), targets, side='right'), np.arange(VOCABULARY)
    of_words = np.searchsorted((6, 20), words, side='right')
    is_seen = (of_words == 0) | (of_words == cluster[..., None])
    losses = -np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    is_best = np.where(is_seen, log_p, -np.inf).argmax(axis=-1) == targets
    return {'loss': (losses * weights).sum(), 'accuracy': (is_best * weights).sum()}


@pytest.mark.parametrize('name, chunk', [('one table', 4), ('narrow tails', 40), ('narrow tails', 4), ('untied', 4)])
def test_loss_and_gradients_equal_those_of_all_log_probabilities(name: str, chunk: int):
    whole, chunked = parts_of(0, name), parts_of(chunk, name)
    for targets in TARGETS.values():
        expected = value_and_gradients(*whole, HIDDEN, targets, WEIGHTS)
        assert_close(value_and_gradients(*chunked, HIDDEN, targets, WEIGHTS), expected, gradient=True)
        assert np.abs(np.asarray(expected[1][1])).max() > 1e-3


@pytest.mark.parametrize('targets', TARGETS)
def test_sums(targets: str):
    model = nnx.merge(*parts_of(4, 'narrow tails'))
    sums = sums_of(model, HIDDEN, TARGETS[targets], WEIGHTS)
    assert_close(sums, dense_sums(model, TARGETS[targets]))


def test_losses_are_those_of_the_paper_in_float64():
    """The loss is log p(word) = log p(tail | first) + log p(word | tail), from only the clusters' tables."""
    model = nnx.merge(*parts_of(4, 'narrow tails'))
    clusters, narrow = model.head.clusters_and_inputs(HIDDEN, model.embeddings.token)
    vectors = np.asarray(narrow, np.float64)

    def log_p(cluster: VocabularyCluster) -> np.ndarray:
        projected = (
            vectors if cluster.projection_Ee is None else vectors @ np.asarray(cluster.projection_Ee, np.float64)
        )
        logits = projected @ np.asarray(cluster.table_ne, np.float64).T
        logits += 0.0 if cluster.bias_n is None else np.asarray(cluster.bias_n, np.float64)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    first, *tails = map(log_p, clusters)
    words = np.concatenate([first[..., :6], *(first[..., 6 + i, None] + tail for i, tail in enumerate(tails))], axis=-1)
    losses = -np.take_along_axis(words, np.asarray(ANY)[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(np.exp(words).sum(axis=-1), 1.0)
    sums = sums_of(model, HIDDEN, ANY, WEIGHTS)
    assert_close(sums['loss'], (losses * np.asarray(WEIGHTS, np.float64)).sum())


def test_the_most_probable_words_are_all_correct():
    model = nnx.merge(*parts_of(4, 'one table'))
    best = np.asarray(logits_of(model, HIDDEN)).argmax(axis=-1).astype(np.int32)
    assert len(np.unique(np.searchsorted((6, 20), best, side='right'))) == 3
    assert_close(sums_of(model, HIDDEN, best, WEIGHTS)['accuracy'], np.asarray(WEIGHTS).sum())


def test_rows_over_eight_devices_give_the_same():
    rows = NamedSharding(Mesh(np.asarray(jax.devices()), ('data',)), PartitionSpec('data'))
    graph, state = parts_of(4, 'narrow tails')
    spread = value_and_gradients(graph, state, *jax.device_put((HIDDEN, ANY, WEIGHTS), rows))
    assert_close(
        jax.device_get(spread), jax.device_get(value_and_gradients(graph, state, HIDDEN, ANY, WEIGHTS)), gradient=True
    )


def test_devices_that_share_a_row_share_each_chunk():
    """Four devices give the values of one device, and each has a quarter of its matrix products in the accelerator
    form.
    """
    mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(1, 1, 4, 1), ('data', 'fsdp', 'sequence', 'tensor'))
    graph, state = parts_of(4, 'narrow tails')
    arrays = jax.device_put([np.asarray(x)[:, :12] for x in (HIDDEN, ANY, WEIGHTS)])
    shares = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(None, 'sequence')))
    whole = value_and_gradients.lower(graph, state, *arrays).compile()
    with using_mesh(mesh), using_device_tuning(matrix_einsums=False):
        split = value_and_gradients.lower(graph, state, *shares).compile()
    assert_close(jax.device_get(split(state, *shares)), jax.device_get(whole(state, *arrays)), gradient=True)
    products, of_all = (cost_of(parse_program(one.as_text())).flops for one in (split, whole))
    assert 0 < 4 * products <= of_all


def test_clusters_of_targets():
    tables = [jnp.zeros((rows, 2)) for rows in (5 + 2, 3, 4)]
    clusters = tuple(VocabularyCluster(table, None, None) for table in tables)
    cluster, place = target_cluster_and_index(jnp.asarray([[0, 4, 5, 7, 8, 11]]), clusters)
    assert cluster.tolist() == [[0, 0, 1, 1, 2, 2]] and place.tolist() == [[0, 4, 0, 2, 0, 3]]


def test_a_chunk_leaves_out_the_tails_that_no_target_of_it_is_in():
    """NaN in a tail's table reaches the loss only if a target of weight above 0 is in that tail."""
    graph, state = parts_of(4, 'narrow tails')
    broken = nnx.merge(graph, jax.tree.map(lambda x: x, state))
    table = broken.embeddings.token.tables[2].embedding
    table[...] = jax.device_put(np.full(table.shape, np.nan, np.float32))
    weights = np.where(DRAWN < 20, np.asarray(WEIGHTS), np.float32(0.0))
    sums = sums_of(broken, HIDDEN, ANY, weights)
    assert_close(sums['loss'], sums_of(nnx.merge(graph, state), HIDDEN, ANY, weights)['loss'])
    assert np.isnan(sums_of(broken, HIDDEN, ANY, np.ones_like(weights))['loss'])


def test_no_buffer_holds_the_logits_of_all_tokens():
    config = dataclasses.replace(CONFIG, vocab_size=2000, adaptive_cutoffs=(100, 500), loss_chunk=8, adaptive_divisor=2)
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    arrays = [jax.ShapeDtypeStruct((2, 64, *rest), dtype) for rest, dtype in (((16,), 'float32'), ((), 'int32'))]
    program = value_and_gradients.lower(graph, state, *arrays, jax.ShapeDtypeStruct((2, 64), 'float32')).compile()
    shapes = re.findall(r'\b(?:f|bf|s|u|pred)\d*\[([\d,]+)\]', program.as_text())
    assert max(math.prod(map(int, shape.split(','))) for shape in shapes) <= 2 * 8 * 1500
