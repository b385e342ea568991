"""Tests of the special ids added before and after the ids of a text."""

import numpy as np

from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds


def test_an_end_and_a_begin_where_there_is_one():
    t5, bart = SequenceSpecialIds(pad=0, end=1, start=0), SequenceSpecialIds(pad=1, end=2, start=2, begin=0)
    assert (t5.special_id_count, bart.special_id_count) == (1, 2)
    assert t5.add_special_ids([7, 8]).tolist() == [7, 8, 1] and bart.add_special_ids(np.array([7])).tolist() == [
        0,
        7,
        2,
    ]
    assert t5.add_special_ids([]).dtype == np.int32
