"""Tests that given options of a search override the options in a checkpoint's files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.decoding_options import DecodingOptions, pretrained_decoding_options
from efficient_attention.interop.generation_config import ForcedTokens

BART = {'num_beams': 3, 'length_penalty': 2.0, 'max_length': 142, 'min_length': 56, 'no_repeat_ngram_size': 3}


def decoded(generation: dict, defaults: dict | None = None, **given: Any) -> DecodingOptions:
    pretrained: Any = SimpleNamespace(generation=generation, extra={'vocab_size': 9})
    return pretrained_decoding_options(pretrained, Path('bart'), given, defaults)


def test_files_decide_what_no_option_does(caplog: pytest.LogCaptureFixture):
    stated = {'beams': 3, 'penalty': 'length', 'alpha': 2.0, 'max_tokens': 141, 'min_tokens': 55, 'extra': 141}
    # If a file sets beams but no stop rule, transformers' default rule applies.
    assert decoded(BART, {'beams': 5}) == DecodingOptions(**stated, stop='early', no_repeat_ngram_size=3)
    found = decoded(BART | {'diversity_penalty': 0.5}, beams=1, penalty='gnmt', max_tokens=60)
    assert found == DecodingOptions(beams=1, stop='early', max_tokens=60, min_tokens=55, no_repeat_ngram_size=3)
    said = [record.getMessage() for record in caplog.records[1:]]
    assert said == [
        'bart: search settings in its files, used where no option is given: stop=early, '
        'no_repeat_ngram_size=3, min_tokens=55',
        'bart: search settings in its files that are not supported: diversity_penalty=0.5',
    ]
    caplog.clear()
    assert decoded({'forced_bos_token_id': 0}, {'beams': 5}) == DecodingOptions(beams=5) and not caplog.records


def test_drawing_needs_one_beam_and_an_option_for_beams_replaces_it():
    drawn = {'do_sample': True, 'temperature': 0.5}
    expected = DecodingOptions(beams=1, do_sample=True, temperature=0.5, top_k=50)
    assert decoded(drawn, {'beams': 5}) == expected
    assert decoded(drawn, beams=4) == DecodingOptions() == decoded(drawn, do_sample=False)
    assert decoded(BART, do_sample=True, top_p=0.5).beams == 1
    with pytest.raises(InputError, match='beams is 4; it must be 1 where tokens are sampled'):
        decoded({}, do_sample=True, beams=4)


@pytest.mark.parametrize(
    'given, said',
    [
        ({'temperature': 0.5}, 'temperature is 0.5; it is read only if do_sample is True'),
        ({'beams': 'x'}, "beams is 'x'; it must be a whole number"),
        ({'do_sample': 1}, 'do_sample is 1; it must be True or False'),
        ({'bad_words_ids': [3]}, 'bad_words_ids has 3; it must be a list of ids'),
        ({'ends': 3}, 'ends has 3; it must be a list of ids'),
    ],
)
def test_bad_options_are_named(given: dict, said: str):
    with pytest.raises(InputError, match=said):
        decoded({}, **given)


def test_what_contradicts_a_file_names_it():
    with pytest.raises(InputError, match=r'^min_tokens is 55; .* \(the files of bart state .*beams=3, .*; options'):
        decoded(BART, max_tokens=9)
    with pytest.raises(InputError, match="^bart, the settings of its search: num_beams is 'x'"):
        decoded({'num_beams': 'x'})


def test_ends_are_those_of_the_option_else_of_the_files_and_a_forced_one_is_first():
    assert DecodingOptions().search_settings(2).end_token_ids == (2,)
    assert DecodingOptions().search_settings(2, ForcedTokens(end_ids=(4, 2))).end_token_ids == (4, 2)
    assert DecodingOptions(ends=[5, 2]).search_settings(2, ForcedTokens(ends=True)).end_token_ids == (2, 5)
    with pytest.raises(InputError, match=r'ends is \[5\]; the model forces the end 2; add it to ends'):
        DecodingOptions(ends=[5]).search_settings(2, ForcedTokens(ends=True))


def test_what_changes_a_search_stands_beside_scores():
    assert DecodingOptions().reported_options() == {'beams': 4, 'length_penalty': 'gnmt 0.6'}
    assert DecodingOptions(stop='first', suppress_tokens=[3]).reported_options() == {
        'beams': 4,
        'length_penalty': 'gnmt 0.6',
        'stop': 'first',
        'suppress_tokens': (3,),
    }
