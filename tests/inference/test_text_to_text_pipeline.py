"""Tests of `ea.pipeline('translation')` on a Hugging Face folder: a text gives a text, and a list gives a list."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import efficient_attention as ea
from efficient_attention.errors import InputError
from tests.interop.folders import FIXTURES, TEXT_TO_TEXT

SPECIALS = {'t5_1': ['<pad>', '</s>', '<unk>'], 'bart_1': ['<s>', '<pad>', '</s>', '<unk>']}
SMALL = {'beams': 2, 'min_tokens': 2, 'max_tokens': 4, 'batch_size': 2}


def folder_of(name: str, folder: Path) -> Path:
    """Copies a fixture, adds a tokenizer whose words are w0, w1, ..., and returns the folder."""
    shutil.copytree(TEXT_TO_TEXT / name, folder)
    size = json.loads((folder / 'config.json').read_text())['vocab_size']
    pieces = [*SPECIALS[name], *(f'w{number}' for number in range(size - len(SPECIALS[name])))]
    tokenizer = Tokenizer(models.WordLevel({piece: id for id, piece in enumerate(pieces)}, unk_token='<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIALS[name])
    tokenizer.save(str(folder / 'tokenizer.json'))
    return folder


@pytest.mark.parametrize('name', SPECIALS)
def test_texts_of_a_hugging_face_folder(name: str, tmp_path: Path):
    translate = ea.pipeline('translation', folder_of(name, tmp_path / name), best=2, alignments=True, **SMALL)
    several = translate(['w3 w4 w5', 'w6'])
    assert len(several) == 2 and all(len(found) == 2 for found in several)
    one = translate('w6')
    assert [row['text'] for row in one] == [row['text'] for row in several[1]]
    np.testing.assert_allclose([row['score'] for row in one], [row['score'] for row in several[1]], rtol=1e-5)
    assert one[0]['score'] >= one[1]['score'] and all(word[0] == 'w' for word in one[0]['text'].split())
    begin = ['<s>'] if name == 'bart_1' else []
    assert one[0]['source_pieces'] == [*begin, 'w6', '</s>'] and one[0]['pieces'][: len(begin)] == begin
    weights = np.asarray(one[0]['alignment'])
    assert weights.shape == (len(one[0]['pieces']), len(begin) + 2)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-5)


def test_unknown_words_are_said(tmp_path: Path):
    translate = ea.pipeline('translation', folder_of('t5_1', tmp_path / 't5'), prefix='w3 ', **SMALL)
    with pytest.warns(UserWarning, match="^2 of 5 tokens of the sources are unknown to the tokenizer: 'neu', 'alt'$"):
        translate(['w4 neu', 'alt'])
    translate('w4 w5')  # A warning would fail the test.


@pytest.mark.parametrize(
    'options, said',
    [
        ({'beam': 3}, '^unknown options: beam; known: prefix, alignments, length, beams, best'),
        ({'beams': 0}, '^beams is 0'),
        ({'length': -1}, r'^length is -1; it must be'),
    ],
)
def test_bad_options_are_named(options: dict, said: str, tmp_path: Path):
    with pytest.raises(InputError, match=said):
        ea.pipeline('summarization', folder_of('t5_1', tmp_path / 't5'), **options)


def test_empty_texts_and_encoders_are_refused(tmp_path: Path):
    translate = ea.pipeline('text2text-generation', folder_of('t5_1', tmp_path / 't5'), **SMALL)
    with pytest.raises(InputError, match="^item 2 of 2: the text is ' '; it must not be empty$"):
        translate(['w3', ' '])
    for other in (None, 3, b'w3', {'text': 'w3'}):
        said = f'{other!r} (of type {type(other).__name__}) is no text; give a text or a list of texts'
        with pytest.raises(InputError, match=f'^{re.escape(said)}$'):
            translate(other)
    encoder = next(path for path in sorted(FIXTURES.iterdir()) if path.name.startswith('bert'))
    shutil.copytree(encoder, tmp_path / 'bert')
    with pytest.raises(InputError, match='text-to-text generation needs an encoder-decoder'):
        ea.pipeline('translation', tmp_path / 'bert')


def test_a_released_prefix_goes_before_texts_of_its_task(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = folder_of('t5_1', tmp_path / 't5')
    values = json.loads((folder / 'config.json').read_text())
    tasks = {'translation_en_to_de': {'prefix': 'w7 w8 ', 'num_beams': 4}}
    (folder / 'config.json').write_text(json.dumps(values | {'task_specific_params': tasks}))
    options = SMALL | {'alignments': True}
    named = ea.pipeline('translation_en_to_de', folder, **options)('w3')
    [unused] = [record.getMessage() for record in caplog.records]
    assert unused == f'{folder}: settings of translation_en_to_de in its config.json that are not used: num_beams=4'
    assert named['source_pieces'] == ['w7', 'w8', 'w3', '</s>']
    other = ea.pipeline('translation_en_to_de', folder, prefix='', **options)('w3')
    assert other['source_pieces'] == ['w3', '</s>']
    said = f"{folder}: its tasks have prefixes, and none is used: 'w7 w8 ' of translation_en_to_de"
    assert [record.getMessage() for record in caplog.records] == [unused, unused, said]


def test_longer_texts_are_read_where_that_is_asked_for(tmp_path: Path):
    """The option `length` may be any number for a T5, but not for a BART, which has a table of positions."""
    text = ' '.join(f'w{3 + number % 20}' for number in range(600))
    options = SMALL | {'alignments': True, 'beams': 1, 'ratio': 0.0, 'extra': 4}
    t5 = folder_of('t5_1', tmp_path / 't5')
    with pytest.warns(UserWarning, match='1 of 1 texts have more than 512 tokens and were cut'):
        assert len(ea.pipeline('summarization', t5, **options)(text)['source_pieces']) == 512
    assert len(ea.pipeline('summarization', t5, length=640, **options)(text)['source_pieces']) == 601
    with pytest.raises(InputError, match=r'^length is 640; it must be from 0 to 24$'):
        ea.pipeline('summarization', folder_of('bart_1', tmp_path / 'bart'), length=640)
