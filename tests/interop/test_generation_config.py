"""Tests of the ids that begin and end targets, as read from a checkpoint's files and written to them."""

import re
from pathlib import Path

import pytest

from efficient_attention.data.tokenizers.text_to_text_special_ids import TextToTextSpecialIds
from efficient_attention.errors import InputError
from efficient_attention.interop.generation_config import (
    ForcedTokens,
    end_ids,
    forced_tokens,
    make_generation_config,
    read_generation_config,
    task_prefixes,
    task_settings,
    with_token_ids,
    with_trained_token_ids,
)

IDS = TextToTextSpecialIds('file', 9, pad=1, start=0, end=2, unknown=3, mask=None, sentinels=())


def test_keys_of_the_file(tmp_path: Path):
    assert read_generation_config(tmp_path) == {}
    (tmp_path / 'generation_config.json').write_text('{"decoder_start_token_id": 2}')
    assert read_generation_config(tmp_path) == {'decoder_start_token_id': 2}
    for text, message in (('{', 'not JSON'), ('[]', 'no JSON object')):
        (tmp_path / 'generation_config.json').write_text(text)
        with pytest.raises(InputError, match=f'generation_config.json: {message}'):
            read_generation_config(tmp_path)


def test_what_the_files_say_counts_more_than_the_tokenizer():
    extra = {'decoder_start_token_id': 4, 'eos_token_id': 5, 'pad_token_id': None}
    ids = with_trained_token_ids(IDS, extra, {'decoder_start_token_id': 2})
    assert (ids.pad, ids.start, ids.end) == (1, 2, 5)
    assert with_trained_token_ids(IDS, {'eos_token_id': [5]}, {}).end == 5
    for value, said in ((9, 'is 9; it'), ([], re.escape('is []; it')), ([2, 9], 'has 9; each')):
        with pytest.raises(InputError, match=f'^eos_token_id {said} must be one of the ids that .* has, 0 to 8'):
            with_trained_token_ids(IDS, {'eos_token_id': value}, {})


def test_targets_may_have_several_ends_and_a_source_has_the_tokenizers():
    several = {'eos_token_id': [5, 2]}
    assert (
        with_trained_token_ids(IDS, several, {}).end == 2
        and with_trained_token_ids(IDS, {'eos_token_id': [5, 4]}, {}).end == 5
    )
    assert end_ids(IDS, {}, several) == (5, 2) and end_ids(IDS, {'eos_token_id': [5]}, {}) == end_ids(IDS, {}, {}) == ()
    assert forced_tokens(IDS, {}, several) == ForcedTokens(-1, False, (5, 2))
    assert forced_tokens(IDS, {}, several | {'forced_eos_token_id': 2}) == ForcedTokens(-1, True, (2, 5))
    with pytest.raises(InputError, match='forced_eos_token_id is 3; it must be 5 or 2, the id of the end, or null'):
        forced_tokens(IDS, {}, several | {'forced_eos_token_id': 3})


def test_prefixes_of_tasks():
    tasks = {'summarization': {'prefix': 'summarize: ', 'num_beams': 4}, 'other': {'num_beams': 4}, 'odd': 3}
    assert task_prefixes({'task_specific_params': tasks}) == {'summarization': 'summarize: '}
    assert task_prefixes({}) == task_prefixes({'task_specific_params': None}) == {}


def test_ids_are_written_and_no_default_of_another_family_is_taken():
    values = with_token_ids({'bos_token_id': 7, 'vocab_size': 9}, IDS)
    expected = {'pad_token_id': 1, 'decoder_start_token_id': 0, 'eos_token_id': 2, 'forced_eos_token_id': None}
    assert values == {'bos_token_id': 7, 'vocab_size': 9} | expected


def test_forced_tokens_are_those_of_the_file_and_without_one_of_the_config():
    forced = {'forced_bos_token_id': 0, 'forced_eos_token_id': 2}
    assert forced_tokens(IDS, forced, {}) == forced_tokens(IDS, {}, forced) == ForcedTokens(0, True)
    assert forced_tokens(IDS, forced, {'pad_token_id': 1}) == forced_tokens(IDS, {}, {}) == ForcedTokens(-1, False)
    for values, said in (
        ({'forced_bos_token_id': 9}, 'forced_bos_token_id is 9; the tokenizer has the ids 0 to 8'),
        ({'forced_eos_token_id': 3}, 'forced_eos_token_id is 3; it must be 2, the id of the end, or null'),
    ):
        with pytest.raises(InputError, match=said):
            forced_tokens(IDS, values, {})
    assert forced_tokens(IDS, {}, make_generation_config(IDS, 0)) == ForcedTokens(0, False)
    assert 'forced_bos_token_id' not in make_generation_config(IDS, -1)


def test_settings_of_a_task_stand_beside_its_prefix():
    extra = {'task_specific_params': {'summarization': {'prefix': 'summarize: ', 'num_beams': 4}, 'other': 3}}
    assert task_settings(extra, 'summarization') == {'num_beams': 4}
    assert task_settings(extra, 'other') == task_settings(extra, 'absent') == task_settings({}, 'summarization') == {}
