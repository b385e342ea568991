"""Tests of trained vocabularies: their layout, and that training again gives the same file."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.training import TRAINERS, train_tokenizer
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SPECIALS = {
    'wordpiece': ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
    'unigram': ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]'],
    'bpe': ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
}
SIZE = 400


def corpus(seed=0):
    """Returns texts with many ties: words of few syllables, all of similar frequency."""
    choose = random.Random(seed)
    syllables = ['ba', 'ru', 'ti', 'Mo', 'né', 'xe', 'qo', 'lu', 'sha', 'tri']
    words = [''.join(choose.choices(syllables, k=choose.randrange(1, 5))) for _ in range(400)]
    return [' '.join(choose.choices(words, k=30)) + '. Is it "so" (or 42)?' for _ in range(60)]


TEXTS = corpus()


def train(kind, **options):
    return train_tokenizer(kind, lambda: TEXTS, **({'vocab_size': SIZE, 'lowercase': True} | options))


def pieces_of(tokenizer):
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


@pytest.fixture(scope='module', params=sorted(TRAINERS))
def trained(request):
    return request.param, train(request.param)


def test_special_tokens_come_first_and_the_size_is_exact(trained):
    kind, tokenizer = trained
    assert pieces_of(tokenizer)[:5] == SPECIALS[kind]
    vocabulary = vocabulary_of(tokenizer, kind)
    assert vocabulary.size == SIZE and vocabulary.special == (0, 1, 2, 3, 4)
    assert (vocabulary.pad, vocabulary.unknown, vocabulary.cls, vocabulary.sep, vocabulary.mask) == (0, 1, 2, 3, 4)
    assert 0 < vocabulary.is_continuation.sum() < SIZE


def test_text_survives_and_nothing_is_unknown(trained):
    kind, tokenizer = trained
    for text in TEXTS[:10]:
        encoding = tokenizer.encode(text)
        assert 1 not in encoding.ids and encoding.ids[0] == 2 and encoding.ids[-1] == 3
        plain = text.lower().replace('é', 'e')
        assert ''.join(tokenizer.decode(encoding.ids).split()) == ''.join(plain.split())
        assert len(encoding.ids) < len(text) / 2  # The pieces are longer than letters.


def test_a_mask_in_a_text_is_one_token(trained):
    _, tokenizer = trained
    ids = tokenizer.encode('Is it [MASK] so?', add_special_tokens=False).ids
    assert ids.count(4) == 1
    without = tokenizer.encode('Is it', add_special_tokens=False).ids
    assert ids[: len(without)] == without and ids[len(without)] == 4  # No piece is left of the space before the mask.


def test_the_file_says_everything(trained, tmp_path):
    _, tokenizer = trained
    tokenizer.save(str(tmp_path / 'tokenizer.json'))
    loaded = load_tokenizer(tmp_path / 'tokenizer.json', lowercase=True)
    assert all(loaded.encode(text).ids == tokenizer.encode(text).ids for text in TEXTS)


def test_training_again_in_another_process_gives_the_same_files():
    """Three processes with different hash seeds train the same file of each kind; without our ordering the files mostly
    differ.
    """
    program = (
        'import hashlib, sys\n'
        f'sys.path.insert(0, {str(Path(__file__).parent)!r})\n'
        'from test_training import TRAINERS, train\n'
        'print([hashlib.sha256(train(kind).to_str().encode()).hexdigest() for kind in sorted(TRAINERS)])\n'
    )
    command = [sys.executable, '-c', program]
    runs = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    digests = {run.communicate()[0] for run in runs}
    assert all(run.returncode == 0 for run in runs) and len(digests) == 1


@pytest.mark.parametrize('kind', sorted(TRAINERS))
def test_cased_training_keeps_case_and_accents(kind):
    tokenizer = train(kind, lowercase=False)
    assert 'Mo' in tokenizer.decode(tokenizer.encode('Moné').ids)
    lowered = train(kind)
    assert lowered.encode('MONÉ').ids == lowered.encode('mone').ids
    assert tokenizer.encode('Moné').ids != tokenizer.encode('mone').ids


@pytest.mark.parametrize('kind', sorted(TRAINERS))
def test_a_small_corpus_fills_up_with_unused_pieces(kind):
    tokenizer = train_tokenizer(kind, lambda: ['a few words', 'a word'], vocab_size=500, lowercase=True)
    assert vocabulary_of(tokenizer, kind).size == 500
    names = [piece for piece in pieces_of(tokenizer) if piece.startswith('[unused')]
    assert names == [f'[unused{i}]' for i in range(len(names))] and len(names) > 100
    assert 1 not in tokenizer.encode('a few words').ids


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram'])
def test_rare_characters_are_unknown_and_take_no_piece(kind):
    texts = [*TEXTS, '☃'] * 3 + ['☂ and ⅷ']
    tokenizer = train_tokenizer(kind, lambda: texts, vocab_size=120, lowercase=True)
    assert '☂' not in ''.join(tokenizer.get_vocab())
    assert 1 in tokenizer.encode('☂').ids and 1 not in tokenizer.encode('baru').ids


def test_pieces_of_unigram_keep_letters_digits_and_signs_apart():
    learned = [piece for piece in pieces_of(train('unigram', vocab_size=300))[5:] if '[unused' not in piece]
    assert len(learned) > 100
    for piece in learned:
        word = piece.removeprefix('▁')
        kinds = {'letter' if c.isalpha() else 'digit' if c.isdigit() else 'sign' for c in word}
        assert len(kinds) <= 1, piece


def test_wordpiece_has_every_letter_as_start_and_as_continuation():
    vocabulary = train('wordpiece').get_vocab()
    letters = {c for text in TEXTS for c in text.lower().replace('é', 'e') if c.isalnum()}
    assert all(letter in vocabulary and f'##{letter}' in vocabulary for letter in letters)
    assert '##.' not in vocabulary  # Punctuation never continues a word.


@pytest.mark.parametrize('kind, size', [('bpe', 200), ('wordpiece', 4), ('unigram', 4)])
def test_a_vocabulary_too_small_is_refused(kind, size):
    with pytest.raises(InputError, match=f'data.vocab_size is {size}; .* is the least'):
        train(kind, vocab_size=size)


def test_an_unknown_kind_lists_the_known_ones():
    with pytest.raises(InputError, match='train:word; known: train:wordpiece, train:unigram, train:bpe'):
        train('word')
