"""Tests that unusual texts (control characters, very long lines) pass from the source through the tokenizer to rows."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.corpus.masked_corpus_rows import MaskedCorpusRows
from efficient_attention.data.corpus.prepare import prepare_corpus
from efficient_attention.data.corpus.prepared_corpus import PreparedCorpus
from efficient_attention.data.sources.tables import read_table
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.inference.pipeline import pipeline
from tests.inference.tiny_checkpoint import WORDS, write_checkpoint

MANY = 200_000  # more than a 16-bit counter holds
ODD = {
    'NUL': 'a\0b dog\0',
    'emoji': 'dog 👩‍👩‍👧 🏳️‍🌈 \U0001f600' * 20,
    'right to left': 'שלום dog مرحبا \u202edog\u202c',
    'combining': 'd\u0301o\u0327g ' + 'a' + '\u0301' * 500,
    'private': '\ue000\U0010fffd dog \u2028 dog \x85 dog \ufeff',
    'one long word': 'dog' * 10_000,
    'controls': '\x1b[31m dog \x07\x08',
}


def prepared(folder: Path, text: str, length: int = 16) -> tuple[DataConfig, PreparedCorpus]:
    """Returns a config and a corpus of the text and some plain documents, with a vocabulary of a few words."""
    folder.mkdir(exist_ok=True)
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'dog', 'a', '##dog', '.']
    (folder / 'vocab.txt').write_text('\n'.join(pieces), encoding='utf-8')
    (folder / 'odd.txt').write_bytes(text.encode('utf-8'))
    for number in range(4):
        (folder / f'plain{number}.txt').write_text(f'a dog{" dog" * number}.\n')
    config = DataConfig(
        source=f'text:{folder}/odd.txt,{folder}/plain?.txt',
        tokenizer=str(folder / 'vocab.txt'),
        vocab_size=len(pieces),
        length=length,
        cache=str(folder / 'cache'),
        held_out=0,
    )
    return config, prepare_corpus(config)


def test_a_mark_and_the_ends_of_lines_change_nothing(tmp_path: Path):
    plain = 'One dog.\nIts tail.\n\nAnother dog.\n'
    for name, text in {'lf': plain, 'crlf': plain.replace('\n', '\r\n'), 'bom': f'\ufeff{plain}'}.items():
        (tmp_path / f'{name}.txt').write_bytes(text.encode('utf-8'))
        (tmp_path / f'{name}.csv').write_bytes(text.replace('One', 'text\nOne', 1).encode('utf-8'))
    sources = [
        [list(open_source(f'text:{tmp_path}/{name}.txt{kind}').documents()) for name in ('lf', 'crlf', 'bom')]
        for kind in ('', '#paragraphs')
    ]
    tables = [[row.values for row in read_table(str(tmp_path / f'{name}.csv'))] for name in ('lf', 'crlf', 'bom')]
    for texts in (*sources, tables):
        assert texts[0] == texts[1] == texts[2] and len(texts[0]) >= 1
    assert tables[0][0] == {'text': 'One dog.'}


@pytest.mark.parametrize('text', ODD.values(), ids=ODD)
def test_odd_texts_become_rows_of_known_ids(text: str, tmp_path: Path):
    config, corpus = prepared(tmp_path, text)
    ids = np.concatenate([np.concatenate(corpus.train.sentences(document)) for document in range(len(corpus.train))])
    assert len(corpus.train) == 5 and ids.min() >= 0 and ids.max() < corpus.vocabulary.size
    assert MaskedCorpusRows(corpus.train, corpus.vocabulary, config, 0).count >= 1


def test_a_document_of_many_tokens(tmp_path: Path):
    """A long document without a sentence end is cut into rows, and none of its tokens is lost."""
    config, corpus = prepared(tmp_path, 'dog ' * MANY, length=512)
    lengths = [sum(map(len, corpus.train.sentences(document))) for document in range(len(corpus.train))]
    assert max(lengths) == MANY
    rows = MaskedCorpusRows(corpus.train, corpus.vocabulary, config, 0)
    assert rows.count >= MANY // 512


def test_a_text_of_many_characters_for_a_language_model(tmp_path: Path):
    (tmp_path / 'long.txt').write_text('a dog 👍 ' * (MANY // 8), encoding='utf-8')
    config = DataConfig(
        source=f'text:{tmp_path}/long.txt',
        units='characters',
        cache=str(tmp_path / 'cache'),
        splitting='end',
        length=512,
    )
    text = prepare_text(config)
    assert sum(len(text.splits[split]) for split in ('train', 'held_out')) >= MANY
    assert text.units.size >= 6


def test_rows_of_one_word_and_of_the_longest_length(tmp_path: Path):
    """A classifier handles a one-word text, a text as long as a row, a longer text, and a text of unknown words."""
    path = write_checkpoint(tmp_path, 'classification')
    classify = pipeline('text-classification', path)
    longest = ' '.join((WORDS * 4)[: classify.length - 2])
    texts = ['dog', longest, f'{longest} {longest} dog', '👍', ODD['right to left']]
    scores = np.array([list(answer['scores'].values()) for answer in classify(texts)])
    assert scores.shape == (len(texts), 3) and np.isfinite(scores).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
