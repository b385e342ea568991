"""Tests of the tables of config.json keys: every family sets every size, and all fields exist."""

import dataclasses

import pytest

from efficient_attention.config.layer import ACTIVATIONS as OURS
from efficient_attention.config.model import ModelConfig
from efficient_attention.interop.config_json_keys import (
    ACTIVATIONS,
    FIELDS,
    FIXED,
    NOT_OURS_OF,
    OUR_FIELDS,
    PROJECTIONS,
    custom_key_fields,
    join_layer_mechanisms,
)
from efficient_attention.interop.huggingface_tensor_names import FAMILIES

KNOWN = {field.name for field in dataclasses.fields(ModelConfig)}


@pytest.mark.parametrize('kind', FAMILIES)
def test_every_family_gives_every_size(kind: str):
    sizes = {'vocab_size', 'width', 'layers', 'heads', 'feed_forward_width', 'max_length', 'activation'}
    assert sizes <= FIELDS[kind].keys() <= KNOWN
    assert FIXED[kind].keys() <= KNOWN - FIELDS[kind].keys()


def test_every_activation_of_ours_has_a_name_of_theirs():
    assert set(ACTIVATIONS.values()) == set(OURS)
    assert set(PROJECTIONS.values()) == {(own, gate) for own in OURS for gate in (False, True)}


def test_no_field_is_both_theirs_and_our_own():
    for kind, fields in FIELDS.items():
        assert not set(custom_key_fields(kind)) & fields.keys()
        assert set(OUR_FIELDS) - set(NOT_OURS_OF.get(kind, ())) <= set(custom_key_fields(kind)) <= KNOWN
        assert set(NOT_OURS_OF.get(kind, ())) <= FIXED[kind].keys()


def test_one_text_for_layers_that_agree():
    assert join_layer_mechanisms(['full', 'full']) == 'full'
    assert join_layer_mechanisms(['full', 'window(2)']) == 'full; window(2)'
