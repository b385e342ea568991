"""Tests that each metric that a task logs has a definition."""

import pytest

from efficient_attention.tasks.encoder_decoder import EncoderDecoderTask
from efficient_attention.tasks.metrics.hotpotqa import NAMES
from efficient_attention.tasks.problems.question_answering import SCORES_2
from efficient_attention.workdir.metric_definitions import define_metric
from efficient_attention.workdir.metrics import SPEEDS, STILL_PRUNING, WEIGHTS_KEPT

OF_TASKS = {
    'masked_lm_below_unigram',
    'nsp_accuracy',
    'causal_lm_perplexity',
    'bits_per_byte',
    'f1',
    'accuracy_matched',
}


@pytest.mark.parametrize(
    'name',
    sorted({*SPEEDS, *EncoderDecoderTask.held_out_metrics, *NAMES, *SCORES_2, *OF_TASKS, STILL_PRUNING, WEIGHTS_KEPT}),
)
def test_a_metric_has_a_definition(name: str):
    meaning, _unit = define_metric(name)
    assert meaning.endswith('.')


def test_the_end_says_what_and_the_beginning_of_what():
    meaning, unit = define_metric('masked_lm_loss')
    assert unit == 'nats' and 'mean loss' in meaning and 'masked tokens' in meaning
    assert define_metric('no_such_metric') == ('', '')
