"""Tests of search settings in a checkpoint's files: our options, unsupported settings, and the tokens of `generate`."""

import json
from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from efficient_attention.data.tokenizers.text_to_text_special_ids import TextToTextSpecialIds
from efficient_attention.errors import InputError
from efficient_attention.inference.decoding_options import DecodingOptions
from efficient_attention.inference.seq2seq_generator import Seq2SeqGenerator, SourceBatching
from efficient_attention.interop.generation_config import forced_tokens, search_settings
from efficient_attention.interop.pretrained import open_pretrained
from tests.interop.folders import TEXT_TO_TEXT
from tests.interop.test_text_to_text_parity import module

# scripts/make_fixtures/search_cases.py wrote these searches.
SEARCHES = json.loads(Path(__file__).with_name('searches.json').read_text(encoding='utf-8'))
# Searches of the quick tests: `early_stopping` with two end symbols, a single beam, and a penalty with beams.
QUICK = (11, 12, 34)
BEAM_DEFAULTS = {'length_penalty': 1.0, 'early_stopping': False}


@pytest.mark.parametrize(
    'one',
    [
        pytest.param(one, id=f'{place} {one["model"]}', marks=() if place in QUICK else pytest.mark.slow)
        for place, one in enumerate(SEARCHES)
    ],
)
def test_tokens_of_generate_by_the_settings_of_a_file(one: dict[str, Any]):
    stated = open_pretrained(TEXT_TO_TEXT / one['model']).generation
    known = {'pad': stated['pad_token_id'], 'start': stated['decoder_start_token_id'], 'end': stated['eos_token_id']}
    ids = TextToTextSpecialIds('file', 61, **known, unknown=None, mask=None, sentinels=())
    # Settings equal to transformers' defaults are left out of the file.
    given = {key: value for key, value in one['settings'].items() if BEAM_DEFAULTS.get(key, ()) != value}
    generation = stated | given
    options, unserved = search_settings(generation, {})
    search = DecodingOptions(**options).search_settings(ids.end, forced_tokens(ids, {}, generation))
    # Sources of several lengths share a batch.
    batching = SourceBatching(rows=8, lengths=(13,), ratio=0.0, extra=search.max_tokens)
    transducer = Seq2SeqGenerator(*nnx.split(module(one['model'])), search, prompt=[ids.start], batching=batching)
    assert not unserved
    assert [best[0].ids.tolist() for best in transducer(one['sources'])] == one['tokens']


def test_the_stored_searches_have_every_setting_by_one_beam_and_by_several():
    names = {'repetition_penalty', 'no_repeat_ngram_size', 'bad_words_ids', 'suppress_tokens', 'begin_suppress_tokens'}
    names |= {'eos_token_id', 'min_length', 'min_new_tokens', 'max_length', 'length_penalty', 'early_stopping'}
    for beams in (1, 4):
        found = [one['settings'] for one in SEARCHES if one['settings']['num_beams'] == beams]
        assert set().union(*found) == {*names, 'num_beams'}
    assert {True, False} <= {one['settings']['early_stopping'] for one in SEARCHES}


def test_settings_are_our_options():
    released = {'num_beams': 4, 'length_penalty': 2.0, 'max_length': 142, 'min_length': 56, 'early_stopping': True}
    released |= {'no_repeat_ngram_size': 3, 'forced_bos_token_id': 0, 'eos_token_id': 2, 'transformers_version': '4.27'}
    lengths = {'max_tokens': 141, 'extra': 141, 'min_tokens': 55}  # Our lengths do not count the start symbol.
    expected = {'beams': 4, 'alpha': 2.0, 'penalty': 'length', 'no_repeat_ngram_size': 3, 'stop': 'first', **lengths}
    assert search_settings(released, {'num_beams': 9}) == (expected, {})
    older = {'beams': 9, 'penalty': 'length', 'alpha': 1.0, 'stop': 'early'}
    assert search_settings({}, {'num_beams': 9, 'vocab_size': 3}) == (older, {})
    new = {'max_new_tokens': 7, 'max_length': 50, 'min_new_tokens': 3, 'min_length': 3}
    assert search_settings(new, {}).options == {'max_tokens': 7, 'extra': 7, 'min_tokens': 3}
    assert search_settings({'max_length': 20}, {}).options == {'max_tokens': 19, 'extra': 19}
    assert search_settings({}, {'max_length': 20}).options == {}  # Every older config.json has this key.


def test_draws_are_those_of_transformers():
    """With `do_sample`, `top_k` is 50 by default, as in transformers; without it, sampling settings have no effect."""
    drawn = {'do_sample': True, 'temperature': 0.7, 'top_p': 0.9}
    assert search_settings(drawn, {}) == ({'do_sample': True, 'top_k': 50, 'temperature': 0.7, 'top_p': 0.9}, {})
    assert search_settings(drawn | {'do_sample': False, 'min_p': 0.1}, {}) == ({}, {})
    assert search_settings(drawn | {'num_beams': 3}, {}).options['beams'] == 3
    assert search_settings(drawn | {'num_beams': 3}, {}).unserved == {'do_sample': True}
    assert search_settings(drawn | {'min_p': 0.1}, {}).unserved == {'min_p': 0.1}


def test_what_is_not_served_is_named_where_it_changes_something():
    others = {'diversity_penalty': 0.5, 'num_beam_groups': 1, 'renormalize_logits': False, 'max_time': 3.0}
    assert search_settings(others, {}) == ({}, {'diversity_penalty': 0.5, 'max_time': 3.0})
    assert search_settings({}, {'encoder_no_repeat_ngram_size': 3}).unserved == {'encoder_no_repeat_ngram_size': 3}


@pytest.mark.parametrize(
    'stated, said',
    [
        ({'num_beams': '4'}, "num_beams is '4'; it must be a whole number"),
        ({'length_penalty': True}, 'length_penalty is True; it must be a number'),
        ({'suppress_tokens': 3}, 'suppress_tokens is 3; it must be a list of ids'),
        ({'early_stopping': 'soon'}, 'early_stopping is \'soon\'; it must be true, false or "never"'),
        ({'do_sample': 'yes'}, "do_sample is 'yes'; it must be true or false"),
    ],
)
def test_values_of_another_type_are_named(stated: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}$'):
        search_settings(stated, {})
