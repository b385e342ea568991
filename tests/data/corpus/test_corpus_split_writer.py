"""Tests that a written corpus is read back unchanged, for all sizes of sentences, documents, records and shards."""

import numpy as np
import pytest
from array_record.python import array_record_module
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attention.data.corpus.corpus_split_writer import SplitWriter, token_dtype, write_manifest
from efficient_attention.data.corpus.prepared_corpus import open_corpus, shard_path
from efficient_attention.data.preparation.cache_folder import new_cache_folder
from efficient_attention.data.tokenizers.vocabulary import Vocabulary
from efficient_attention.errors import RunError

SIZE = 300


def vocabulary(size=SIZE):
    return Vocabulary(size, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), np.arange(size) % 2 == 1)


def write(folder, train, held_out=(), size=SIZE, **sizes):
    """Writes documents given as nested lists: a document has pieces, a piece has sentences, and a sentence has ids."""
    counts = {}
    for split, documents in (('train', train), ('held_out', held_out)):
        writer = SplitWriter(folder, split, size, **sizes)
        for number, document in enumerate(documents):
            for piece in document:
                lengths = np.array([len(sentence) for sentence in piece], np.int32)
                ids = np.array([id for sentence in piece for id in sentence], np.uint32)
                writer.add(number, lengths, ids)
        counts[split] = writer.close()
        if split == 'train':
            unigram_counts = writer.counts
    write_manifest(folder, vocabulary(size), unigram_counts, {'format': 1, 'fingerprint': 'f' * 64, 'counts': counts})
    return open_corpus(folder)


sentence = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=9)
document = st.lists(st.lists(sentence, max_size=6), min_size=1, max_size=3)


@settings(max_examples=25, deadline=None)
@given(documents=st.lists(document, max_size=8), record_tokens=st.integers(1, 30), shard_bytes=st.integers(1, 100))
def test_every_sentence_comes_back(tmp_path_factory, documents, record_tokens, shard_bytes):
    folder = tmp_path_factory.mktemp('corpus')
    prepared = write(folder, documents, record_tokens=record_tokens, shard_bytes=shard_bytes)
    flat = [[one for piece in pieces for one in piece] for pieces in documents]
    expected = [sentences for sentences in flat if sentences]  # The writer drops a document without sentences.
    corpus = prepared.train
    assert len(corpus) == len(expected) and len(prepared.held_out) == 0
    for number, sentences in enumerate(expected):
        assert [ids.tolist() for ids in corpus.sentences(number)] == sentences
    every = [id for sentences in expected for one in sentences for id in one]
    assert prepared.unigram_counts.tolist() == np.bincount(np.array(every, int), minlength=SIZE).tolist()
    counts = prepared.manifest['counts']['train']
    assert counts['tokens'] == len(every) and counts['documents'] == len(expected)
    assert counts['shards'] == len(list((folder / 'train').glob('*.arrayrecord')))


def test_a_long_document_is_many_records_of_whole_sentences(tmp_path):
    sentences = [[i % SIZE] * 50 for i in range(1000)]
    prepared = write(tmp_path, [[sentences], [[[7]]]])
    records = prepared.manifest['counts']['train']['records']
    assert records == 1 + -(-1000 // 41)  # 41 sentences of 50 tokens fill a record of 2048 tokens.
    reader = array_record_module.ArrayRecordReader(str(shard_path(tmp_path, 'train', 0)))
    assert reader.num_records() == records and 'group_size:1' in reader.writer_options_string()
    assert len(reader.read([0])[0]) == 41 * 50 * 2  # Ids below 65,536 take two bytes each.


@pytest.mark.parametrize('size, kind', [(5, '<u2'), (65_536, '<u2'), (65_537, '<u4'), (250_000, '<u4')])
def test_ids_are_stored_in_the_smallest_type_that_holds_them(tmp_path, size, kind):
    assert token_dtype(size) == kind
    prepared = write(tmp_path, [[[[0, size - 1]]]], size=size)
    (ids,) = prepared.train.sentences(0)
    assert ids.tolist() == [0, size - 1] and ids.dtype == np.int32


def test_the_digest_tells_documents_sentences_and_ids_apart(tmp_path):
    def digest(name, *pieces):
        (tmp_path / name).mkdir()
        writer = SplitWriter(tmp_path / name, 'train', SIZE)
        for number, lengths, ids in pieces:
            writer.add(number, np.array(lengths, np.int32), np.array(ids, np.uint32))
        writer.close()
        return writer.digest()

    one = digest('one', (0, [2, 1], [5, 6, 7]), (1, [1], [8]))
    assert digest('again', (0, [2, 1], [5, 6, 7]), (1, [1], [8])) == one
    assert digest('sentences', (0, [1, 2], [5, 6, 7]), (1, [1], [8])) != one
    assert digest('ids', (0, [2, 1], [5, 6, 9]), (1, [1], [8])) != one
    assert digest('documents', (0, [2, 1], [5, 6, 7]), (0, [1], [8])) != one


def test_a_disk_that_refuses_is_one_line(tmp_path, monkeypatch):
    class Full:
        def __init__(self, path, options):
            del path, options

        def write(self, record):
            raise RuntimeError(f'write() failed:\n {len(record)} bytes; No space left on device')

        close = write

    monkeypatch.setattr(array_record_module, 'ArrayRecordWriter', Full)
    line = rf'^{tmp_path}/corpus: cannot be written \(write\(\) failed: 6 bytes; No space left on device\)$'
    with pytest.raises(RunError, match=line), new_cache_folder(tmp_path / 'corpus') as partial:
        SplitWriter(partial, 'train', SIZE).add(0, np.array([3], np.int32), np.array([1, 2, 3], np.uint32))
    assert not list(tmp_path.iterdir())
