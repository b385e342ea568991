"""Tests of the pretraining task: its batches, its metrics, and the loss of a unigram model."""

import copy
import dataclasses
import math

import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.errors import InputError
from efficient_attention.models.flops import encoder_flops
from efficient_attention.tasks.pretraining import PretrainingTask, unigram_losses
from tests.training.tiny_run import tiny_config


def make(config, **changes) -> PretrainingTask:
    data = dataclasses.replace(config.data, **changes)
    return PretrainingTask(dataclasses.replace(config, data=data, eval=EvalConfig(batch_size=5)))


@pytest.fixture(scope='module')
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp('task'))


@pytest.fixture(scope='module')
def task(config) -> PretrainingTask:
    return make(config)


def test_batches_of_a_step_do_not_depend_on_where_the_run_began(task):
    whole = list(task.training_batches(0, 4, 0, 1))
    later = list(task.training_batches(2, 4, 0, 1))
    assert len(whole) == 4 and [batch['tokens'].shape for batch in later] == [(8, 32)] * 2
    for batch, expected in zip(later, whole[2:], strict=True):
        for name, rows in expected.items():
            np.testing.assert_array_equal(batch[name], rows)


@pytest.mark.parametrize('pairs', ['nsp', 'none'])
def test_shapes_without_data_are_those_of_the_batches(config, pairs):
    task = make(config, pairs=pairs)
    batch = next(iter(task.training_batches(0, 1, 0, 1)))
    planned = PretrainingTask.without_data(dataclasses.replace(config, data=task.data)).batch_shapes()
    assert {name: (rows.shape, rows.dtype) for name, rows in batch.items()} == {
        name: (rows.shape, rows.dtype) for name, rows in planned.items()
    }


def test_processes_read_blocks_of_the_same_batch(task):
    whole = next(iter(task.training_batches(3, 4, 0, 1)))
    halves = [next(iter(task.training_batches(3, 4, process, 2))) for process in (0, 1)]
    np.testing.assert_array_equal(np.concatenate([half['tokens'] for half in halves]), whole['tokens'])


def test_held_out_batches_carry_the_unigram_models_losses(task):
    batches = list(task.evaluation_batches(0, 1))
    assert {len(batch['tokens']) for batch in batches} == {5}
    assert not batches[-1]['masked_weights'][-1].any(), 'the last batch should need filling up'
    counts = task.corpus.unigram_counts
    probabilities = (counts + 1) / (counts.sum() + len(counts))
    for batch in batches:
        expected = -np.log(probabilities[batch['masked_tokens']])
        np.testing.assert_allclose(batch['unigram_losses'], expected, rtol=1e-6)


def test_a_unigram_model_counts_every_token_once_more():
    losses = unigram_losses(np.asarray([0, 3, 5]))
    assert losses.dtype == np.float32
    np.testing.assert_allclose(np.exp(-losses), [1 / 11, 4 / 11, 6 / 11], rtol=1e-6)


def test_metrics_are_named_by_the_pair_task_and_get_a_perplexity(task):
    means = {'masked_lm_loss': 2.0, 'masked_lm_accuracy': 0.5, 'pair_loss': 0.7, 'pair_accuracy': 0.6}
    finished = task.finish_metrics(means)
    assert finished == {
        'masked_lm_loss': 2.0,
        'masked_lm_accuracy': 0.5,
        'nsp_loss': 0.7,
        'nsp_accuracy': 0.6,
        'masked_lm_perplexity': pytest.approx(math.exp(2)),
    }


def test_the_gain_over_the_unigram_model_is_a_share_of_its_loss(task):
    finished = task.finish_metrics({'masked_lm_loss': 3.0, 'masked_lm_unigram_loss': 4.0})
    assert finished['masked_lm_below_unigram'] == 0.25


@pytest.mark.parametrize('loss, perplexity', [(1e6, math.exp(700)), (math.inf, math.exp(700)), (math.nan, math.nan)])
def test_a_diverged_loss_has_a_perplexity_too(task, loss: float, perplexity: float):
    found = task.finish_metrics({'masked_lm_loss': loss})['masked_lm_perplexity']
    assert found == pytest.approx(perplexity, nan_ok=True)


def test_a_step_costs_three_forward_passes(task, config):
    assert task.training_flops() == 3 * 8 * encoder_flops(config.model, 32, predictions=5)


def test_the_tokenizer_is_left_in_the_workdir(task, tmp_path):
    task.save_assets(tmp_path)
    assert (tmp_path / 'tokenizer.json').read_bytes() == task.corpus.tokenizer_file.read_bytes()


def test_heads_follow_the_pairs(config, task):
    alone = make(config, pairs='none')
    for made, has_pairs in ((task, True), (alone, False)):
        model = nnx.eval_shape(lambda made=made: made.make_model(nnx.Rngs(0)))
        assert (model.pair is not None) is made.objective.has_pairs is has_pairs
    batch = next(iter(alone.training_batches(0, 1, 0, 1)))
    assert 'pair_labels' not in batch


def test_the_fingerprint_is_the_corpus_own(config, task):
    assert make(config).fingerprint == task.fingerprint
    assert make(config, vocab_size=60).fingerprint != task.fingerprint


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(config):
    config = copy.copy(config)  # A full check of the config would already refuse this vocabulary.
    object.__setattr__(config, 'model', dataclasses.replace(config.model, vocab_size=20))
    with pytest.raises(InputError, match=r'^the tokenizer has \d+ tokens, more than model\.vocab_size 20$'):
        PretrainingTask(config)


def test_a_corpus_may_hold_out_nothing(config):
    task = make(config, held_out=0.0)
    assert not len(task.corpus.held_out) and task.notes == []
    assert task.rows_per_epoch() > make(config).rows_per_epoch()
