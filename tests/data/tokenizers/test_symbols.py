"""The symbols beside a text."""

import numpy as np

from efficient_attention.data.tokenizers.text_to_text import Symbols


def test_an_end_and_a_begin_where_there_is_one():
    t5, bart = Symbols(pad=0, end=1, start=0), Symbols(pad=1, end=2, start=2, begin=0)
    assert (t5.count, bart.count) == (1, 2)
    assert t5.around([7, 8]).tolist() == [7, 8, 1] and bart.around(np.array([7])).tolist() == [0, 7, 2]
    assert t5.around([]).dtype == np.int32
