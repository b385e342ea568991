"""Tests of tensor conversion: names of old and new releases, exact round trips, and lists of misfits."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.huggingface_tensor_names import FAMILIES
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.interop.tensor_conversion import (
    CheckpointHeads,
    export_tensors,
    list_checkpoint_tensors,
    tensor_names_by_plain_name,
)
from tests.interop.folders import FIXTURES, TEXT_TO_TEXT, copied, with_head
from tests.interop.folders import tensors_of as tensors_with_head

QUERY = 'encoder.layer.1.attention.self.query.weight'


def change(folder: Path, edit) -> Path:
    """Rewrites a folder's tensors with `edit`, and returns the folder."""
    tensors = load_file(folder / 'model.safetensors')
    save_file(edit(tensors), folder / 'model.safetensors')
    return folder


def params_of(folder: Path) -> dict:
    return open_pretrained(folder).params()


def test_old_names_with_and_without_prefix_are_read(tmp_path: Path):
    def old(tensors: dict) -> dict:
        changed = {name.replace('LayerNorm.weight', 'LayerNorm.gamma'): own for name, own in tensors.items()}
        changed = {name.replace('LayerNorm.bias', 'LayerNorm.beta'): own for name, own in changed.items()}
        return {f'bert.{name}': own for name, own in changed.items()}

    changed = params_of(change(copied('bert_1', tmp_path), old))
    assert jax.tree.all(jax.tree.map(np.array_equal, changed, params_of(FIXTURES / 'bert_1')))


def test_buffers_and_tied_copies_are_left_out(tmp_path: Path):
    folder = with_head('bert_1', 'ForMaskedLM', tmp_path)
    before = params_of(folder)

    def more(tensors: dict) -> dict:
        table = tensors['bert.embeddings.word_embeddings.weight']
        copies = {'cls.predictions.decoder.weight': table, 'bert.embeddings.position_ids': np.arange(24)}
        bias = tensors.pop('cls.predictions.bias')
        return tensors | copies | {'cls.predictions.decoder.bias': bias}

    after = params_of(change(folder, more))
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))


def test_an_untied_copy_is_refused(tmp_path: Path):
    folder = with_head('bert_1', 'ForMaskedLM', tmp_path)
    table = tensors_with_head('bert_1', 'ForMaskedLM')['bert.embeddings.word_embeddings.weight']
    change(folder, lambda tensors: tensors | {'cls.predictions.decoder.weight': table + 1})
    with pytest.raises(InputError, match='decoder.weight differs from bert.embeddings.word_embeddings.weight: untied'):
        params_of(folder)


HEADS = {  # tensors that a file may hold instead of the token table
    'bert_1': 'cls.predictions.decoder.weight',
    'big_bird_1': 'cls.predictions.decoder.weight',
    'albert_1': 'predictions.decoder.weight',
    'distilbert_1': 'vocab_projector.weight',
    'electra_1': 'generator_lm_head.weight',
    'roberta_1': 'lm_head.decoder.weight',
    'longformer_1': 'lm_head.decoder.weight',
}


@pytest.mark.parametrize('name', HEADS)
def test_a_tied_table_is_read_by_whichever_name_it_has(name: str, tmp_path: Path):
    """Of a tied table, `safetensors.torch.save_model` keeps only the alphabetically first name."""
    folder = with_head(name, 'ForMaskedLM', tmp_path)
    before = params_of(folder)

    def renamed(tensors: dict) -> dict:
        [table] = [own for own in tensors if own.endswith('embeddings.word_embeddings.weight')]
        return {HEADS[name] if own == table else own: tensors[own] for own in tensors}

    after = params_of(change(folder, renamed))
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))
    values = json.loads((folder / 'config.json').read_text())
    base = values['architectures'][0].removesuffix('ForMaskedLM') + 'Model'  # This class has no outputs over words.
    values |= {'tie_word_embeddings': False, 'architectures': [base]}
    (folder / 'config.json').write_text(json.dumps(values))
    with pytest.raises(
        InputError, match=f'missing; tie_word_embeddings is False, so {HEADS[name]} cannot stand for it'
    ):
        open_pretrained(folder)


@pytest.mark.parametrize('name', ['t5_1', 't5_2', 'bart_1', 'marian_1', 'pegasus_1'])
@pytest.mark.parametrize(
    'kept', ['encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight', 'both embed_tokens']
)
def test_a_shared_table_is_read_by_whichever_name_it_has(name: str, kept: str, tmp_path: Path):
    shutil.copytree(TEXT_TO_TEXT / name, tmp_path / 'in')
    before = open_pretrained(tmp_path / 'in')
    prefix = '' if name.startswith('t5') else 'model.'
    embeddings = [f'{prefix}{side}.embed_tokens.weight' for side in ('encoder', 'decoder')]

    def renamed(tensors: dict) -> dict:
        names = embeddings if kept.startswith('both') else [kept if kept == 'lm_head.weight' else f'{prefix}{kept}']
        table = tensors.pop(f'{prefix}shared.weight')
        return {own: table.copy() for own in names} | tensors

    change(tmp_path / 'in', renamed)
    after = open_pretrained(tmp_path / 'in')
    if (name, kept) == ('t5_2', 'lm_head.weight'):  # This file has a separate head and no table.
        assert after.model.tied_output
        return
    assert after.model == before.model
    assert jax.tree.all(jax.tree.map(np.array_equal, before.params(), after.params()))


