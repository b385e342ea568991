"""Tests of trained hierarchical models: answers, the weights of words and sentences, and runs that start from them."""

from pathlib import Path

import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.pooling_weights import BETWEEN, SPECIAL, UNREAD, PoolingWeightsPipeline
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.run import build_run
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.inference.tiny_sentences import drawn_sentences, sentence_values
from tests.tolerances import assert_close

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = pytest.mark.lenient_promotion

LONG = 'The film was  very, very good and a story we saw. We saw it. A bad story. Not the film. We saw.'


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_sentences(tmp_path_factory.mktemp('sentences'))


@pytest.fixture(scope='module')
def weigh(run: Path) -> PoolingWeightsPipeline:
    return PoolingWeightsPipeline(run)


def test_weights_are_those_of_the_model_and_all_that_is_not_read_is_said(weigh: PoolingWeightsPipeline):
    found = weigh(LONG)
    assert [len(found.sentences), found.left_out] == [3, 2]
    assert sum(one.weight for one in found.sentences) == pytest.approx(1)
    texts = [''.join(word.text for word in one.words if word.kind != SPECIAL) for one in found.sentences]
    assert texts == ['The film was very, very good and a story we saw.', 'We saw it.', 'A bad story.']
    first = found.sentences[0].words
    assert [word.text for word in first if not word.kind] == ['The', 'film', 'was', 'very', ',', 'very', 'good', 'and']
    assert [word.text for word in first if word.kind == UNREAD] == [' a story we saw.']
    assert {word.text for word in first if word.kind == BETWEEN} == {' '}
    for one in found.sentences:
        assert sum(word.weight for word in one.words) == pytest.approx(1, abs=1e-5)
    [feature] = weigh.problem.encode([weigh.problem.example_from_python(LONG)])
    weights = weigh.weights(weigh.params, weigh.single_row_batch(feature))
    assert_close(np.array([one.weight for one in found.sentences]), np.asarray(weights['sentences'])[0])
    assert_close(np.array([word.weight for word in first if not word.kind]), np.asarray(weights['words'])[0, 0, 1:9])


def test_its_run_is_evaluated(run: Path):
    found = evaluate_workdir(run)
    assert np.isfinite(found['fine_tuning_loss']) and found['fine_tuning_weight'] == 7


def test_a_pipeline_reads_long_texts_whole_and_batches_change_nothing(run: Path, weigh: PoolingWeightsPipeline):
    classify = ea.pipeline('text-classification', run)
    texts = [LONG, 'A good film.', 'We saw it. It was bad.']
    together, alone = classify(texts), [classify(text) for text in texts]
    for left, right in zip(together, alone, strict=True):
        assert left['label'] == right['label'] and left['score'] == pytest.approx(right['score'], abs=1e-5)
    cut = ea.pipeline('text-classification', run, overlong='truncate')
    with pytest.warns(UserWarning, match='input: 1 of 1 rows have more than examples.sentences 3 sentences, or data'):
        shorter = cut(LONG)
    assert shorter['score'] == pytest.approx(weigh(LONG).answer['score'], abs=1e-5)
    assert shorter['score'] != pytest.approx(together[0]['score'], abs=1e-7)


def test_a_run_that_starts_from_it_has_its_head_and_its_parameters(run: Path, tmp_path: Path):
    values = sentence_values(tmp_path, **{'train.start_from': str(run)})
    values['model'], values['head'] = dict.fromkeys(values['model']), dict.fromkeys(values['head'])
    filled = fill_config(values)
    assert (filled.config.head.pooling, filled.config.head.sentence_layers) == ('attention', 1)
    started = build_run(filled.config, examples=filled.examples)
    params = InitialParams(filled.config, filled.pretrained).make_initial_state(started).params
    theirs = filled.pretrained.params()
    np.testing.assert_array_equal(params['sentences']['pooling']['query'], theirs['sentences']['pooling']['query'])
    np.testing.assert_array_equal(params['pooling']['query'], theirs['pooling']['query'])


def test_a_classifier_without_sentences_is_shown_as_one(tmp_path: Path):
    found = PoolingWeightsPipeline(write_checkpoint(tmp_path / 'made', 'classification'))('the dog sleeps')
    [sentence] = found.sentences
    assert sentence.weight == 1 and [word.weight for word in sentence.words if not word.kind] == [0, 0, 0]
    assert sentence.words[-1].kind == SPECIAL and sentence.words[-1].weight == 1  # [CLS] alone


def test_what_is_no_classifier_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match='was trained for .*text-classification needs'):
        PoolingWeightsPipeline(write_checkpoint(tmp_path / 'made', 'token_classification'))
