"""The text form of mechanisms."""

import pytest

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import model_needs, parse_mechanism
from efficient_attention.attention.patterns import Causal, Full
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError


def test_a_pattern_means_softmax_over_it():
    assert parse_mechanism('causal') == Softmax(Causal())
    assert parse_mechanism('full') == Softmax() == Softmax(Full())


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match='known: bigbird, block, causal'):
        parse_mechanism('cosine')


@pytest.mark.parametrize(
    'text, expected',
    [
        ('full', False),
        ('causal & longformer(4, 2)', False),
        ('favor(8)', False),
        ('bigbird(8, 1)', True),
        ('per_head(full, random_tiles(1, 8))', True),
        ('lsh(8, 2)', True),
    ],
)
def test_what_reads_the_length_of_a_row(text: str, expected: bool):
    assert parse_mechanism(text).reads.by_length is expected


@pytest.mark.parametrize('text', ['lsh', 'favor', 'linear', 'sinkhorn', 'routing'])
def test_a_causal_option_makes_it_causal_and_is_advised(text: str):
    assert parse_mechanism(f'{text}(causal=True)').is_causal and not parse_mechanism(text).is_causal
    assert 'causal=True among its arguments' in model_needs(parse_mechanism(text))
    assert 'causal' not in model_needs(parse_mechanism(f'{text}(causal=True)'))


def test_a_mechanism_promises_no_causal_form_unless_it_says_so():
    assert not Mechanism().is_causal and model_needs(Mechanism()) == model_needs(Softmax()) == ''
    assert Mechanism().causal_form('mean') == 'another mechanism, as mechanism has no causal form'
    assert Softmax().causal_form('full').startswith("'causal & (full)', which keeps")
