"""Tests that a released Marian's tokenizer gives the ids of the SentencePiece library and vocab.json combined."""

import functools
import io
import json
import random
from pathlib import Path

import pytest
import sentencepiece

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.marian import MarianTokenizer, is_marian, marian_vocabulary
from efficient_attention.errors import InputError
from tests.data.tokenizers.test_sentencepiece import PROBES, TEXTS

GERMAN = ('Straße über ☃ quick Öl dachs zwölf große Würste und schöne Mädchen', 'Ein anderer Text mit é äöüß') * 20
ENGLISH = tuple(TEXTS)
CODE = '>>fra<<'
MIXED = [f'{CODE} the quick', '>>deu<<the', '>>deu the', 'ß☃ the ß quick', 'x @@ y@@z', 'ßßß é☃☃ q', '']


@functools.cache
def model_of(texts: tuple[str, ...], **options) -> bytes:
    buffer = io.BytesIO()
    fixed = {'hard_vocab_limit': False, 'minloglevel': 2, 'eos_id': 0, 'unk_id': 1, 'bos_id': -1, 'pad_id': -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=buffer, **(fixed | {'vocab_size': 60} | options)
    )
    return buffer.getvalue()


def write_marian(folder: Path, size: int = 0) -> Path:
    """Writes source.spm, target.spm, and a vocab.json that lacks some pieces of both models.

    `size` is the number of entries of vocab.json; 0 keeps all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = {'source.spm': model_of(ENGLISH, user_defined_symbols='@@'), 'target.spm': model_of(GERMAN)}
    pieces: list[str] = []
    for name, data in models.items():
        (folder / name).write_bytes(data)
        library = sentencepiece.SentencePieceProcessor(model_proto=data)
        pieces += [library.id_to_piece(id) for id in range(2, len(library))]
    pieces = list(dict.fromkeys(pieces))
    random.Random(1).shuffle(pieces)
    kept = ['<unk>', '</s>', *pieces[10:], CODE, '<pad>']
    if size:
        kept = [*kept[: size - 2], *kept[-2:]]
    (folder / 'vocab.json').write_text(json.dumps({piece: id for id, piece in enumerate(kept)}), encoding='utf-8')
    return folder


def ids_of_library(folder: Path, name: str, text: str) -> list[int]:
    """Returns the ids of transformers' MarianTokenizer (5.23, `_tokenize` and `_convert_token_to_id`)."""
    known = json.loads((folder / 'vocab.json').read_text())
    code = text[: text.find('<<') + 2] if text.startswith('>>') and '<<' in text else ''
    library = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
    pieces = library.encode(text[len(code) :], out_type=str)
    return [known.get(piece, known['<unk>']) for piece in ([code] if code else []) + pieces]


@pytest.mark.parametrize('name', ['source.spm', 'target.spm'])
def test_the_ids_are_those_of_the_library_and_the_vocabulary(name: str, tmp_path: Path):
    folder, choose = write_marian(tmp_path), random.Random(0)
    letters = 'abcdefghij thequickbrown THEQ .,!?☃é12ßüöÖ@<>/s'
    texts = [*PROBES, *TEXTS, *MIXED, '</s> a', *(''.join(choose.choices(letters, k=40)) for _ in range(200))]
    found = MarianTokenizer(folder / name, marian_vocabulary(folder)).ids(texts)
    for text, ids in zip(texts, found, strict=True):
        assert ids == ids_of_library(folder, name, text), text
    unknown = 0
    assert any(unknown in ids for ids in found)


def test_pieces_of_both_sides_are_joined_to_a_text(tmp_path: Path):
    vocabulary = marian_vocabulary(write_marian(tmp_path))
    ids = MarianTokenizer(tmp_path / 'source.spm', vocabulary).ids(['the quick'])[0]
    assert vocabulary.decode([*ids, vocabulary.token_to_id('</s>')]) == vocabulary.decode(ids)
    special = {id for id, token in vocabulary.get_added_tokens_decoder().items() if token.special}
    assert special == {vocabulary.token_to_id(name) for name in ('</s>', '<unk>', '<pad>')}


def settings(**values):
    return lambda folder: (folder / 'tokenizer_config.json').write_text(json.dumps(values))


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        (lambda folder: (folder / 'vocab.json').write_text('{"a": '), 'vocab.json: not JSON'),
        (lambda folder: (folder / 'vocab.json').write_text('[1]'), 'vocab.json: it must give each piece its id'),
        (lambda folder: (folder / 'vocab.json').write_text('{"<unk>": 0}'), 'vocab.json: no </s> in its vocabulary'),
        (
            lambda folder: (folder / 'vocab.json').write_text('{"<unk>": 0, "</s>": 1, "<pad>": 3}'),
            'vocab.json: no piece has id 2',
        ),
        (lambda folder: (folder / 'vocab.json').unlink(), 'vocab.json: cannot be read'),
        (settings(separate_vocabs=True), 'separate_vocabs is True; read here: one vocabulary of both sides'),
        (
            settings(added_tokens_decoder={'70': {'content': '<new>'}}),
            'has the added token <new>, which vocab.json lac',
        ),
        (lambda folder: (folder / 'added_tokens.json').write_text('{"<new>": 70}'), 'has the added token <new>, which'),
    ],
)
def test_a_vocabulary_that_does_not_serve_is_one_line(damage, message: str, tmp_path: Path):
    damage(write_marian(tmp_path))
    with pytest.raises(InputError, match=message):
        marian_vocabulary(tmp_path)


def test_a_side_that_cannot_be_read_is_named(tmp_path: Path):
    vocabulary = marian_vocabulary(write_marian(tmp_path))
    (tmp_path / 'source.spm').write_bytes(b'none')
    (tmp_path / 'target.spm').unlink()
    for name, message in (('source.spm', 'not a SentencePiece model'), ('target.spm', 'cannot be read')):
        with pytest.raises(InputError, match=f'^tokenizer {tmp_path / name}: {message}'):
            MarianTokenizer(tmp_path / name, vocabulary).ids(['a'])
    (tmp_path / 'source.spm').write_bytes(model_of(ENGLISH, remove_extra_whitespaces=False))
    with pytest.raises(InputError, match='known: unigram models that merge repeated spaces into one'):
        MarianTokenizer(tmp_path / 'source.spm', vocabulary).ids(['a'])


def test_its_files_are_no_tokenizer_of_training(tmp_path: Path):
    write_marian(tmp_path)
    assert is_marian(tmp_path / 'source.spm') and not is_marian(tmp_path / 'spiece.model')
    with pytest.raises(InputError, match='source.spm: models with two SentencePiece files can only translate, not be'):
        load_tokenizer(tmp_path / 'source.spm', lowercase=False)


def test_an_unknown_token_is_named_and_a_known_language_code_is_not(tmp_path: Path):
    reader = MarianTokenizer(write_marian(tmp_path) / 'source.spm', marian_vocabulary(tmp_path))
    unknown = reader.vocabulary.token_to_id('<unk>')
    for text in (f'{CODE} \u65e5', '>>deu<< \u65e5'):
        ids, parts = reader.ids([text])[0], reader.pieces_with_text(text)
        named = {part for (_, part), id in zip(parts, ids, strict=True) if id == unknown}
        assert '\u65e5' in named and (text.split()[0] in named) == (CODE not in text)
