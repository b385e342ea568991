"""Tests of `ea.pipeline('attention')`: tokens, weights, queries and keys of encoders and language models."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inference import attention_pipeline
from efficient_attention.inspection.attention_page import attention_page_of_windows
from efficient_attention.models.layer_readings import LayerReading
from tests.inference import tiny_checkpoint
from tests.inference.test_generate import workdir_of
from tests.inference.tiny_checkpoint import MODEL, random_text, write_checkpoint
from tests.inspection.made_attention import read_page
from tests.shrunk_configs import write_images

pytestmark = pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
PAIR = 'the old dog sleeps', 'a king runs under the tree'


@pytest.fixture(scope='module')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('encoder'), 'fill_mask')


@pytest.fixture(scope='module')
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workdir_of(tmp_path_factory.mktemp('decoder'))


def softmax_of(layer: dict[str, Any], distances: range) -> np.ndarray:
    """Returns softmax over q k / sqrt(K), computed from a layer's arrays, where each query reads these distances."""
    queries, keys = layer['queries'].astype(np.float64), layer['keys'].astype(np.float64)
    places = np.arange(queries.shape[1])
    is_read = np.isin(places[:, None] - places, distances)
    logits = np.where(is_read, queries @ keys.swapaxes(1, 2) / np.sqrt(queries.shape[-1]), -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_a_pair_is_read_by_an_encoder(encoder: Path):
    [window] = ea.pipeline('attention', encoder)(PAIR)
    words = [text.split() for text in PAIR]
    assert window['tokens'] == window['key_tokens'] == ['[CLS]', *words[0], '[SEP]', *words[1], '[SEP]']
    assert window['texts'] == [None, 0, 0, 0, 0, None, 1, 1, 1, 1, 1, 1, None]
    [layer] = window['layers']
    assert (layer['layer'], layer['heads']) == (0, [0, 1])
    assert layer['weights'].shape == (2, 13, 13) and layer['queries'].shape == layer['keys'].shape == (2, 13, 8)
    np.testing.assert_allclose(layer['weights'], softmax_of(layer, range(-12, 13)), atol=1e-5)
    assert layer['scale'] == pytest.approx(8**-0.5) and layer['value_norms'].shape == (2, 13)


def test_chosen_heads_are_those_of_all(encoder: Path):
    [[window]] = ea.pipeline('attention', encoder)([PAIR[0]])
    [chosen] = ea.pipeline('attention', encoder, layers=[0], heads=[1])(PAIR[0])
    [whole], [one] = window['layers'], chosen['layers']
    assert one['heads'] == [1] and chosen['tokens'] == window['tokens']
    for name in ('weights', 'queries', 'keys', 'value_norms'):
        np.testing.assert_array_equal(one[name], whole[name][1:])


def test_a_long_text_is_read_in_windows_and_this_is_said(encoder: Path):
    text = random_text(30)
    with pytest.warns(UserWarning, match='^a text is read in 2 windows of up to 24 tokens$'):
        first, second = ea.pipeline('attention', encoder)(text)
    assert [*first['tokens'][1:-1], *second['tokens'][1:-1]] == text.split() and len(first['tokens']) == 24
    with pytest.warns(UserWarning, match='^a text is read in 3 windows of up to 12 tokens$'):
        assert len(ea.pipeline('attention', encoder, length=12)(text)) == 3
    with pytest.raises(InputError, match='^the pair has 40 tokens; a window has room for 21$'):
        ea.pipeline('attention', encoder)((random_text(20), random_text(20)))


def test_a_prompt_and_its_continuation_are_read_by_a_language_model(decoder: Path):
    [window] = ea.pipeline('attention', decoder)(('The old', ' dog'))
    assert ''.join(window['tokens']) == 'The old dog' and window['texts'] == [0] * 7 + [1] * 4
    for number, layer in enumerate(window['layers']):
        assert layer['layer'] == number and not np.triu(layer['weights'], 1).any()
        np.testing.assert_allclose(layer['weights'], softmax_of(layer, range(7)), atol=1e-5)


@pytest.mark.parametrize('kind', ['encoder', 'decoder'])
def test_long_windows_have_the_arrays_of_short_ones(kind: str, request: pytest.FixtureRequest):
    run, pair = ea.pipeline('attention', request.getfixturevalue(kind), heads=[1]), (PAIR[0], ' runs')
    [whole] = run(pair)
    with (
        mock.patch.object(attention_pipeline, 'AT_ONCE', 0),
        mock.patch.object(LayerReading.weight_blocks, '__defaults__', (5,)),
    ):
        [window] = run.windows(pair)
        for layer, expected in zip(window.pop('layers'), whole.pop('layers'), strict=True):
            for name in ('weights', 'queries', 'keys', 'value_norms'):
                np.testing.assert_allclose(layer.pop(name), expected.pop(name), atol=1e-5)
            assert layer.pop('scale') == pytest.approx(expected.pop('scale')) and layer == expected
        assert window == whole


@pytest.mark.parametrize('attention', ['causal', 'favor(16, causal=True)', 'lsh(4, 2, causal=True)'])
def test_a_page_joins_the_heads_of_a_long_window(tmp_path: Path, attention: str):
    fields = {'model.attention': attention, 'model.shared_qk': attention.startswith('lsh')}
    run = ea.pipeline('attention', workdir_of(tmp_path, **fields | {'model.attention_dropout_rate': 0.0}))
    [whole] = run(PAIR[1])
    [layer] = whole['layers']
    with mock.patch.object(attention_pipeline, 'AT_ONCE', 0), mock.patch.object(attention_pipeline, 'BYTES_AT_ONCE', 1):
        [window] = run.windows(PAIR[1])
        parts = [*window['layers']]
    assert [(part['layer'], part['heads']) for part in parts] == [(0, [0]), (0, [1])]
    for name in ('weights', 'queries', 'keys', 'value_norms', 'softmax_weights', 'softmax_errors'):
        if layer[name] is not None:
            np.testing.assert_allclose(np.concatenate([part[name] for part in parts]), layer[name], atol=1e-5)
    joined, expected = (
        read_page(attention_page_of_windows({**window, 'layers': layers})).content['windows'][0]['layers']
        for layers in (parts, [layer])
    )
    assert [one['layer'] for one in joined] == [one['layer'] for one in expected]
    for one, other in zip(joined, expected, strict=True):
        assert [head['head'] for head in one['heads']] == [0, 1]
        for found, wanted in zip(one['heads'], other['heads'], strict=True):
            assert found.keys() == wanted.keys() and found['edges'] == wanted['edges']
            assert found['top'] == pytest.approx(wanted['top'], rel=1e-4)


def test_texts_of_one_bucket_share_a_program(encoder: Path):
    run = ea.pipeline('attention', encoder)
    sizes = []
    for count in (9, 10, 11):
        run(random_text(count))
        sizes.append(attention_pipeline.compiled_arrays._cache_size())
    assert len({*sizes}) == 1


@pytest.mark.parametrize('problem', ['classification', 'question_answering'])
def test_global_tokens_are_those_of_fine_tuning(tmp_path: Path, problem: str):
    with mock.patch.object(tiny_checkpoint, 'MODEL', replace(MODEL, attention='window(1)', global_tokens=6)):
        path = write_checkpoint(tmp_path, problem)
    [window] = ea.pipeline('attention', path)(PAIR)
    is_global = window['layers'][0]['weights'][0][12] > 0  # the last token reads these, its neighbour and itself
    marked = 1 if problem == 'classification' else 5
    assert np.flatnonzero(is_global).tolist() == [*range(marked), 11, 12]


@pytest.fixture(scope='module')
def image_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Returns the folder of a run on images of 4 x 4 pixels, and the path of an image."""
    folder = tmp_path_factory.mktemp('images')
    fields = {'data.source': write_images(folder), 'data.units': 'pixels', 'data.image_shape': (4, 4, 3)}
    fields |= {'data.length': 48, 'model.vocab_size': 257, 'model.max_length': 48}
    return workdir_of(folder, **fields), str(folder / 'images' / '0.png')


def test_a_model_of_images_reads_an_image(image_model: tuple[Path, str]):
    path, image = image_model
    [window] = ea.pipeline('attention', path)(image)
    pixels = np.asarray(Image.open(image)).reshape(-1)
    assert window['tokens'] == ['<start>', *map(str, pixels[:-1])] and window['image_shape'] == (4, 12)
    assert window['texts'] == [None, *[0] * 47]
    for layer in window['layers']:
        np.testing.assert_allclose(layer['weights'], softmax_of(layer, range(7)), atol=1e-5)
    page = ea.attention_page(window['tokens'], window['layers'], texts=window['texts'], image_shape=(4, 12))
    assert read_page(page).content['windows'][0]['image'] == [4, 12]


@pytest.mark.parametrize(
    'given, said',
    [
        ('missing.png', 'missing.png: not an image that can be read'),
        (('a.png', 'b.png'), 'the model reads images; give it the path of one image'),
        ('WIDE', 'the image is 2 x 8 RGB'),
    ],
)
def test_bad_images_are_one_line(image_model: tuple[Path, str], tmp_path: Path, given: Any, said: str):
    if given == 'WIDE':
        given = str(tmp_path / 'wide.png')
        Image.fromarray(np.zeros((2, 8, 3), np.uint8)).save(given)
    with pytest.raises(InputError, match=said):
        ea.pipeline('attention', image_model[0])(given)
    with pytest.raises(InputError, match='^length is 12; the model reads whole images$'):
        ea.pipeline('attention', image_model[0], length=12)


def test_bytes_of_a_character_have_names(tmp_path: Path):
    run = ea.pipeline('attention', workdir_of(tmp_path, **{'data.units': 'bytes', 'model.vocab_size': 256}))
    [window] = run('the é')
    assert window['tokens'] == ['t', 'h', 'e', ' ', '<C3>', '<A9>']


def test_a_character_that_the_vocabulary_lacks_is_refused(decoder: Path):
    with pytest.raises(InputError, match="^the prompt has '中', which the vocabulary of the run lacks$"):
        ea.pipeline('attention', decoder)('The old 中')
    with pytest.raises(InputError, match='^the prompt is not UTF-8$'):
        ea.pipeline('attention', decoder)('The old \ud800')


def test_a_mechanism_without_queries_and_keys_has_none(tmp_path: Path):
    fields = {'model.attention': "synthesizer('random', 32, pattern=causal)"}
    [window] = ea.pipeline('attention', workdir_of(tmp_path, **fields))('The old dog')
    [layer] = window['layers']
    assert layer['queries'] is None and layer['keys'] is None
    np.testing.assert_allclose(layer['weights'].sum(-1), 1.0, atol=1e-5)


def test_favor_comes_with_the_softmax_that_it_estimates(tmp_path: Path):
    fields = {'model.attention': 'favor(64, causal=True)', 'model.attention_dropout_rate': 0.0}
    run = ea.pipeline('attention', workdir_of(tmp_path, **fields), heads=[1])
    [window] = run('The old dog')
    for layer in window['layers']:
        np.testing.assert_allclose(layer['softmax_weights'], softmax_of(layer, range(11)), atol=1e-5)
        apart = np.abs(layer['weights'] - layer['softmax_weights']).sum(-1).mean(-1) / 2
        np.testing.assert_allclose(layer['softmax_errors'], apart, rtol=1e-4)
        assert layer['softmax_errors'].shape == (1,) and 0 < layer['softmax_errors'][0] < 0.5
        assert layer['hash_rounds'] is None


def test_lsh_comes_with_its_rounds(tmp_path: Path):
    fields = {'model.attention': 'lsh(4, 2, causal=True)', 'model.shared_qk': True}
    run = ea.pipeline('attention', workdir_of(tmp_path, **fields), heads=[1])
    [window] = run('The old dog')
    for layer in window['layers']:
        rounds = layer['hash_rounds']
        assert rounds['buckets'].shape == rounds['chunks'].shape == (1, 2, 11) and rounds['chunk_count'] == 3
        back = (rounds['chunks'][..., :, None] - rounds['chunks'][..., None, :]) % 3
        is_found = (back <= 1).any(1) & np.tri(11, k=-1, dtype=bool)
        np.testing.assert_array_equal(np.tril(layer['weights'], -1) > 0, is_found)
        assert layer['softmax_weights'] is None is layer['softmax_errors']
    with mock.patch.object(attention_pipeline, 'AT_ONCE', 0):
        [other] = run('The old dog')
    for layer, expected in zip(other['layers'], window['layers'], strict=True):
        np.testing.assert_allclose(layer['weights'], expected['weights'], atol=1e-5)


@pytest.mark.parametrize('compressed', [0, 4])
def test_tokens_of_earlier_windows_are_keys_of_a_memory(tmp_path: Path, compressed: int):
    fields: dict[str, Any] = {'data.batches': 'streams', 'data.length': 8, 'model.attention': 'causal'}
    fields |= {'model.relative': 'transformer_xl', 'model.positions': 'none', 'model.memory_length': 8}
    if compressed:
        fields |= {'model.compression': 'mean', 'model.compressed_length': compressed, 'model.compression_rate': 4}
    run = ea.pipeline('attention', workdir_of(tmp_path, **fields))
    if compressed:
        with pytest.raises(InputError, match='^length is 6; it must be a multiple of model.compression_rate, 4$'):
            ea.pipeline('attention', tmp_path / 'workdir', length=6)
    text = 'The old dog sleeps near a'
    with pytest.warns(UserWarning, match='^a text is read in 4 windows of up to 8 tokens$'):
        windows = run(text)
    for number, window in enumerate(windows):
        names = [*text[max(0, number - 1) * 8 : number * 8], *text[number * 8 : number * 8 + 8]]
        slots = min(2 * max(number - 1, 0), 4) if compressed else 0
        assert window['key_tokens'] == ['<compressed>'] * slots + names
        for layer in window['layers']:
            size = len(window['tokens']), slots + len(names)
            assert layer['weights'].shape[1:] == size and layer['keys'].shape[1] == size[1]
            np.testing.assert_allclose(layer['weights'].sum(-1), 1.0, atol=1e-5)
            assert not np.triu(layer['weights'], size[1] - size[0] + 1).any()


@pytest.mark.parametrize(
    'options, given, said',
    [
        ({'layers': [1]}, '', '^there is no layer 1; the model has layers 0 to 0$'),
        ({'heads': [0, 2]}, '', '^there is no head 2; the model has heads 0 to 1$'),
        ({'heads': ['x']}, '', "^there is no head 'x'; the model has heads 0 to 1$"),
        ({'heads': [True]}, '', '^there is no head True; the model has heads 0 to 1$'),
        ({'layers': []}, '', r'^layers is \[\]; it must be a list of numbers$'),
        ({'layers': 0}, '', '^layers is 0; it must be a list of numbers$'),
        ({'length': -1}, '', '^length is -1; it must be at least 0$'),
        ({'length': 2}, '', '^length is 2; it must be at least 3 for an encoder$'),
        ({'length': 25}, '', '^length is 25; the model has 24 positions$'),
        ({'batch_size': 2}, '', '^attention reads one window at a time; leave out batch_size$'),
        ({'top': 2}, '', '^unknown options: top; known: layers, heads, length$'),
        ({}, ' ', "^the text is ' '; it must not be empty$"),
        ({}, ['the dog', 3], r'^item 2 of 2: 3 \(of type int\) is no text'),
        ({}, ('the dog', ''), "^the text is ''; it must not be empty$"),
    ],
)
def test_bad_requests_are_one_line(encoder: Path, options: dict, given: Any, said: str):
    with pytest.raises(InputError, match=said):
        ea.pipeline('attention', encoder, **options)(given)


def test_recurrent_layers_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="^model.cell is 'gru'; it must be 'none': recurrent layers have no attention"):
        ea.pipeline(
            'attention',
            workdir_of(tmp_path, **{'model.cell': 'gru', 'model.attention': 'causal', 'model.positions': 'none'}),
        )