@pytest.mark.parametrize(
    ('edit', 'message'),
    [
        (lambda own: {name: own[name] for name in own if name != QUERY}, rf'missing: {QUERY}$'),
        (lambda own: own | {'extra.weight': own[QUERY]}, 'unexpected: extra.weight$'),
        (lambda own: own | {QUERY: own[QUERY][:5]}, rf'of another shape: {QUERY} \(5, 16\), not \(16, 16\)$'),
        (
            lambda own: {name.replace('layer.1.', 'layer.2.'): own[name] for name in own},
            'missing: .*layer.1.* and 4 more; unexpected: .*layer.2.* and 4 more',
        ),
        (lambda own: own | {f'bert.{QUERY}': own[QUERY]}, f'{QUERY} .*are the same tensor under two names'),
    ],
)
def test_what_does_not_fit_is_listed_by_name(tmp_path: Path, edit, message: str):
    with pytest.raises(InputError, match=message):
        params_of(change(copied('bert_1', tmp_path), edit))


def test_layers_are_stacked_and_kernels_transposed():
    params, tensors = params_of(FIXTURES / 'bert_1'), load_file(FIXTURES / 'bert_1' / 'model.safetensors')
    kernel = params['encoder']['stack']['layers']['attention']['query']['kernel']
    assert kernel.shape == (2, 16, 16)
    np.testing.assert_array_equal(kernel[1], tensors[QUERY].T)


def test_groups_of_albert_are_read_group_by_group():
    params, tensors = params_of(FIXTURES / 'albert_1'), load_file(FIXTURES / 'albert_1' / 'model.safetensors')
    bias = params['encoder']['stack']['layers']['feed_forward']['up']['bias']
    assert len(bias) == 4
    np.testing.assert_array_equal(bias[3], tensors['encoder.albert_layer_groups.1.albert_layers.1.ffn.bias'])


@pytest.mark.parametrize('name', ['albert_1', 'electra_1', 'longformer_1', 'distilbert_1', 'bert_1', 'big_bird_1'])
def test_writing_is_the_inverse_of_reading(name: str):
    pretrained, family = open_pretrained(FIXTURES / name), FAMILIES[name.rpartition('_')[0]]
    params = pretrained.params()
    parts = CheckpointHeads(has_pooler='pooler' in params)
    written = export_tensors(family, list_checkpoint_tensors(family, pretrained.model, parts), params, is_bare=True)
    original = load_file(FIXTURES / name / 'model.safetensors')
    assert written.keys() == original.keys()
    for tensor in original:
        np.testing.assert_array_equal(written[tensor], original[tensor])


def test_parameters_that_do_not_fit_are_listed():
    family, model = FAMILIES['bert'], open_pretrained(FIXTURES / 'bert_1').model
    params = params_of(FIXTURES / 'bert_1')
    tensors = list_checkpoint_tensors(family, model, CheckpointHeads())
    with pytest.raises(InputError, match='pooler/dense/bias has no name in a bert checkpoint'):
        export_tensors(family, tensors, params, is_bare=True)
    with pytest.raises(InputError, match='encoder/embeddings/token/embedding is missing'):
        export_tensors(family, tensors, {'encoder': {}}, is_bare=True)
    rotary = dataclasses.replace(model, positions='none', relative='tupe')
    with pytest.raises(InputError, match='bert checkpoints have no place for encoder/stack/position_bias'):
        list_checkpoint_tensors(family, rotary, CheckpointHeads())


def test_the_names_of_a_full_size_are_those_that_the_world_knows():
    tensors = list_checkpoint_tensors(
        FAMILIES['bert'], ModelConfig(width=8, heads=2, layers=12), CheckpointHeads(has_masked_lm=True)
    )
    names = {name for tensor in tensors for name in tensor.names}
    assert '.encoder.layer.11.attention.output.LayerNorm.weight' in names and 'cls.predictions.bias' in names
    assert len(names) == 5 + 12 * 16 + 5


def test_only_dots_inside_the_prefix_count():
    assert tensor_names_by_plain_name(FAMILIES['bert'], ['bertha.weight', 'bert.pooler.dense.weight']) == {
        'bertha.weight': 'bertha.weight',
        'pooler.dense.weight': 'bert.pooler.dense.weight',
    }
