"""Tests of compact folders: small files that reopen unchanged, for prediction, further training and export."""

import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import pretrained_module
from efficient_attention.interop.compact_export import quantize, save_compact
from efficient_attention.interop.encoder_adaptation import extend_positions
from efficient_attention.interop.huggingface_export import quantized_params, save_pretrained
from efficient_attention.interop.low_rank import low_rank
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.interop.shrink import parameter_count, shrink
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from tests.interop.folders import TEXT_TO_TEXT
from tests.interop.test_shrink import HEAD, drawn, logits, logits_of, masked
from tests.training.tiny_fine_tuning import tiny_config, tiny_values


def classifier(model: ModelConfig, rngs: nnx.Rngs) -> FineTuningModel:
    return FineTuningModel(model, HEAD, rngs=rngs)


def test_a_shrunk_model_with_codes_comes_back_as_it_was(tmp_path: Path):
    whole = masked(drawn({'vocab_size': 200}))
    for name, made in (('float', whole), ('shrunk', shrink(whole)), ('int8', quantize(shrink(whole), 'int8'))):
        save_compact(tmp_path / name, made)
        back = open_pretrained(tmp_path / name)
        assert (back.model, back.head, back.labels, back.problem) == (made.model, made.head, made.labels, made.problem)
        if name != 'int8':
            jax.tree.map(np.testing.assert_array_equal, back.params(), made.params())
            continue
        module = pretrained_module(functools.partial(classifier, made.model), back)
        assert module.pooler.dense.kernel[...].dtype == np.int8
        np.testing.assert_allclose(logits_of(*nnx.split(module)), logits(made), atol=0.05)
        codes, expected = quantized_params(back), quantized_params(made)
        assert codes.keys() == expected.keys() and codes['encoder/embeddings/token/embedding'].dtype == np.int8
        for path, array in expected.items():
            np.testing.assert_array_equal(codes[path], array, err_msg=path)
        save_compact(tmp_path / 'again', back)
        files = [(tmp_path / folder / 'model.safetensors').read_bytes() for folder in (name, 'again')]
        assert files[0] == files[1]
    sizes = [(tmp_path / name / 'model.safetensors').stat().st_size for name in ('float', 'shrunk', 'int8')]
    assert sizes[2] < 0.6 * sizes[1] < 0.6 * sizes[0] < 4 * parameter_count(whole.params())


@pytest.mark.lenient_promotion
def test_a_quantized_run_goes_out_and_training_goes_on_from_it(tmp_path: Path):
    steps = {'train.steps': 1, 'optimizer.warmup_steps': 0, 'examples.buckets': (16,)}
    fields = {'model.quantization': 'int8', 'model.norm': 'post', 'model.activation': 'gelu_erf'}
    train(tiny_config(tmp_path, **steps, **fields), tmp_path / 'run')
    run = open_pretrained(tmp_path / 'run')
    assert run.model.quantization == 'int8' and run.codes is None
    save_compact(tmp_path / 'small', run)
    save_pretrained(tmp_path / 'exported', run)
    assert open_pretrained(tmp_path / 'exported').model.quantization == 'int8'
    values = tiny_values(tmp_path, **steps, **{'train.start_from': str(tmp_path / 'small')})
    values['model'] = dict.fromkeys(values['model'])
    filled = fill_config(values)
    assert filled.config.model.quantization == 'int8'
    train(filled.config, tmp_path / 'on', examples=filled.examples, pretrained=filled.pretrained)


def test_a_masked_run_is_stored_as_bits(tmp_path: Path):
    whole = drawn({})
    params = jax.tree.map(np.copy, whole.params())
    kernel = params['encoder']['stack']['layers']['feed_forward']['up']['kernel']
    kernel[np.random.default_rng(0).random(kernel.shape) < 0.9] = 0.0
    save_compact(tmp_path / 'small', type(whole)(**vars(whole) | {'params': lambda: params}))
    values = json.loads((tmp_path / 'small' / 'config.json').read_text())
    assert values['sparse_shapes'] == {'encoder/stack/layers/feed_forward/up/kernel': [3, 16, 24]}
    jax.tree.map(np.testing.assert_array_equal, open_pretrained(tmp_path / 'small').params(), params)


