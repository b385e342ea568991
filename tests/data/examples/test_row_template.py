"""Rows made from a template against the rows that the tokenizer itself makes."""

import numpy as np
import pytest

from efficient_attention.data.examples import row_template as token_rows
from efficient_attention.data.examples.row_template import row_template
from efficient_attention.data.examples.text_encoder import arrays_of
from tests.tasks.letters import letters, spaced_letters


@pytest.mark.parametrize('make', [letters, spaced_letters])
@pytest.mark.parametrize('texts', [['a bc'], ['abc', 'd e f'], ['a', 'b'], ['', 'ab']])
def test_a_row_is_the_tokenizers_own(texts, make):
    encoder = make()
    encodings = encoder.encode(texts)
    template = row_template(encoder, is_pair=len(texts) == 2)
    row, expected = template.row(*(one.ids for one in encodings)), arrays_of(encoder.row(*encodings))
    assert row.keys() == expected.keys()
    for name in row:
        np.testing.assert_array_equal(row[name], expected[name])
        assert row[name].dtype == np.int32
    assert template.added == encoder.added(is_pair=len(texts) == 2)
    np.testing.assert_array_equal(row['tokens'][template.start :][: len(encodings[0])], encodings[0].ids)


def test_ids_of_many_texts(monkeypatch):
    monkeypatch.setattr(token_rows, 'TEXTS_AT_ONCE', 2)
    encoder = letters()
    texts = ['ab', 'c', 'ab', '', 'd e', 'f']
    found = token_rows.ids_of(encoder, texts)
    assert [one.tolist() for one in found] == [one.ids for one in encoder.encode(texts)]
    assert found[0] is found[2] and {one.dtype for one in found} == {np.dtype(np.int32)}
    assert [one.ids for one in token_rows.encodings(encoder, texts)] == [one.ids for one in encoder.encode(texts)]
