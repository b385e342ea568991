"""Tests that opening a prepared corpus checks it, and that every process and thread reads the same documents."""

import concurrent.futures
import json
import multiprocessing
import pickle

import numpy as np
import pytest

from efficient_attention.data.corpus import prepared_corpus as module
from efficient_attention.data.corpus.corpus_split_writer import SplitWriter, write_manifest
from efficient_attention.data.corpus.prepared_corpus import CorpusSplit, open_corpus
from efficient_attention.data.preparation.cache_folder import file_sha256, manifest_checksum
from efficient_attention.data.tokenizers.vocabulary import Vocabulary
from efficient_attention.errors import InputError

DOCUMENTS, SENTENCES, TOKENS = 6, 5, 700  # A record holds three sentences, so a document has two records.


def ids_of(split, document, sentence):
    start = {'train': 0, 'held_out': 9}[split] + 7 * document + sentence
    return np.arange(start, start + TOKENS) % 100


@pytest.fixture
def folder(tmp_path):
    for split in ('train', 'held_out'):
        writer = SplitWriter(tmp_path, split, 100)
        for document in range(DOCUMENTS):
            sentences = [ids_of(split, document, sentence) for sentence in range(SENTENCES)]
            writer.add(document, np.full(SENTENCES, TOKENS, np.int32), np.concatenate(sentences))
        writer.close()
    vocabulary = Vocabulary(100, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), np.arange(100) > 50)
    (tmp_path / 'tokenizer.json').write_text('{}')
    write_manifest(tmp_path, vocabulary, writer.counts, {'format': 1, 'fingerprint': 'f' * 64})
    return tmp_path


def test_what_a_prepared_corpus_offers(folder):
    prepared = open_corpus(folder)
    assert (prepared.train.split, prepared.held_out.split) == ('train', 'held_out')
    assert len(prepared.train) == DOCUMENTS
    assert prepared.train.sentence_lengths.dtype == np.int32
    assert prepared.train.document_starts.dtype == np.int64
    assert prepared.train.document_starts.tolist() == list(range(0, DOCUMENTS * SENTENCES + 1, SENTENCES))
    assert prepared.vocabulary.special == (0, 1, 2, 3, 4)
    assert prepared.vocabulary.is_continuation.dtype == bool and prepared.vocabulary.is_continuation.sum() == 49
    assert prepared.unigram_counts.dtype == np.int64
    assert prepared.tokenizer_file == folder / 'tokenizer.json' and prepared.fingerprint == 'f' * 64


@pytest.mark.parametrize('split', ['train', 'held_out'])
@pytest.mark.parametrize('bounds', [(), (0,), (2,), (1, 4), (2, 3), (3, 5), (4, 99), (0, 0), (9, 12), (-2, None)])
def test_a_range_of_sentences_is_a_slice_of_the_document(folder, split, bounds):
    corpus = CorpusSplit(folder, split)
    for document in range(DOCUMENTS):
        expected = [ids_of(split, document, sentence) for sentence in range(SENTENCES)]
        read = corpus.sentences(document, *bounds)
        start = bounds[0] if bounds else 0
        stop = bounds[1] if len(bounds) > 1 else None
        assert all(
            a.dtype == np.int32 and np.array_equal(a, b) for a, b in zip(read, expected[start:stop], strict=True)
        )


@pytest.mark.parametrize('document', [-1, DOCUMENTS, 10**6])
def test_no_such_document(folder, document):
    with pytest.raises(IndexError, match=f'document {document} of {DOCUMENTS}'):
        CorpusSplit(folder, 'train').sentences(document)


def checksum(corpus):
    return sum(int(ids.sum()) * (number + 1) for number in range(len(corpus)) for ids in corpus.sentences(number))


def test_it_pickles_small_and_reads_in_other_processes_and_threads(folder):
    corpus = CorpusSplit(folder, 'train')
    expected = checksum(corpus)  # This call opens the corpus's readers.
    data = pickle.dumps(corpus)
    assert len(data) < 1000 and checksum(pickle.loads(data)) == expected
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert set(threads.map(checksum, [corpus] * 8)) == {expected}
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as processes:
        assert processes.submit(checksum, corpus).result() == expected


def files_of(folder):
    return sorted(path for path in folder.rglob('*') if path.is_file())


def test_a_changed_byte_anywhere_is_found(folder):
    open_corpus(folder)
    assert len(files_of(folder)) == 14
    for path in files_of(folder):
        data = path.read_bytes()
        for position in (0, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            with pytest.raises(InputError) as caught:
                open_corpus(folder)
            message = str(caught.value)
            assert str(path) in message and f'delete the folder {folder}' in message and '\n' not in message
        path.write_bytes(data)
    open_corpus(folder)


def test_a_missing_or_shortened_file_is_found(folder):
    for path in files_of(folder):
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        if path.name != 'manifest.json':  # The manifest's last byte is only a line break.
            with pytest.raises(InputError, match='damaged'):
                open_corpus(folder)
        path.unlink()
        with pytest.raises(InputError) as caught:
            open_corpus(folder)
        assert path.name in str(caught.value) and 'missing' in str(caught.value)
        path.write_bytes(data)


def test_every_change_of_the_manifest_is_found(folder):
    path = folder / 'manifest.json'
    original = json.loads(path.read_text())
    for name in original:
        path.write_text(json.dumps(original | {name: 'changed'} if name != 'format' else original | {name: 99}))
        with pytest.raises(InputError, match='format 99, this version reads 1' if name == 'format' else 'checksum'):
            open_corpus(folder)
    for text in ['', '[]', '{}', 'null', '\xff']:
        path.write_text(text, encoding='latin-1')
        with pytest.raises(InputError, match='damaged'):
            open_corpus(folder)


def test_damage_after_opening_is_found_when_read(folder):
    prepared = open_corpus(folder)
    path = folder / 'train' / 'shard-00000.arrayrecord'
    data = bytearray(path.read_bytes())
    data[100:4000] = bytes(3900)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r'shard-00000\.arrayrecord: damaged .*delete the folder') as caught:
        checksum(prepared.train)
    assert '\n' not in str(caught.value)


def test_checksums():
    manifest = {'a': [1, 2], 'b': (3,)}
    assert manifest_checksum(manifest | {'checksum': 'x'}) == manifest_checksum({'b': [3], 'a': (1, 2)})
    assert manifest_checksum({'a': [2, 1], 'b': [3]}) != manifest_checksum(manifest)
    assert file_sha256(module.Path(__file__)) == file_sha256(module.Path(__file__))


def test_an_empty_split_opens(tmp_path):
    for split in ('train', 'held_out'):
        SplitWriter(tmp_path, split, 10).close()
    vocabulary = Vocabulary(10, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), np.zeros(10, bool))
    write_manifest(tmp_path, vocabulary, np.zeros(10, np.int64), {'format': 1, 'fingerprint': ''})
    prepared = open_corpus(tmp_path)
    assert len(prepared.train) == 0 and prepared.held_out.sentence_lengths.tolist() == []
