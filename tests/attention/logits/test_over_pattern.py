"""Tests that the properties of a `Softmax` follow from its pattern; test_contract.py tests the weights."""

import pytest

from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal, Window
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'text, is_causal, is_band, goes_by_distance, keys_back',
    [
        ('full', False, True, True, 64),
        ('causal', True, True, True, 64),
        ('window(3)', False, True, True, 4),
        ('causal & window(3)', True, True, True, 4),
        ('causal & window(3, 2)', True, False, True, 7),
        ('causal & strided(4)', True, False, True, 64),
        ('causal & block(8)', True, False, False, 8),
        ('causal | window(3)', False, False, True, 64),
        ('sparse_fixed(8, 2)', True, False, False, 64),
        ('causal - window(3)', True, False, True, 64),
        ('per_head(causal, causal & window(3))', True, False, True, 64),
        ('global_tokens(1, last=2)', False, False, False, 64),
        ('lsh(4, 2, causal=True)', True, False, False, 64),
        ('favor(4)', False, False, False, 64),
    ],
)
def test_what_others_ask_of_a_mechanism(
    text: str, is_causal: bool, is_band: bool, goes_by_distance: bool, keys_back: int
):
    mechanism = parse_mechanism(text)
    mask_inputs = (
        mechanism.is_causal,
        mechanism.key_access.one_band,
        mechanism.key_access.by_distance,
        mechanism.causal_window_size(64),
    )
    assert mask_inputs == (is_causal, is_band, goes_by_distance, keys_back)


def test_a_part_of_the_pairs_keeps_the_tile():
    assert Softmax(Causal(), tile=16).restrict_to_pattern(Window(3)) == Softmax(Causal() & Window(3), tile=16)
    with pytest.raises(NotImplementedError, match='lsh has no pattern'):
        LSH().restrict_to_pattern(Window(3))


def test_the_size_of_a_tile_is_checked_and_not_written():
    with pytest.raises(InputError, match='softmax tile is 0; it must be at least 1'):
        Softmax(tile=0)
    assert repr(Softmax(tile=16)) == repr(Softmax())
    assert Softmax(Causal(), tile=16).for_layer(3).tile == 16
