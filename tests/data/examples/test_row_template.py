"""Rows made from a template against the rows that the tokenizer itself makes."""

import numpy as np
import pytest

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
