"""The fields of a config's `data` group refuse what they cannot mean."""

import dataclasses

import pytest

from efficient_attention.data.config import DataConfig
from efficient_attention.errors import InputError


def test_defaults_are_valid_and_frozen():
    config = DataConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.length = 64


@pytest.mark.parametrize(
    'field, value',
    [
        ('pairs', 'both'),
        ('mask_unit', 'letter'),
        ('units', 'words'),
        ('splitting', 'start'),
        ('batches', 'random'),
        ('test', 1.5),
        ('held_out', -0.1),
        ('held_out', float('nan')),
        ('short_sequence_probability', 1.5),
        ('mask_rate', 2),
        ('vocab_size', 0),
        ('max_masked', 0),
        ('max_ngram', 0),
        ('prefetch', 0),
        ('processes', -1),
        ('static_copies', -1),
        ('workers', -1),
        ('length', 7),
    ],
)
def test_a_field_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(InputError) as caught:
        DataConfig(**{field: value})
    message = str(caught.value)
    assert f'data.{field}' in message and str(value) in message and '\n' not in message


def test_shares_of_replacements_sum_to_one_at_most():
    DataConfig(mask_token_share=0.5, random_token_share=0.5)
    with pytest.raises(InputError, match='above 1'):
        DataConfig(mask_token_share=0.9, random_token_share=0.2)


def test_a_test_split_needs_the_end_of_the_text():
    DataConfig(splitting='end', held_out=0.05, test=0.05)
    with pytest.raises(InputError, match=r"^data.test is 0.05; with data.splitting 'documents' it must be 0$"):
        DataConfig(test=0.05)


def test_something_is_left_to_train_on():
    with pytest.raises(InputError, match=r'^data.held_out 0.6 and data.test 0.4 leave nothing to train on$'):
        DataConfig(splitting='end', held_out=0.6, test=0.4)
