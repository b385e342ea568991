"""Entities against the two rules that conlleval states, in a form of their own, and cases worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.tasks.metrics.conll import entities, entity_scores, has_entities

TAGS = ['O', 'B-a', 'I-a', 'B-b', 'I-b', 'E-a', 'S-a', 'E-b', 'S-b']
# conlleval's pairs of (prefix before, prefix) between which an entity ends or starts; a change of type does so as well.
ENDS = {'BB', 'BO', 'BS', 'IB', 'IO', 'IS', 'EE', 'EI', 'EO', 'EB', 'ES', 'SE', 'SI', 'SO', 'SB', 'SS'}
STARTS = {'OB', 'BB', 'IB', 'EB', 'SB', 'OS', 'BS', 'IS', 'ES', 'SS', 'EE', 'EI', 'SE', 'SI', 'OE', 'OI'}


def by_the_two_rules(tags):
    found, start = [], None
    before, kind_before = 'O', ''
    for place, tag in enumerate([*tags, 'O']):
        prefix, kind = tag[0], tag[2:]
        is_change = kind != kind_before
        if start is not None and (before + prefix in ENDS or (before != 'O' and is_change)):
            found.append((kind_before, start, place))
            start = None
        if before + prefix in STARTS or (prefix != 'O' and is_change):
            start = place
        before, kind_before = prefix, kind
    return found


@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_entities_start_and_end_as_conlleval_says(tags):
    assert entities(tags) == by_the_two_rules(tags)


@pytest.mark.parametrize(
    'tags, expected',
    [
        ('', []),
        ('O O', []),
        ('B-a I-a O B-a', [('a', 0, 2), ('a', 3, 4)]),
        ('B-a B-a', [('a', 0, 1), ('a', 1, 2)]),
        ('I-a I-a', [('a', 0, 2)]),  # a stray I starts one
        ('O I-a', [('a', 1, 2)]),
        ('B-a I-b', [('a', 0, 1), ('b', 1, 2)]),
        ('B-creative-work I-creative-work', [('creative-work', 0, 2)]),
        ('B-a L-a U-a', [('a', 0, 2), ('a', 2, 3)]),
        ('B-a NOUN I-a', [('a', 0, 1), ('a', 2, 3)]),
    ],
)
def test_cases(tags, expected):
    assert entities(tags.split()) == expected


def test_scores_count_exact_entities_over_all_sentences():
    expected = [['B-a', 'I-a', 'O'], ['B-b', 'O', 'B-a']]
    predicted = [['B-a', 'O', 'O'], ['B-b', 'B-b', 'I-a']]  # of 4 guesses b and the last a are right, of 3 wanted
    scores = entity_scores(expected, predicted)
    assert scores == {'precision': 2 / 4, 'recall': 2 / 3, 'f1': 4 / 7}
    assert entity_scores(expected, expected) == {'precision': 1, 'recall': 1, 'f1': 1}


@pytest.mark.parametrize('expected, predicted', [([], []), ([['O']], [['B-a']]), ([['B-a']], [['O']])])
def test_nothing_to_divide_by_is_zero(expected, predicted):
    assert set(entity_scores(expected, predicted).values()) == {0.0}


def test_tags_that_are_no_entities():
    assert has_entities(['O', 'B-a']) and not has_entities(['NOUN', 'O', 'B'])
