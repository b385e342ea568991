"""`ea.pipeline('translation')`: of a Hugging Face folder, in the form of its input."""

import json
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
    """A fixture with a tokenizer whose words are w0, w1, ..."""
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


@pytest.mark.parametrize(
    'options, said',
    [
        ({'beam': 3}, '^unknown options: beam; known: prefix, alignments, beams, best'),
        ({'beams': 0}, '^beams is 0'),
        ({'length': 9}, '^length is 9; of summarization it is max_tokens that can be chosen$'),
    ],
)
def test_bad_options_are_named(options: dict, said: str, tmp_path: Path):
    with pytest.raises(InputError, match=said):
        ea.pipeline('summarization', folder_of('t5_1', tmp_path / 't5'), **options)


def test_empty_texts_and_encoders_are_refused(tmp_path: Path):
    translate = ea.pipeline('text2text-generation', folder_of('t5_1', tmp_path / 't5'), **SMALL)
    with pytest.raises(InputError, match=r"^text 1 is ' '; it must be a text that is not empty$"):
        translate(['w3', ' '])
    encoder = next(path for path in sorted(FIXTURES.iterdir()) if path.name.startswith('bert'))
    shutil.copytree(encoder, tmp_path / 'bert')
    with pytest.raises(InputError, match='text from text needs an encoder-decoder'):
        ea.pipeline('translation', tmp_path / 'bert')
