"""Tests that the keyword option types have the fields of the dataclasses with their defaults."""

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.inference.decoding_options import DecodingOptions
from efficient_attention.inference.generation_pipelines import GenerationOptions
from efficient_attention.inference.keyword_option_types import (
    EvalOptions,
    ExampleOptions,
    PipelineOptions,
    SearchOptions,
)


def names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def any_sequence(kind: Any) -> Any:
    """Returns a type with each tuple replaced by a sequence of any length, which users may pass."""
    if get_origin(kind) is not tuple:
        return kind
    item, _ = get_args(kind)
    return Sequence[any_sequence(item)]


@pytest.mark.parametrize(
    'options, kind', [(EvalOptions, EvalConfig), (ExampleOptions, ExamplesConfig), (SearchOptions, DecodingOptions)]
)
def test_options_are_the_fields_of_their_dataclass(options: type, kind: type):
    assert set(options.__annotations__) == names(kind) - {'batch_size', 'samples'}
    types = get_type_hints(kind)
    for name, given in get_type_hints(options).items():
        assert given in (types[name], any_sequence(types[name])), name


def test_a_pipeline_takes_what_a_language_model_is_asked_for():
    given, types = get_type_hints(PipelineOptions), get_type_hints(GenerationOptions)
    assert {name: given.get(name) for name in types} == types
