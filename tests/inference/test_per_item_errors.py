"""Tests that each item of a list is read in order, and that an error names the number of the bad item."""

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.per_item_errors import check_text, map_items


def test_each_item_is_read_in_order():
    assert map_items([], str) == [] and map_items([3, 1], str) == ['3', '1']


def test_the_bad_one_of_several_has_its_number():
    with pytest.raises(
        InputError, match=r'^item 2 of 3: 5 \(of type int\) is no text; give a text or a list of texts$'
    ):
        map_items(['a', 5, 'b'], check_text)
    with pytest.raises(InputError, match=r"^the text is ' '; it must not be empty$"):
        map_items([' '], check_text)
