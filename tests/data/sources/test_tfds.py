"""Tests of rows from TensorFlow Datasets, and of the errors for a missing package or a bad row."""

import sys
import types

import pytest

from efficient_attention.data.sources.tfds import digest_texts, tfds_documents, tfds_values
from efficient_attention.errors import InputError


@pytest.fixture
def fake_tfds(monkeypatch):
    """Installs a stand-in for the optional package `tensorflow_datasets`, whose data sets are lists of rows."""
    sets = {('reviews', 'train'): [{'text': 'grëat'.encode(), 'label': 1}, {'text': 'bad', 'label': 0}]}

    def data_source(name, *, split):
        return sets[name, split]

    monkeypatch.setitem(sys.modules, 'tensorflow_datasets', types.SimpleNamespace(data_source=data_source))


@pytest.mark.usefixtures('fake_tfds')
def test_tfds_rows():
    assert list(tfds_documents('reviews', 'train', 'text')) == ['grëat', 'bad']
    with pytest.raises(InputError, match="tfds:reviews: no field 'body'; known: text, label"):
        list(tfds_documents('reviews', 'train', 'body'))
    with pytest.raises(InputError, match="field 'label' is a whole number, not a text"):
        list(tfds_documents('reviews', 'train', 'label'))
    with pytest.raises(InputError, match='tfds:nothing: KeyError'):
        list(tfds_documents('nothing', 'train', 'text'))
    assert list(tfds_values('reviews', 'train', 'label')) == [1, 0]


def test_a_missing_tfds_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
    with pytest.raises(InputError, match='tfds:reviews needs the package tensorflow_datasets'):
        list(tfds_documents('reviews', 'train', 'text'))


def test_the_digest_of_texts_depends_on_their_bounds_and_order():
    digests = {digest_texts(iter(texts)) for texts in (['a', 'b'], ['b', 'a'], ['ab'], ['ab', ''], [])}
    assert len(digests) == 5
    assert digest_texts(iter([b'a', b'b'])) == digest_texts(iter(['a', 'b']))
    assert digest_texts(iter(['a', 'b'])) == digest_texts(iter(['a', 'b']))
