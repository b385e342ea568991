"""Tests of search settings: bad values are named, and lists of ids become hashable for the compilation cache."""

import math

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.search_settings import SearchSettings, TokenRules


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'beams': 0}, 'beams is 0'),
        ({'best': 5}, 'best is 5; it must be 1 to 4, the beams'),
        ({'penalty': 'wu'}, "penalty is 'wu'; known: gnmt, length"),
        ({'alpha': math.nan}, 'alpha is nan'),
        ({'stop': 'soon'}, "stop is 'soon'; known: exact, early, first"),
        ({'max_tokens': 0}, 'max_tokens is 0'),
        ({'min_tokens': 128}, 'min_tokens is 128; it must be 0 or more and below max_tokens 128'),
        ({'end': -2}, 'end is -2'),
        ({'end': -1, 'forces_end': True}, 'forces_end is True; it must be False without an end symbol'),
        ({'end': -1, 'more_ends': (2,)}, r'more_ends is \(2,\); it must be empty without an end symbol'),
        ({'sampling': Sampling()}, r'beams is 4; it must be 1 where tokens are sampled \(do_sample\)'),
        (
            {'first': 3, 'rules': TokenRules(suppress_tokens=(3,))},
            'suppress_tokens has the id 3, which the model forces; remove it',
        ),
        (
            {'forces_end': True, 'rules': TokenRules(suppress_tokens=(1,))},
            'suppress_tokens has the id 1, which the model',
        ),
    ],
)
def test_bad_options_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        SearchSettings(**fields)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'repetition_penalty': 0.0}, 'repetition_penalty is 0.0; it must be above 0'),
        ({'no_repeat_ngram_size': -1}, 'no_repeat_ngram_size is -1; it must be at least 0'),
        ({'bad_words_ids': 5}, 'bad_words_ids is 5; it must be a list of lists of ids, such as'),
        ({'bad_words_ids': [5]}, 'bad_words_ids has 5; it must be a list of ids, whole numbers from 0 on'),
        ({'bad_words_ids': [[5], []]}, 'bad_words_ids is .*; it must be lists of at least one id'),
        ({'suppress_tokens': [True]}, 'suppress_tokens has .*; it must be a list of ids'),
        ({'begin_suppress_tokens': [-1]}, 'begin_suppress_tokens has .*; it must be a list of ids'),
    ],
)
def test_bad_rules_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        TokenRules(**fields)


def test_lists_of_ids_become_tuples():
    rules = TokenRules(bad_words_ids=[[5, 6], [7]], suppress_tokens=[3])
    assert hash(rules) == hash(TokenRules(bad_words_ids=((5, 6), (7,)), suppress_tokens=(3,)))
    assert SearchSettings(end=2, more_ends=(4,)).end_token_ids == (2, 4) and SearchSettings(end=-1).end_token_ids == ()


@pytest.mark.parametrize(
    'fields, name',
    [
        ({'end': 6}, 'end'),
        ({'more_ends': (2, 6)}, 'more_ends'),
        ({'rules': TokenRules(bad_words_ids=((2,), (3, 6)))}, 'bad_words_ids'),
        ({'rules': TokenRules(suppress_tokens=(6,))}, 'suppress_tokens'),
        ({'rules': TokenRules(begin_suppress_tokens=(6,))}, 'begin_suppress_tokens'),
    ],
)
def test_ids_beyond_a_vocabulary_are_named(fields: dict, name: str):
    SearchSettings(**fields).check_ids(7)
    with pytest.raises(InputError, match=f'^{name} is 6; the model has 6 ids$'):
        SearchSettings(**fields).check_ids(6)
