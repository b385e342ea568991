"""Tests the text form of mechanisms."""

import copy
import dataclasses
import pickle

import pytest

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism, required_model_settings
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
    assert parse_mechanism(text).key_access.by_length is expected


@pytest.mark.parametrize('text', ['lsh', 'favor', 'linear', 'sinkhorn', 'routing'])
def test_a_causal_option_makes_it_causal_and_is_advised(text: str):
    assert parse_mechanism(f'{text}(causal=True)').is_causal and not parse_mechanism(text).is_causal
    assert 'causal=True among its arguments' in required_model_settings(parse_mechanism(text))
    assert 'causal' not in required_model_settings(parse_mechanism(f'{text}(causal=True)'))


def test_a_mechanism_promises_no_causal_form_unless_it_says_so():
    assert (
        not Mechanism().is_causal and required_model_settings(Mechanism()) == required_model_settings(Softmax()) == ''
    )
    assert Mechanism().causal_alternative_text('mean') == 'another mechanism, as mechanism has no causal form'
    assert Softmax().causal_alternative_text('full').startswith("'causal & (full)', which keeps")


@pytest.mark.parametrize('text', ['causal & bigbird(8, 1)', 'routing(3, 4)', "linear('cos', 12)", 'hard(sampled=True)'])
def test_records_are_made_once_and_change_neither_equality_nor_copies(text: str):
    mechanism, fresh = parse_mechanism(text), parse_mechanism(text)
    fresh = dataclasses.replace(fresh)  # The copy has cached none of its properties.
    records = [mechanism.requirements, mechanism.capabilities, mechanism.key_access, mechanism.randomness]
    again = [mechanism.requirements, mechanism.capabilities, mechanism.key_access, mechanism.randomness]
    assert list(map(id, records)) == list(map(id, again))
    assert mechanism == fresh and hash(mechanism) == hash(fresh) and repr(mechanism) == repr(fresh)
    for other in (fresh, copy.copy(mechanism), copy.deepcopy(mechanism), pickle.loads(pickle.dumps(mechanism))):
        assert other == mechanism and hash(other) == hash(mechanism)
        assert [other.requirements, other.capabilities, other.key_access, other.randomness] == records


def test_a_changed_copy_has_records_of_its_own():
    causal = parse_mechanism('routing(3, 4, causal=True)')
    assert causal.requirements.positions and not dataclasses.replace(causal, causal=False).requirements.positions
    assert parse_mechanism('bigbird(8, 1)').key_access.by_length
    assert not dataclasses.replace(parse_mechanism('bigbird(8, 1)'), pattern=Full()).key_access.by_length