@pytest.mark.parametrize(
    'change, message',
    [
        ({'version': 2}, 'config.json: version is 2; this project reads 1'),
        ({'sparse_shapes': {'a': ['x', 3]}}, r"sparse_shapes has \['x', 3\] for a; it must be a list of whole numbers"),
        ({'labels': 3}, 'config.json: labels is 3; it must be a list'),
        ({'model': {'width': 'x'}}, "config.json: model.width is 'x'; it must be a whole number"),
    ],
)
def test_a_damaged_config_is_one_line(tmp_path: Path, change: dict, message: str):
    save_compact(tmp_path / 'small', drawn({}))
    (tmp_path / 'small' / 'seal-0-of-1.sha256').unlink()
    path = tmp_path / 'small' / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message):
        open_pretrained(tmp_path / 'small')


def test_tensors_of_another_model_are_one_line(tmp_path: Path):
    save_compact(tmp_path / 'small', drawn({}))
    (tmp_path / 'small' / 'seal-0-of-1.sha256').unlink()
    path = tmp_path / 'small' / 'config.json'
    values = json.loads(path.read_text())
    values['model']['layers'] = 2
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r'its tensors do not match its config.json: .* has the shape \(3, 16'):
        open_pretrained(tmp_path / 'small').params()
    back = open_pretrained(tmp_path / 'small')
    with pytest.raises(InputError, match='its tensors do not match its config.json'):
        pretrained_module(functools.partial(classifier, back.model), back)


def test_a_small_folder_that_is_changed_goes_out_changed(tmp_path: Path):
    """A changed model is exported as changed, and not with the codes of the folder that it was opened from."""
    save_compact(tmp_path / 'small', masked(drawn({})))
    opened = open_pretrained(tmp_path / 'small')
    for name, made in (('shrunk', shrink(opened)), ('longer', extend_positions(opened, length=30))):
        save_compact(tmp_path / name, made)
        back = open_pretrained(tmp_path / name)
        assert back.model == made.model
        jax.tree.map(np.testing.assert_array_equal, back.params(), made.params())
    save_compact(tmp_path / 'int8', quantize(opened, 'int8'))
    rounded = open_pretrained(tmp_path / 'int8')
    assert quantize(rounded, 'int8') is rounded
    # Patterns name layers; these match only parameters or nothing.
    for pattern in ('no_such', 'kernel$', 'bias', 'norm'):
        with pytest.raises(InputError, match=f"float_layers has '{re.escape(pattern)}'"):
            quantize(opened, 'int8', (pattern,))
    with pytest.raises(InputError, match=r'model.float_layers \. leaves no layer to round: name fewer layers$'):
        quantize(opened, 'int8', ('.',))
    with pytest.raises(InputError, match="the model holds int8 codes already, with model.quantization 'int8'"):
        quantize(rounded, 'int8_weights')


def test_what_was_trained_with_rounding_keeps_what_it_rounds(tmp_path: Path):
    trained = drawn({'quantization': 'int8_weights', 'float_layers': ('down$', 'embeddings')})
    assert quantize(trained, 'int8_weights') is trained
    assert quantize(trained, 'int8_weights', ('down$', 'embeddings')) is trained
    for mode, layers in (('int8', ()), ('int8_weights', ('up$',))):
        with pytest.raises(
            InputError, match=r"the model was trained with model.quantization 'int8_weights' and .* down\$, emb"
        ):
            quantize(trained, mode, layers)
    save_compact(tmp_path / 'int8', trained)
    assert open_pretrained(tmp_path / 'int8').model == trained.model


def test_an_encoder_decoder_has_no_small_form(tmp_path: Path):
    whole = open_pretrained(TEXT_TO_TEXT / 'bart_1')
    for refuse in (lambda: save_compact(tmp_path / 'no', whole), lambda: quantize(whole, 'int8')):
        with pytest.raises(InputError, match='an encoder-decoder'):
            refuse()


def test_a_model_of_codes_is_not_changed_otherwise(tmp_path: Path):
    save_compact(tmp_path / 'int8', quantize(masked(drawn({})), 'int8'))
    rounded = open_pretrained(tmp_path / 'int8')
    for change in (shrink, functools.partial(low_rank, ranks=('up=4',))):
        with pytest.raises(
            InputError, match="the model holds int8 codes already, with model.quantization 'int8'; use the model"
        ):
            change(rounded)
    with pytest.raises(InputError, match=r"model.float_layers has '\(', which is no regular expression"):
        quantize(drawn({}), 'int8', ('(',))
