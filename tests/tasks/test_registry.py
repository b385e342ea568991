"""Tests that every task of a config is in the registry."""

import types

import pytest

from efficient_attention.config import field_metadata
from efficient_attention.tasks import registry
from efficient_attention.tasks.arena_pretraining import ArenaPretrainingTask
from efficient_attention.tasks.denoising import DenoisingTask
from efficient_attention.tasks.registry import make_task, task_type
from efficient_attention.tasks.task import Task
from efficient_attention.tasks.text_to_text import TextToTextTask


def test_every_task_of_a_config_has_its_class():
    assert tuple(registry.TASKS) == field_metadata.TASKS


@pytest.mark.parametrize('name', field_metadata.TASKS)
def test_the_class_of_a_task_is_a_task(name: str):
    assert issubclass(task_type(types.SimpleNamespace(task=name, has_noise=False, has_arena_rows=False)), Task)


@pytest.mark.parametrize('name', field_metadata.TASKS)
def test_a_task_gets_the_whole_config_and_what_is_read_already(monkeypatch, name: str):
    monkeypatch.setattr(registry, 'task_type', lambda _: lambda *arguments: arguments)
    config = types.SimpleNamespace(task=name, has_noise=False, has_arena_rows=False)
    assert make_task(config) == (config,)
    assert make_task(config, 'examples') == (config, 'examples')


@pytest.mark.parametrize('has_noise, kind', [(True, DenoisingTask), (False, TextToTextTask)])
def test_noise_makes_the_pairs_of_text_to_text(has_noise: bool, kind: type):
    assert task_type(types.SimpleNamespace(task='text_to_text', has_noise=has_noise, has_arena_rows=False)) is kind


def test_long_range_rows_have_a_task_of_their_own():
    assert (
        task_type(types.SimpleNamespace(task='pretraining', has_noise=False, has_arena_rows=True))
        is ArenaPretrainingTask
    )
