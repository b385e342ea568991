"""Tests that the fields of a config's `data` group refuse values out of range and combinations without meaning."""

import dataclasses

import pytest

from efficient_attention.config.data import DataConfig
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
        ('units', 'sentences'),
        ('min_count', 0),
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


PIXELS = {'units': 'pixels', 'source': 'images:*.png', 'image_shape': (4, 2, 3), 'length': 24}


@pytest.mark.parametrize(
    'fields, line',
    [
        ({'units': 'bytes', 'min_count': 2}, "data.min_count is 2; with data.units 'bytes' it must be 1"),
        (
            {'units': 'bytes', 'image_shape': (4, 2, 3)},
            "data.image_shape is (4, 2, 3); with data.units 'bytes' there are no images",
        ),
        (
            {'units': 'bytes', 'source': 'images:*.png'},
            "data.source is 'images:*.png'; with data.units 'bytes' there are no images",
        ),
        (
            PIXELS | {'source': 'text:*.txt'},
            "data.source is 'text:*.txt'; with data.units 'pixels' there are images:<glob> and tfds:<name>#<field>",
        ),
        (
            PIXELS | {'image_shape': (4, 2, 2)},
            'data.image_shape is (4, 2, 2); it must be (height, width, channels), 1 or 3 channels',
        ),
        (
            PIXELS | {'image_shape': ()},
            'data.image_shape is (); it must be (height, width, channels), 1 or 3 channels',
        ),
        (
            PIXELS | {'length': 23},
            'data.length is 23; a row is an image of data.image_shape, 4 x 2 x 3 = 24 bytes',
        ),
    ],
)
def test_words_and_images_have_fields_of_their_own(fields, line):
    DataConfig(**PIXELS)
    with pytest.raises(InputError) as caught:
        DataConfig(**fields)
    assert str(caught.value) == line


def test_something_is_left_to_train_on():
    with pytest.raises(InputError, match=r'^data.held_out 0.6 and data.test 0.4 leave nothing to train on$'):
        DataConfig(splitting='end', held_out=0.6, test=0.4)
