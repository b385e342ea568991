"""Tests that a split written in parts, in any order, equals a single writer's split byte for byte."""

import random
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.corpus.corpus_split_writer import SplitWriter
from efficient_attention.data.corpus.distributed_split_writer import (
    SECTIONS,
    DocumentSizes,
    EncodedDocument,
    digest_split,
    encode_document,
    shard_starts,
    write_shard,
    write_split_index,
)
from efficient_attention.data.corpus.encoding import encode_documents
from efficient_attention.data.tokenizers.training import train_tokenizer

SIZE, SHARD_BYTES = 300, 6000
WORDS = 'the a red old small river house dog king tree road falls sleeps runs sings waits near under over with'.split()


def made_up_documents() -> list[list[str]]:
    """Returns the texts of three files: one is empty; some texts have no word, one exceeds a section and a shard."""
    rng = np.random.default_rng(0)

    def text(sentences: int) -> str:
        return '\n\n'.join(' '.join(rng.choice(WORDS, rng.integers(3, 12))) + '.' for _ in range(sentences))

    return [[text(count) for count in rng.integers(0, 40, 20)], [], [text(3000), '', text(3)]]


@pytest.fixture(scope='module')
def files() -> list[list[str]]:
    return made_up_documents()


@pytest.fixture(scope='module')
def tokenizer_file(files, tmp_path_factory) -> str:
    texts = [text for file in files for text in file]
    path = tmp_path_factory.mktemp('tokenizer') / 'tokenizer.json'
    train_tokenizer('bpe', lambda: texts, vocab_size=SIZE, lowercase=True).save(str(path))
    return str(path)


def write_in_parts(folder: Path, files: list[list[str]], tokenizer_file: str) -> dict[str, int]:
    """Writes a split as several machines would: documents and shards in random order. Returns the counts."""
    parts: dict[tuple[int, int], EncodedDocument] = {}
    places = [(file, number) for file, texts in enumerate(files) for number in range(len(texts))]
    for place in random.Random(0).sample(places, len(places)):
        found = encode_document(files[place[0]][place[1]], tokenizer_file, SIZE)
        if found.sections:
            parts[place] = found
    sizes = [
        DocumentSizes(place, parts[place].sections, [len(record) for record in parts[place].records])
        for place in sorted(parts)
    ]
    starts = shard_starts(((document.place, document.record_bytes) for document in sizes), SHARD_BYTES)
    records = [
        ((*place, number), record) for place in sorted(parts) for number, record in enumerate(parts[place].records)
    ]
    (folder / 'train').mkdir(parents=True)
    for shard in reversed(range(len(starts))):
        end = starts[shard + 1] if shard + 1 < len(starts) else (len(files), 0, 0)
        write_shard(folder, 'train', shard, [record for place, record in records if starts[shard] <= place < end])
    (folder / 'train' / '.partial-elsewhere-1-ab').touch()  # A worker killed on another host left this file.
    first_of_file = {file: sum(map(len, files[:file])) for file in range(len(files))}
    return write_split_index(folder / 'train', sizes, starts, first_of_file)


def test_parts_make_the_files_of_one_writer(files, tokenizer_file, tmp_path):
    counts = write_in_parts(tmp_path / 'parts', files, tokenizer_file)
    digest, occurrences = digest_split(tmp_path / 'parts', 'train', SIZE)
    (tmp_path / 'whole').mkdir()
    writer = SplitWriter(tmp_path / 'whole', 'train', SIZE, shard_bytes=SHARD_BYTES)
    for encoded in encode_documents([text for file in files for text in file], tokenizer_file, 1):
        writer.add(encoded.document, encoded.lengths, encoded.ids)
    expected = writer.close()
    assert counts['shards'] > 2 and counts['records'] > counts['documents'] > 10
    assert counts | {'tokens': int(occurrences.sum())} == expected
    assert digest == writer.digest() and np.array_equal(occurrences, writer.counts)
    names = sorted(path.name for path in (tmp_path / 'whole' / 'train').iterdir())
    assert sorted(path.name for path in (tmp_path / 'parts' / 'train').iterdir()) == names
    for name in names:
        assert (tmp_path / 'parts/train' / name).read_bytes() == (tmp_path / 'whole/train' / name).read_bytes(), name


def test_a_split_of_nothing(tmp_path):
    (tmp_path / 'train').mkdir()
    counts = write_split_index(tmp_path / 'train', [], [], {})
    assert counts == {'documents': 0, 'sentences': 0, 'records': 0, 'shards': 0}
    digest, occurrences = digest_split(tmp_path, 'train', 9)
    (tmp_path / 'whole').mkdir()
    writer = SplitWriter(tmp_path / 'whole', 'train', 9)
    writer.close()
    assert digest == writer.digest() and not occurrences.any()
    assert not (tmp_path / 'train' / SECTIONS).exists()


def test_a_shard_begins_with_the_record_after_it_is_full():
    sizes = [((0, 0), [4, 4]), ((0, 2), [4]), ((1, 0), [9, 1])]
    assert shard_starts(sizes, 8) == [(0, 0, 0), (0, 2, 0), (1, 0, 1)]
