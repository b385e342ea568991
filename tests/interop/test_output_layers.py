"""Tests of encoder-decoder output layers: tied or separate, scaled or not, with or without bias, and missing heads."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from efficient_attention.errors import InputError
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_pretrained
from tests.interop.folders import TEXT_TO_TEXT

HEAD, BIAS = 'lm_head.weight', 'final_logits_bias'
MT5 = {'model_type': 'mt5', 'architectures': ['MT5ForConditionalGeneration'], 'scale_decoder_outputs': 'left out'}


def changed(name: str, folder: Path, edit=lambda own: own, **values: Any) -> Path:
    """Writes and returns a fixture's folder with changed tensors and changed keys of its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(edit(load_file(TEXT_TO_TEXT / name / 'model.safetensors')), folder / 'model.safetensors')
    shutil.copyfile(TEXT_TO_TEXT / name / 'generation_config.json', folder / 'generation_config.json')
    keys = json.loads((TEXT_TO_TEXT / name / 'config.json').read_text()) | values
    kept = {key: value for key, value in keys.items() if value != 'left out'}
    (folder / 'config.json').write_text(json.dumps(kept))
    return folder


def without_head(own: dict) -> dict:
    return {name: own[name] for name in own if name != HEAD}


def tied(own: dict) -> dict:
    return own | {HEAD: own['shared.weight'].copy()}


@pytest.mark.parametrize(
    ('name', 'edit', 'expected'),
    [
        ('t5_1', lambda own: own, (True, True)),
        ('t5_1', tied, (True, True)),
        ('t5_2', lambda own: own, (False, False)),
        ('t5_2', tied, (True, False)),
        ('t5_2', without_head, (True, False)),  # transformers 5 does not store a tied head.
    ],
)
def test_heads_of_t5(name: str, edit, expected: tuple[bool, bool], tmp_path: Path):
    pretrained = open_pretrained(changed(name, tmp_path / 'in', edit))
    assert (pretrained.model.tied_output, pretrained.model.output_scale) == expected
    assert ('head' in pretrained.params()['decoder']) is not expected[0]
    save_pretrained(tmp_path / 'out', pretrained)
    again = open_pretrained(tmp_path / 'out')
    assert again.model == pretrained.model
    assert (HEAD in load_file(tmp_path / 'out' / 'model.safetensors')) is (name == 't5_2')


def test_a_head_that_is_missing_is_named(tmp_path: Path):
    old = {'scale_decoder_outputs': 'left out', 'tie_word_embeddings': False}
    with pytest.raises(InputError, match='the head lm_head.weight is missing; a model with unscaled outputs needs it'):
        open_pretrained(changed('t5_2', tmp_path / 'old', without_head, **old))
    with pytest.raises(InputError, match=r'the head lm_head.weight is missing'):
        open_pretrained(changed('t5_2', tmp_path / 'bare', without_head, architectures=['T5Model']))
    with pytest.raises(InputError, match=r'the head lm_head.weight is missing'):
        open_pretrained(changed('t5_2', tmp_path / 'mt5', without_head, **MT5 | {'tie_word_embeddings': False}))


@pytest.mark.parametrize(
    ('edit', 'keys', 'is_tied'),
    [
        (lambda own: own, {'tie_word_embeddings': False, 'feed_forward_proj': 'left out'}, False),  # as released
        (lambda own: own, {}, False),
        (tied, {}, True),
        (without_head, {}, True),  # transformers 5 stores no tied head, and does not scale the outputs either.
    ],
)
def test_an_mt5_is_a_t5_whose_outputs_are_not_scaled(edit, keys: dict[str, Any], is_tied: bool, tmp_path: Path):
    pretrained = open_pretrained(changed('t5_2', tmp_path / 'in', edit, **MT5 | keys))
    as_t5 = open_pretrained(changed('t5_2', tmp_path / 't5', edit))
    assert (pretrained.model, pretrained.model.tied_output) == (as_t5.model, is_tied)
    assert pretrained.model.feed_forward_gate and not pretrained.model.output_scale
    assert jax.tree.all(jax.tree.map(np.array_equal, pretrained.params(), as_t5.params()))
    save_pretrained(tmp_path / 'out', pretrained)
    written = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert {key: written[key] for key in ('model_type', 'architectures', 'tie_word_embeddings')} == {
        'model_type': 'mt5',
        'architectures': ['MT5ForConditionalGeneration'],
        'tie_word_embeddings': False,
    }
    assert HEAD in load_file(tmp_path / 'out' / 'model.safetensors')
    assert open_pretrained(tmp_path / 'out').model == pretrained.model


@pytest.mark.parametrize(('name', 'table'), [('t5_1', 'shared.weight'), ('bart_1', 'model.shared.weight')])
def test_a_head_that_is_tied_otherwise_is_refused(name: str, table: str, tmp_path: Path):
    folder = changed(name, tmp_path, lambda own: own | {HEAD: own[table] + 1})
    with pytest.raises(InputError, match=f'lm_head.weight differs from {table}: untied outputs'):
        open_pretrained(folder).params()


@pytest.mark.parametrize('name', ['bart_1', 'marian_1'])
def test_a_bias_of_words_is_a_parameter_where_it_is_not_zero(name: str, tmp_path: Path):
    values = np.arange(61, dtype=np.float32)[None]
    pretrained = open_pretrained(changed(name, tmp_path / 'in', lambda own: own | {BIAS: values}))
    assert pretrained.model.output_bias
    np.testing.assert_array_equal(pretrained.params()['decoder']['head']['bias'], values[0])
    save_pretrained(tmp_path / 'out', pretrained)
    np.testing.assert_array_equal(load_file(tmp_path / 'out' / 'model.safetensors')[BIAS], values)
    zeros = open_pretrained(changed(name, tmp_path / 'zeros', lambda own: own | {BIAS: 0 * values}))
    assert not zeros.model.output_bias and 'head' not in zeros.params()['decoder']


def test_copies_and_buffers_of_any_release_are_read(tmp_path: Path):
    def old(own: dict) -> dict:
        table = own['shared.weight']
        copies = {f'{stack}.embed_tokens.weight': table.copy() for stack in ('encoder', 'decoder')}
        bias = 'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight'
        return {name: own[name] for name in own if name != 'shared.weight'} | copies | {bias: np.ones((8, 3), 'f4')}

    before, after = open_pretrained(TEXT_TO_TEXT / 't5_1'), open_pretrained(changed('t5_1', tmp_path, old))
    np.testing.assert_array_equal(
        before.params()['decoder']['embeddings']['token']['embedding'],
        after.params()['decoder']['embeddings']['token']['embedding'],
    )


def test_the_sinusoids_of_pegasus_are_written_as_transformers_has_them(tmp_path: Path):
    save_pretrained(tmp_path / 'out', open_pretrained(TEXT_TO_TEXT / 'pegasus_1'))
    ours = load_file(tmp_path / 'out' / 'model.safetensors')
    theirs = load_file(TEXT_TO_TEXT / 'pegasus_1' / 'model.safetensors')
    assert ours.keys() == theirs.keys()
    for name in ('model.encoder.embed_positions.weight', 'model.decoder.embed_positions.weight'):
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5)
