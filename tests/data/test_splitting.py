"""The held-out split depends on texts alone."""

import pytest

from efficient_attention.data.splitting import document_hash, held_out_threshold
from efficient_attention.errors import InputError

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
    assert chosen <= held_out(TEXTS, 0.1)  # a larger share keeps what was held out


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
    with pytest.raises(InputError, match='#paragraphs or data.held_out=0'):
        held_out(texts, 0.1)
