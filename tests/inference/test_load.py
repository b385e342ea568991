"""Tests of `ea.load`: the class of the model, its outputs, both directions of its tokenizer, and one-line errors."""

import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import efficient_attention as ea
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.inference.translator import open_translator
from tests.inference.test_generate import workdir_of
from tests.inference.test_text_to_text_pipeline import folder_of
from tests.inference.tiny_checkpoint import MODEL, write_checkpoint

pytestmark = pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
TEXTS = ['the old dog sleeps near', 'a red house']


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('classifier'), 'classification')


@pytest.fixture(scope='module')
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workdir_of(tmp_path_factory.mktemp('language_model'))


def test_an_encoder_gives_the_vectors_of_the_pipeline(folder: Path):
    loaded = ea.load(folder, ea.Encoder)
    tokens, segments = loaded.tokenizer.encode_batch(TEXTS)
    assert type(loaded.model) is ea.Encoder and loaded.config == MODEL and loaded.tokenizer.size == MODEL.vocab_size
    assert tokens.shape == (2, 7) and tokens.dtype == jnp.int32 and segments.sum(axis=1).tolist() == [7, 5]
    hidden = jax.device_get(nnx.jit(loaded.model)(tokens, segments))
    vectors = ea.pipeline('feature-extraction', folder)(TEXTS)
    for row, expected in zip(hidden, vectors, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, atol=2e-5)
    ids = loaded.tokenizer.encode(TEXTS[0])
    assert ids.tolist() == tokens[0].tolist() and loaded.tokenizer.decode(ids) == TEXTS[0]
    assert loaded.tokenizer.decode(tokens[1]) == TEXTS[1]


def test_a_decoder_gives_the_logits_of_the_generator(workdir: Path):
    loaded, generator = ea.load(str(workdir), ea.Decoder), TextGenerator(workdir)
    ids = loaded.tokenizer.encode('The old dog')
    logits_1LV = nnx.jit(loaded.model)(ids[None], np.ones((1, len(ids)), np.int32))
    assert type(loaded.model) is ea.Decoder and loaded.config == generator.config
    expected = ''.join(generator.beam_search('The old dog', max_tokens=1, beams=1)[0].text)
    best = jnp.where(generator.may_follow_V, logits_1LV[0, -1], -jnp.inf).argmax()
    assert 'The old dog' + loaded.tokenizer.decode([int(best)]) == expected
    assert loaded.tokenizer.decode(ids) == 'The old dog' and loaded.target_tokenizer is loaded.tokenizer


def test_an_encoder_decoder_gives_a_target_the_score_of_the_translator(tmp_path: Path):
    path = folder_of('t5_1', tmp_path / 't5')
    [[found]] = open_translator(path, decoding={'beams': 1, 'max_tokens': 4, 'min_tokens': 3, 'alpha': 0.0})(['w3 w4'])
    loaded = ea.load(path, ea.EncoderDecoder)
    tokens, segments = loaded.target_tokenizer.encode_batch([found.text])
    source = loaded.tokenizer.encode_batch(['w3 w4'])
    logits_1LV = nnx.jit(loaded.model)(*source, tokens[:, :-1], segments[:, :-1])
    scores_L = jnp.take_along_axis(jax.nn.log_softmax(logits_1LV[0]), tokens[0, 1:, None], axis=1)[:, 0]
    written = len(found.pieces)  # without an end symbol if the token limit ended the text
    assert type(loaded.model) is ea.EncoderDecoder and written >= 3
    assert float(scores_L[:written].sum()) == pytest.approx(found.score, abs=1e-4)


def test_targets_begin_with_the_start_symbol(tmp_path: Path):
    loaded = ea.load(folder_of('bart_1', tmp_path / 'bart'))
    tokens, segments = loaded.target_tokenizer.encode_batch(['w3 w4', 'w5'])
    assert tokens.tolist() == [[2, 0, 7, 8, 2], [2, 0, 9, 2, 1]] and segments[1].tolist() == [1, 1, 1, 1, 0]
    assert loaded.tokenizer.encode('w3 w4').tolist() == [0, 7, 8, 2]
    assert [loaded.target_tokenizer.decode(row) for row in tokens] == ['w3 w4', 'w5']
    assert loaded.tokenizer.decode([0, 7, 8, 2]) == 'w3 w4'


def test_what_cannot_be_loaded_is_one_line(folder: Path, workdir: Path, tmp_path: Path):
    for path, kind, line in [
        ('bert-base-uncased', None, 'bert-base-uncased is no folder; names of a hub are not downloaded: '),
        (folder, ea.Decoder, f'{folder} has a model of the class Encoder, and Decoder was asked for'),
        (workdir, ea.Encoder, f'{workdir} has a model of the class Decoder, and Encoder was asked for'),
    ]:
        with pytest.raises(ea.InputError, match=f'^{re.escape(line)}'):
            ea.load(path, kind)
    with pytest.raises(ea.InputError, match='there is no checkpoint of step 7 in '):
        ea.load(workdir, checkpoint='7')
    shutil.copytree(folder, tmp_path / 'bare')
    for file in ('vocab.txt', *(path.name for path in folder.glob('seal-*'))):
        (tmp_path / 'bare' / file).unlink()
    with pytest.raises(ea.InputError, match='no tokenizer there'):
        ea.load(tmp_path / 'bare')


def test_bad_texts_are_named(folder: Path):
    tokenizer = ea.load(folder).tokenizer
    with pytest.raises(ea.InputError, match='^item 2 of 2: the text has 28 tokens; the model has 24 positions$'):
        tokenizer.encode_batch(['a dog', 'dog ' * 26])
    with pytest.raises(ea.InputError, match='^text is 3; it must be a text$'):
        tokenizer.encode(3)
    for texts in ('a dog', []):
        with pytest.raises(ea.InputError, match='^encode_batch needs a list of at least one text$'):
            tokenizer.encode_batch(texts)
