"""Tests of pairs of passages: no overlap, no document in two splits, and the ends of long documents are skipped."""

import hashlib

import numpy as np
import pytest

from efficient_attention.data.arena.dataset_interface import SPLITS
from efficient_attention.data.arena.same_document_passages import (
    LONG,
    PassagePairSampler,
    document_bytes,
    passage_pair_sampler,
)
from efficient_attention.errors import InputError

FIRST = {  # SHA-256 of the first hundred rows of each split, made from DOCUMENTS
    'train': '0c12c2f78bed3acb28fa235c273be96e649c56b7d0a2e7af5a8ff9c2a51ffc17',
    'dev': '07c318fa29e7feccddc3e0949ab2480de35a64becfe21614097d4bc3a1d93f49',
    'test': '0d9524cc07e5d58268c2b2a17b3fe1e5548325f2cc8bdfdd98ee12ca2bf9f475',
}
DOCUMENTS = [f'{number:05d}' * 40 for number in range(200)]  # Any passage identifies its document.


def passages(split: str, length: int = 50) -> PassagePairSampler:
    return passage_pair_sampler(DOCUMENTS, split, length, 'here')


@pytest.mark.parametrize('split', SPLITS)
def test_rows(split: str):
    found = passages(split)
    rows = [found.row(0, split, index) for index in range(100)]
    for row in rows:
        assert [len(text) for text in row.texts] == [50, 50]
        kinds = {frozenset(bytes(text.astype(np.uint8)).decode()) for text in row.texts}
        names = [document_of(text) for text in row.texts]
        assert (names[0] == names[1]) == bool(row.label), kinds
    content = b''.join(
        b''.join(text.astype('<u2').tobytes() for text in row.texts) + bytes([row.label]) for row in rows
    )
    assert hashlib.sha256(content).hexdigest() == FIRST[split]
    labels = sum(row.label for row in rows)
    assert abs(labels - 50) < 3 * 5


def document_of(text: np.ndarray) -> str:
    """Returns the document of a 50-byte passage. A document repeats its five digits; a passage may start anywhere."""
    period = bytes(text[:5].astype(np.uint8)).decode()
    turns = {period[turn:] + period[:turn] for turn in range(5)}
    return next(
        document
        for document in DOCUMENTS
        if document[:5] in turns and bytes(text.astype(np.uint8)) in document.encode()
    )


def test_two_passages_of_a_document_do_not_overlap():
    document = np.arange(120, dtype=np.uint8)
    found = PassagePairSampler((document, document), 50)
    starts = []
    for index in range(300):
        row = found.row(0, 'train', index)
        first, second = sorted(int(text[0]) for text in row.texts)
        if row.label:
            starts.append((first, second))
            assert second >= first + 50
    firsts, seconds = zip(*starts, strict=True)
    assert min(firsts) == 0 and max(firsts) > 15 and min(seconds) < 55 and max(seconds) == 70


def test_a_text_that_comes_twice_is_one_document():
    assert len(passage_pair_sampler(2 * DOCUMENTS, 'train', 50, 'here').documents) == len(passages('train').documents)


def test_a_document_is_of_one_split():
    found = {split: {bytes(one) for one in passages(split).documents} for split in SPLITS}
    assert sum(map(len, found.values())) == len(DOCUMENTS) == len(set().union(*found.values()))


def test_the_ends_of_long_documents_are_passed_over():
    long = 'a' * (LONG // 20) + 'b' * (LONG - LONG // 10) + 'c' * (LONG // 20)
    assert set(document_bytes(long).tolist()) == {ord('b')} and len(document_bytes('abc')) == 3


def test_white_space_tells_no_document_from_another():
    lines = DOCUMENTS[0] + '\n' + DOCUMENTS[1] + '\r\n\n\t' + DOCUMENTS[2]
    assert bytes(document_bytes(lines)).decode() == ' '.join(DOCUMENTS[:3])
    found = passage_pair_sampler([DOCUMENTS[0].replace('0', '0 \n'), lines, *DOCUMENTS], 'train', 50, 'here')
    assert not any(b'\n' in bytes(one) or b'  ' in bytes(one) for one in found.documents)


def test_documents_that_are_too_short_or_too_few():
    with pytest.raises(InputError, match=r"^here: 0 documents of the split 'dev' have two passages of 101 bytes"):
        passages('dev', 101)
