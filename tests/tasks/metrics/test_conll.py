"""Tests of entities against conlleval's rules, which are stated again here, and against cases worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.tasks.metrics.conll import BEHIND, FIRST, detect_tag_scheme, entities, entity_scores

TAGS = ['O', 'B-a', 'I-a', 'B-b', 'I-b', 'E-a', 'S-a', 'E-b', 'S-b']
# Between these two prefixes, conlleval ends or starts an entity. It does so at each change of type, too.
ENDS = {'BB', 'BO', 'BS', 'IB', 'IO', 'IS', 'EE', 'EI', 'EO', 'EB', 'ES', 'SE', 'SI', 'SO', 'SB', 'SS'}
STARTS = {'OB', 'BB', 'IB', 'EB', 'SB', 'OS', 'BS', 'IS', 'ES', 'SS', 'EE', 'EI', 'SE', 'SI', 'OE', 'OI'}


# letters of the prefixes for begin, inside, end and single
LETTERS = ('BIES', 'BILU', 'BMEW', 'BMES')


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


@pytest.mark.parametrize('letters', LETTERS)
@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_every_form_writes_the_same_entities(letters, tags):
    table = str.maketrans('BIES', letters)
    typed = [tag[0].translate(table) + tag[1:] for tag in tags]
    behind = [f'{tag[2:]}-{tag[0]}' if tag != 'O' else tag for tag in typed]
    assert entities(typed, FIRST) == entities(behind, BEHIND) == by_the_two_rules(tags)
    untyped = [tag[0] for tag in typed]
    expected = by_the_two_rules([tag[0] + '-_' * (tag != 'O') for tag in tags])
    assert entities(untyped, FIRST) == expected


@pytest.mark.parametrize(
    'tags, expected',
    [
        ('', []),
        ('O O', []),
        ('B-a I-a O B-a', [('a', 0, 2), ('a', 3, 4)]),
        ('B-a B-a', [('a', 0, 1), ('a', 1, 2)]),
        ('I-a I-a', [('a', 0, 2)]),  # A stray I starts an entity.
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
    # 2 of 4 predicted entities are right: the first b and the last a.
    predicted = [['B-a', 'O', 'O'], ['B-b', 'B-b', 'I-a']]
    scores = entity_scores(expected, predicted)
    assert scores == {'precision': 2 / 4, 'recall': 2 / 3, 'f1': 4 / 7}
    assert entity_scores(expected, expected) == {'precision': 1, 'recall': 1, 'f1': 1}


@pytest.mark.parametrize('expected, predicted', [([], []), ([['O']], [['B-a']]), ([['B-a']], [['O']])])
def test_nothing_to_divide_by_is_zero(expected, predicted):
    assert set(entity_scores(expected, predicted).values()) == {0.0}


@pytest.mark.parametrize(
    'labels, scheme',
    [
        ('O B-a', FIRST),
        ('O B-a X', FIRST),
        ('O S-a', FIRST),
        ('E-a', FIRST),
        ('U-a L-b', FIRST),
        ('B I O', FIRST),
        ('I O', FIRST),
        ('O a-B a-I', BEHIND),
        ('a-b-S O', BEHIND),
        ('NOUN O B', None),
        ('U L O', None),  # labels for upper and lower case, not entities
        ('S-a NOUN', None),
        ('a-B NOUN', None),
        ('O', None),
        ('', None),
    ],
)
def test_which_labels_write_entities(labels, scheme):
    assert detect_tag_scheme(labels.split()) is scheme


def test_classes_that_end_in_a_roman_number_are_no_tags():
    assert (
        detect_tag_scheme(('positive-I', 'negative-I')) is None
        and detect_tag_scheme(('PER-B', 'PER-I', 'O')) is not None
    )
