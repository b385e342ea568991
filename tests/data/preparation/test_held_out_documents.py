"""Tests that the held-out split depends only on the texts of the documents."""

import pytest

from efficient_attention.data.preparation.held_out_documents import (
    SingleDocumentError,
    document_hash,
    few_held_out_note,
    held_out_share_note,
    held_out_threshold,
    more_documents_advice,
    split_counts,
)

TEXTS = [f'document {number}' for number in range(4000)]
HASHES = [document_hash(text) for text in TEXTS]


def held_out(texts, share):
    threshold = held_out_threshold([document_hash(text) for text in texts], share)
    return {text for text in texts if document_hash(text) < threshold}


def test_an_image_hashes_as_its_bytes():
    assert document_hash(b'document 0') == document_hash('document 0') == HASHES[0]


def test_the_share_is_kept():
    for share in (0.02, 0.1, 0.5):
        expected = share * len(TEXTS)
        assert abs(len(held_out(TEXTS, share)) - expected) < 5 * (expected * (1 - share)) ** 0.5  # 5 deviations


def test_order_and_company_do_not_matter():
    chosen = held_out(TEXTS, 0.05)
    assert held_out(TEXTS[::-1], 0.05) == chosen
    assert held_out(TEXTS[:2000], 0.05) == chosen & set(TEXTS[:2000])
    assert chosen <= held_out(TEXTS, 0.1)  # A larger share contains the smaller one.


@pytest.mark.parametrize('share', [1e-9, 0.02, 0.5, 0.98, 1 - 1e-9])
def test_both_splits_of_a_small_corpus_get_a_document(share):
    for count in (2, 3, 10):
        for start in range(0, 300, count):
            assert 0 < len(held_out(TEXTS[start : start + count], share)) < count


def test_small_corpora_hold_out_the_smallest_hash():
    texts = TEXTS[:5]
    assert held_out(texts, 1e-9) == {min(texts, key=document_hash)}
    assert set(texts) - held_out(texts, 1 - 1e-9) == {max(texts, key=document_hash)}


def test_nothing_and_everything_can_be_held_out():
    assert not held_out(TEXTS[:3], 0)
    assert held_out(TEXTS[:3], 1) == set(TEXTS[:3])
    assert not held_out(TEXTS[:1], 0)


@pytest.mark.parametrize('texts', [['one'], ['one', 'one', 'one']])
def test_one_text_cannot_be_split(texts):
    with pytest.raises(SingleDocumentError, match='^it is one document, so none is left to hold out$'):
        held_out(texts, 0.1)


def test_paragraphs_are_advised_where_files_are_documents():
    assert '#paragraphs' in more_documents_advice('text:a.txt')
    assert more_documents_advice('text:a.txt#paragraphs') == more_documents_advice('stdlib') == 'more documents'


@pytest.mark.parametrize('tokens', [(0, 0), (980, 20), (961, 39), (989, 11)])
def test_a_share_of_the_tokens_near_the_one_asked_for_is_no_news(tokens):
    assert held_out_share_note(0.02 if sum(tokens) else 0.0, (98, 2), tokens) == []


def test_a_share_of_the_tokens_far_from_the_one_asked_for_is_said():
    line = (
        'held out: 1 of 3 documents with 25.0% of the tokens; data.held_out=0.02 is a share of documents, '
        'and these are few or of very different lengths'
    )
    manifest = {'counts': {'train': {'documents': 2, 'tokens': 75}, 'held_out': {'documents': 1, 'tokens': 25}}}
    assert held_out_share_note(0.02, *split_counts(manifest)) == [line]
    assert held_out_share_note(0.5, (1, 1), (90, 10)) != []


def test_a_small_held_out_part_is_said():
    line = (
        'held out: 206 of 100,000 tokens, so few that a score on them is partly chance; '
        'raise data.held_out, now 0.002, or give more text'
    )
    assert few_held_out_note(0.002, (99_794, 206)) == [line]
    assert few_held_out_note(0.1, (90_000, 10_000)) == few_held_out_note(0.0, (90_000, 0)) == []
