"""Tests model cards: the hub's reader understands them, and they have the facts of the run and no others."""

import dataclasses
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from configs.lm.books_characters import get_config as characters_config
from configs.text_to_text.toy import get_config as reverse_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.interop.model_card import checkpoint_metrics, model_card, write_model_card
from efficient_attention.interop.pretrained import open_pretrained
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.training.tiny_run import fresh_workdir

METRICS = {'step': 20, 'loss': 3.25}


def test_a_folder_without_a_run_has_no_invented_facts(tmp_path: Path):
    model = open_pretrained(write_checkpoint(tmp_path, 'classification'))
    write_model_card(tmp_path, model, origin='somewhere')
    card = ModelCard.load(tmp_path / 'README.md')
    assert (card.data.license, card.data.pipeline_tag) == ('unknown', 'text-classification')
    assert card.data.eval_results is None and 'No metrics of these parameters are recorded.' in card.text
    assert 'does not record the training data' in card.text and 'bad, fair, good' in card.text
    assert 'at most 24 tokens' in card.text and '## Config' not in card.text


@pytest.mark.lenient_promotion  # building a run creates its optimizer
def test_a_run_names_its_data_config_and_metrics(tmp_path: Path):
    workdir = fresh_workdir(tmp_path, **{'checkpoint.best_metric': 'loss', 'train.seed': 7})
    model = open_pretrained(workdir)
    assert model.run is not None and checkpoint_metrics(workdir, model.run) == {}  # no step was evaluated
    text = model_card('mine', model, origin='runs/x step 0', license_name='apache-2.0', metrics=METRICS)
    card = ModelCard(text)
    [result] = card.data.eval_results
    assert (card.data.license, result.metric_type, result.metric_value) == ('apache-2.0', 'loss', 3.25)
    assert result.dataset_name == f'0.2 of {model.run.data.source}'
    assert '| loss | 3.25 |' in text and 'after step 20, with seed 7' in text and 'optimistic' in text
    assert f'on `{model.run.data.source}`' in text and '"best_metric": "loss"' in text
    pairs = from_dict(reverse_config('reverse').to_dict(), RunConfig)
    translator = dataclasses.replace(model, problem='text_to_text', run=pairs)
    text = model_card('mine', translator, origin='runs/x', metrics=METRICS)
    assert f'on `{pairs.pairs.train}`. Evaluated on {pairs.pairs.held_out}.' in text
    rounded = dataclasses.replace(model, model=dataclasses.replace(model.model, quantization='int8'))
    assert 'rounded to 8 bits' in model_card('mine', rounded, origin='runs/x')


@pytest.mark.lenient_promotion  # building a run creates its optimizer
def test_a_changed_model_does_not_claim_the_metrics_of_its_source(tmp_path: Path):
    model = open_pretrained(fresh_workdir(tmp_path))
    text = model_card('mine', model, origin='runs/x', metrics=METRICS, is_changed=True, is_native=True)
    card = ModelCard(text)
    assert card.data.eval_results is None and card.data.library_name == 'efficient-attention'
    assert 'The source checkpoint had, before the change: loss 3.25.' in text and '| loss |' not in text
    assert ModelCard(model_card('mine', model, origin='runs/x')).data.library_name == 'transformers'


@pytest.mark.lenient_promotion
def test_the_protocol_of_a_language_model_names_split_and_windows(tmp_path: Path):
    model = open_pretrained(fresh_workdir(tmp_path))
    values = characters_config().to_dict()
    values['eval'] |= {'split': 'test', 'context': 64, 'stride': 16}
    reader = dataclasses.replace(model, run=from_dict(values, RunConfig))
    text = model_card('mine', reader, origin='runs/x', metrics=METRICS)
    assert 'Split `test`, windows of 64 tokens, stride 16.' in text
    assert 'stride' not in model_card('mine', model, origin='runs/x', metrics=METRICS).partition('## Config')[0]
