"""The keyword options are the fields of the dataclasses that give their defaults."""

import dataclasses

import pytest

from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.inference.generation_pipelines import GenerationOptions
from efficient_attention.inference.options import EvalOptions, ExampleOptions, PipelineOptions, SearchOptions
from efficient_attention.inference.search_options import Decoding


def names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    'options, kind', [(EvalOptions, EvalConfig), (ExampleOptions, ExamplesConfig), (SearchOptions, Decoding)]
)
def test_options_are_the_fields_of_their_dataclass(options: type, kind: type):
    assert set(options.__annotations__) == names(kind) - {'batch_size'}


def test_a_pipeline_takes_what_a_language_model_is_asked_for():
    assert names(GenerationOptions) <= set(PipelineOptions.__annotations__)
