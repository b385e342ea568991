"""Tests of 8-bit exports in the compressed-tensors format: codes reopen unchanged, and transformers loads them."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.interop.compact_export import quantize
from efficient_attention.interop.huggingface_export import quantized_params, save_pretrained
from efficient_attention.interop.int8_codes import flatten_by_path
from efficient_attention.interop.low_rank import low_rank
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.interop.shrink import shrink
from efficient_attention.models.fine_tuning import FineTuningModel
from tests.interop.folders import ARRAYS
from tests.interop.test_pretrained import PEERS, differences_in_transformers
from tests.interop.test_shrink import BATCH, HEAD, drawn, logits, logits_of, masked

DOWN = 'bert.encoder.layer.0.output.dense.weight'


def logits_of_codes(pretrained: Pretrained) -> np.ndarray:
    """Returns the logits of the model that computes with the stored codes."""

    def classifier(model: ModelConfig, rngs: nnx.Rngs) -> FineTuningModel:
        return FineTuningModel(model, HEAD, rngs=rngs)

    module = pretrained_module(functools.partial(classifier, pretrained.model), pretrained)
    return np.asarray(logits_of(*nnx.split(module)))


@pytest.mark.parametrize('float_layers', [(), ('feed_forward/down', 'embeddings')], ids=str)
@pytest.mark.parametrize('fields', [{}, {'sharing': 'all', 'embedding_width': 8, 'token_types': 2}], ids=str)
def test_codes_come_back_as_they_went_out(tmp_path: Path, fields: dict, float_layers: tuple[str, ...]):
    made = quantize(drawn(fields), 'int8', float_layers)
    save_pretrained(tmp_path / 'out', made, compresses=True)
    back = open_pretrained(tmp_path / 'out')
    assert (back.model.quantization, back.model.float_layers) == ('int8', float_layers)
    before, after = quantized_params(made), quantized_params(back)
    assert before.keys() == after.keys()
    for path, array in before.items():
        if '/kernel' in path or array.ndim < 2:
            np.testing.assert_array_equal(after[path], array, err_msg=path)
    tables = [flatten_by_path(one.params())['encoder/embeddings/token/embedding'] for one in (made, back)]
    np.testing.assert_array_equal(tables[1], tables[0].astype(np.float16))
    np.testing.assert_allclose(logits_of_codes(back), logits_of_codes(made), atol=0.15)
    save_pretrained(tmp_path / 'again', back, compresses=True)
    files = [(tmp_path / name / 'model.safetensors').read_bytes() for name in ('out', 'again')]
    assert files[0] == files[1]


def test_an_export_in_floats_has_no_word_of_them(tmp_path: Path):
    save_pretrained(tmp_path / 'out', quantize(drawn({}), 'int8'), compresses=True)
    stored = load_file(tmp_path / 'out' / 'model.safetensors')
    assert stored[DOWN].dtype == np.int8 and stored[f'{DOWN}_scale'].shape == (16, 1)
    assert stored['classifier.weight'].dtype == np.float32
    save_pretrained(tmp_path / 'floats', open_pretrained(tmp_path / 'out'))
    assert 'quantization_config' not in json.loads((tmp_path / 'floats' / 'config.json').read_text())
    floats = load_file(tmp_path / 'floats' / 'model.safetensors')
    np.testing.assert_array_equal(floats[DOWN], stored[DOWN] * stored[f'{DOWN}_scale'])


@pytest.mark.parametrize(
    'made, message',
    [
        (lambda: drawn({}), "model.quantization is 'none'"),
        (lambda: quantize(drawn({}), 'int8_weights'), "model.quantization is 'int8_weights'"),
        (
            lambda: quantize(shrink(masked(drawn({}))), 'int8'),
            'layers of different sizes have an 8-bit form only in the compact export',
        ),
        (lambda: quantize(low_rank(drawn({}), ranks=('up=4',)), 'int8'), 'factored kernels and layers'),
        (lambda: quantize(drawn({}), 'int8', ('stack', 'pooler')), 'float_layers stack, pooler leaves no kernel to ro'),
    ],
    ids=['float', 'weights', 'shrunk', 'low rank', 'tables'],
)
def test_what_has_no_such_form_is_one_line(tmp_path: Path, made, message: str):
    with pytest.raises(InputError, match=message):
        save_pretrained(tmp_path / 'out', made(), compresses=True)
    assert not (tmp_path / 'out').exists()


def changed(folder: Path, tensors: dict | None = None, keys: dict | None = None) -> Pretrained:
    """Opens an export in which some tensors and config keys are replaced, or removed if their value is None."""
    save_pretrained(folder, quantize(drawn({}), 'int8'), compresses=True)
    for seal in folder.glob('*seal*'):
        seal.unlink()
    stored = load_file(folder / 'model.safetensors') | (tensors or {})
    save_file({name: array for name, array in stored.items() if array is not None}, folder / 'model.safetensors')
    values = json.loads((folder / 'config.json').read_text()) | (keys or {})
    (folder / 'config.json').write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return open_pretrained(folder)


@pytest.mark.parametrize(
    'tensors, message',
    [
        ({f'{DOWN}_scale': None}, f'{DOWN} holds I8, no floating-point numbers and no {DOWN}_scale'),
        ({f'{DOWN}_scale': np.ones((3, 1), np.float32)}, r'read here: I8 with \[16, 1\]'),
        ({DOWN: np.ones((16, 24), np.float32)}, r'holds F32 with .*weight_scale \[16, 1\]; read here: I8'),
        ({f'{DOWN}_scale': np.full((16, 1), np.nan, np.float32)}, 'holds numbers that are not finite'),
    ],
    ids=['no scale', 'another shape', 'floats', 'not finite'],
)
def test_codes_without_a_scale_that_fits_are_one_line(tmp_path: Path, tensors: dict, message: str):
    found = changed(tmp_path / 'out', tensors)
    with pytest.raises(InputError, match=message):
        found.params()


@pytest.mark.parametrize(
    'keys, message',
    [
        ({'quantization_config': {'quant_method': 'gptq'}}, "quantization_config is of 'gptq'; read here: only"),
        ({'efficient_attention': None}, "quantization_config is of 'compressed-tensors'; read here: only"),
    ],
    ids=['another', 'foreign'],
)
def test_other_forms_are_one_line(tmp_path: Path, keys: dict, message: str):
    with pytest.raises(InputError, match=message):
        changed(tmp_path / 'out', keys=keys)


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason='needs transformers, see `make peers`')
def test_transformers_loads_them_and_agrees(tmp_path: Path):
    """transformers agrees to rounding in floats, and less exactly with rounded inputs.

    Some inputs round to another code, and codes are coarse in narrow layers.
    """
    limits = {}
    for fields in ({'token_types': 2}, {'sharing': 'all', 'embedding_width': 8, 'token_types': 2}):
        made = quantize(drawn(fields), 'int8')
        for limit in (0.15, 1e-5):
            folder = tmp_path / str(len(limits))
            save_pretrained(folder, made, compresses=True)
            back = open_pretrained(folder)
            floats = dataclasses.replace(back, codes=None, model=dataclasses.replace(back.model, quantization='none'))
            found = logits(floats) if limit == 1e-5 else logits_of_codes(back)
            inputs = {'input_ids': np.asarray(BATCH['tokens']), 'attention_mask': np.asarray(BATCH['segments'])}
            arrays = {f'input/{name}': array.astype(np.int32) for name, array in inputs.items()}
            save_file(arrays | {'output/ForSequenceClassification/logits': found}, folder / ARRAYS)
            (folder / 'ending').write_text('ForSequenceClassification')
            if limit == 1e-5:
                (folder / 'as_floats').touch()
            limits[str(folder)] = limit
    differences = differences_in_transformers(list(limits))
    assert differences.keys() == limits.keys()
    assert not {name: found for name, found in differences.items() if not found < limits[name]}
