"""Tests of `ea.pipeline('attribution')`: the scores add up to the change of the logit, for each label."""

from pathlib import Path

import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from tests.inference.tiny_checkpoint import random_text, write_checkpoint


@pytest.fixture(scope='module')
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('classifier'), 'classification')


def test_scores_add_up_to_the_change_of_the_logit(classifier: Path):
    text = 'the old dog sleeps'
    [window] = ea.pipeline('attribution', classifier)(text)
    predicted = ea.pipeline('text-classification', classifier)(text)
    assert window['tokens'] == ['[CLS]', *text.split(), '[SEP]'] and window['texts'] == [None, 0, 0, 0, 0, None]
    assert window['label'] == predicted['label']
    change = window['logit'] - window['baseline']
    assert window['scores'].sum() == pytest.approx(change, rel=0.01, abs=1e-5)
    assert np.abs(window['scores'][[0, -1]]).max() < 1e-9  # special tokens are the same in the baseline
    labels = predicted['scores']
    logits = [ea.pipeline('attribution', classifier, label=label)(text)[0]['logit'] for label in labels]
    shares = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(shares, list(labels.values()), atol=1e-5)


def test_the_logit_of_masks_is_the_baseline(classifier: Path):
    run = ea.pipeline('attribution', classifier)
    [row] = run.rows_of('the old dog')
    window = run.explain(row)
    named = ea.pipeline('attribution', classifier, label=window['label'])
    masked = named.explain(row._replace(ids_L=np.int32([row.ids_L[0], *[run.rows.encoder.mask] * 3, row.ids_L[4]])))
    assert masked['logit'] == pytest.approx(window['baseline'], abs=1e-5) and not masked['scores'].any()


def test_pairs_and_long_texts(classifier: Path):
    run = ea.pipeline('attribution', classifier)
    [[window]] = run([('the dog', 'a king runs')])
    assert window['texts'] == [None, 0, 0, None, 1, 1, 1, None]
    with pytest.warns(UserWarning, match='^a text is read in 2 windows of up to 24 tokens$'):
        assert len(run(random_text(30))) == 2


def test_bad_requests_are_one_line(classifier: Path, tmp_path: Path):
    with pytest.raises(InputError, match='^label is 1; it must be the name of a label, a text$'):
        ea.pipeline('attribution', classifier, label=1)
    with pytest.raises(InputError, match="^there is no label 'x'; "):
        ea.pipeline('attribution', classifier, label='x')
    with pytest.raises(InputError, match='^unknown options: top; known: label, length$'):
        ea.pipeline('attribution', classifier, top=2)
    with pytest.raises(InputError, match='^attribution reads one window at a time; leave out batch_size$'):
        ea.pipeline('attribution', classifier, batch_size=2)
    with pytest.raises(InputError, match=': attribution needs a classifier or a regression that reads whole texts$'):
        ea.pipeline('attribution', write_checkpoint(tmp_path, 'question_answering'))
    with pytest.raises(InputError, match="^the text is ''; it must not be empty$"):
        ea.pipeline('attribution', classifier)('')
