"""Tests which parameters of a checkpoint a new run takes over, draws anew, or refuses."""

import dataclasses
import json
import logging
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.initial_params import (
    InitialParams,
    changed_attention_note,
    has_same_outputs,
    load_matching_params,
)
from efficient_attention.training.run import build_run
from efficient_attention.training.state import TrainState
from efficient_attention.workdir.config_file import read_config
from tests.inference.tiny_checkpoint import LABELS, random_text, write_checkpoint
from tests.training.tiny_fine_tuning import tiny_values
from tests.training.tiny_run import fresh_workdir, tiny_config

DRAWN = {
    'encoder': {'a': jnp.zeros((2, 3)), 'b': jnp.zeros(4)},
    'head': {'out': {'kernel': jnp.zeros((3, 2)), 'bias': jnp.zeros(2)}},
}
FOLDER = Path('somewhere')


def pretrained(**head: np.ndarray) -> dict:
    encoder = {'a': np.arange(6.0).reshape(2, 3), 'b': np.ones(4)}
    return {'encoder': encoder, 'masked_lm': {'bias': np.ones(7)}} | ({'head': {'out': head}} if head else {})


def test_what_fits_is_taken_and_the_rest_is_named(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        params = load_matching_params(DRAWN, pretrained(kernel=np.full((3, 2), 5.0), bias=np.ones(3)), FOLDER)
    np.testing.assert_array_equal(params['encoder']['a'], np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(params['head']['out']['kernel'], 5.0)
    np.testing.assert_array_equal(params['head']['out']['bias'], 0.0)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    drawn, left = (record.getMessage() for record in caplog.records)
    said = 'somewhere lacks these parameters or shapes, so they are freshly initialised'
    assert drawn == f'{said} (usual for a new output layer): head/out/bias'
    assert left == 'somewhere: not used, the model has no parameters of these names: masked_lm/bias'
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_matching_params(DRAWN | {'pairs': {'bias': jnp.zeros(2)}}, pretrained(kernel=np.ones((3, 2))), FOLDER)
    assert caplog.records[0].getMessage() == f'{said}: head/out/bias, pairs/bias'


def state_of(config: RunConfig) -> TrainState:
    return InitialParams(config).make_initial_state(build_run(config))


def test_pretraining_with_another_tokenizer_is_refused_and_with_the_checkpoint_s_goes_on(tmp_path: Path):
    start = fresh_workdir(tmp_path / 'first')
    fields = {'train.start_from': str(start)}
    other = tiny_config(tmp_path / 'second', **fields, **{'data.tokenizer': 'train:unigram'})
    with pytest.raises(InputError, match=rf'other pieces.*; add --config\.data\.tokenizer={start}/tokenizer\.json$'):
        state_of(other)
    same = tiny_config(tmp_path / 'second', **fields, **{'data.tokenizer': str(start / 'tokenizer.json')})
    assert int(state_of(same).step) == 0


@pytest.mark.parametrize(
    'own, message',
    [
        (np.ones(5), r'^train\.start_from somewhere: encoder/b has the shape \(5,\), not \(4,\)$'),
        (None, r'^train\.start_from somewhere: encoder/b is missing$'),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(own: np.ndarray | None, message: str):
    found = pretrained()
    found['encoder'] = {'a': found['encoder']['a']} | ({} if own is None else {'b': own})
    with pytest.raises(InputError, match=message):
        load_matching_params(DRAWN, found, FOLDER)


HEAD = 'decoder/head/dense/kernel'


@pytest.mark.parametrize(
    'missing, further, message',
    [
        (HEAD, '', f'{HEAD} is missing; model.tied_output and model.shared_table must be as the checkpoint has them'),
        ('', HEAD, f'the model has no place for {HEAD}; model.tied_output and model.shared_table must be as'),
        ('decoder/norm/scale', '', 'decoder/norm/scale is missing$'),
    ],
    ids=['head missing', 'head further', 'norm missing'],
)
def test_an_encoder_decoder_is_taken_whole(missing: str, further: str, message: str):
    def tree(*names: str) -> dict:
        return nest({name: np.ones(2) for name in names if name})

    drawn = jax.tree.map(jnp.asarray, tree('encoder/norm/scale', missing))
    with pytest.raises(InputError, match=f'^train.start_from {FOLDER}: {message}'):
        load_matching_params(drawn, tree('encoder/norm/scale', further), FOLDER, is_whole=True)


def nest(flat: dict[str, np.ndarray]) -> dict:
    nested: dict = {}
    for name, leaf in flat.items():
        *groups, last = name.split('/')
        group = nested
        for key in groups:
            group = group.setdefault(key, {})
        group[last] = leaf
    return nested


@pytest.mark.lenient_promotion
def test_a_fine_tuning_run_starts_from_a_pretraining_run(tmp_path: Path):
    pretrained = fresh_workdir(tmp_path / 'pretraining')
    values = tiny_values(tmp_path / 'tuning', **{'train.start_from': str(pretrained), 'examples.epochs': 0.1})
    values['data']['tokenizer'] = None
    values['model'] = dict.fromkeys(values['model'])
    config = fill_config(values).config
    assert config.data.tokenizer == str(pretrained / 'tokenizer.json')
    assert config.model == read_config(pretrained).model
    params, saved = state_of(config).params, open_pretrained(pretrained).params()
    for part in ('encoder', 'pooler'):
        jax.tree.map(np.testing.assert_array_equal, params[part], saved[part])
    drawn = dataclasses.replace(config, train=dataclasses.replace(config.train, start_random=True))
    kernel = state_of(drawn).params['pooler']['dense']['kernel']
    assert kernel.shape == params['pooler']['dense']['kernel'].shape
    assert not np.array_equal(kernel, params['pooler']['dense']['kernel'])


@pytest.mark.lenient_promotion
@pytest.mark.parametrize(
    'labels, is_named, is_taken',
    [
        (LABELS['classification'], True, True),
        (('a', 'b', 'c'), True, False),
        (LABELS['classification'], False, False),  # the checkpoint does not name its labels
    ],
)
def test_a_head_for_other_labels_is_drawn_anew(tmp_path: Path, labels: tuple, is_named: bool, is_taken: bool):
    checkpoint = write_checkpoint(tmp_path / 'made', 'classification', is_named=is_named)
    rows = [{'text': random_text(4, seed), 'label': labels[seed % 3]} for seed in range(6)]
    (tmp_path / 'rows.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows), encoding='utf-8')
    values = tiny_values(tmp_path / 'tuning', **{'train.start_from': str(checkpoint)})
    values['examples'] |= {'train': str(tmp_path / 'rows.jsonl'), 'dev': str(tmp_path / 'rows.jsonl')}
    values['data']['tokenizer'] = None
    values['model'], values['head'] = dict.fromkeys(values['model']), dict.fromkeys(values['head'])
    config = fill_config(values).config
    assert config.examples.labels == labels
    own = state_of(config).params['head']['out']['kernel']
    saved = open_pretrained(checkpoint).params()['head']['out']['kernel']
    assert np.array_equal(own, saved) is is_taken


@pytest.mark.parametrize(
    ('theirs', 'ours', 'is_told'),
    [
        ('full', 'full', False),
        ('full; window(3)', 'full; window(3)', False),
        ('full', 'full; full', False),
        ('full', 'window(3)', True),
        ('full; window(3)', 'full', True),
        ('favor(64)', 'favor(features=64)', False),
    ],
)
def test_layers_that_were_trained_with_other_attention_are_told(theirs: str, ours: str, is_told: bool):
    fields = {'width': 8, 'heads': 2, 'layers': 2, 'attention_dropout_rate': 0.0}
    before, after = (ModelConfig(attention=text, **fields) for text in (theirs, ours))
    told = f'its layers were trained with attention {theirs!r}, and go on with {ours!r}'
    assert changed_attention_note(before, after) == (told if is_told else '')


@pytest.mark.lenient_promotion
def test_a_run_tells_of_the_attention_that_its_start_was_trained_with(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    checkpoint = write_checkpoint(tmp_path / 'made', 'fill_mask')
    values = tiny_values(tmp_path / 'tuning', **{'train.start_from': str(checkpoint)})
    values['data']['tokenizer'] = None
    values['model'] = dict.fromkeys(values['model']) | {'attention': 'window(3)'}
    with caplog.at_level(logging.WARNING):
        state_of(fill_config(values).config)
    told = [record.getMessage() for record in caplog.records if 'were trained with' in record.getMessage()]
    where = f'train.start_from {checkpoint}'
    assert told == [f"{where}: its layers were trained with attention 'full', and go on with 'window(3)'"]


@pytest.mark.parametrize(
    ('before', 'after', 'is_same'),
    [
        ('question_answering', 'multi_hop', True),  # the heads of both tasks give a span
        ('multi_hop', 'question_answering', True),
        ('classification', 'classification', True),
        ('classification', 'regression', False),
        ('question_answering', 'token_classification', False),
    ],
)
def test_a_head_is_used_where_its_outputs_mean_the_same(before: str, after: str, is_same: bool):
    examples = types.SimpleNamespace(problem=after, labels=())
    pretrained = types.SimpleNamespace(problem=before, labels=())
    assert has_same_outputs(pretrained, types.SimpleNamespace(examples=examples)) == is_same
    pretrained.labels = ('other',)
    assert not has_same_outputs(pretrained, types.SimpleNamespace(examples=examples))
