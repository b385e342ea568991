"""Tests that missing fields of a fine-tuning config come from files and checkpoint, and that given fields stay."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from configs.text_to_text.glue import get_config as glue_config
from efficient_attention.config.dict_conversion import from_dict, to_dict
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.training.fill_config import fill_config
from tests.distillation.tiny_teacher import write_teacher
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.training.tiny_fine_tuning import WORDS, tiny_config, tiny_values


def test_other_tasks_are_taken_as_they_are():
    assert fill_config({'train': {'steps': 7}}).config == from_dict({'train': {'steps': 7}}, RunConfig)


def test_labels_steps_and_head_follow_the_files(tmp_path: Path):
    config = tiny_config(tmp_path, **{'examples.epochs': 2.5, 'examples.warmup_share': 0.25})
    assert config.examples.labels == ('bad', 'good')
    assert (config.head.kind, config.head.outputs) == ('sequence', 2)
    assert config.train.steps == 50 and config.optimizer.warmup_steps == 12  # 2.5 epochs of 20 batches
    assert from_dict(json.loads(json.dumps(to_dict(config))), RunConfig) == config


def test_what_is_given_stays(tmp_path: Path):
    fields = {'train.steps': 3, 'optimizer.warmup_steps': 2, 'head.dropout_rate': 0.3}
    config = tiny_config(tmp_path, **fields, **{'examples.labels': ('good', 'bad')})
    assert (config.train.steps, config.optimizer.warmup_steps, config.head.dropout_rate) == (3, 2, 0.3)
    assert config.examples.labels == ('good', 'bad')


@pytest.mark.parametrize('is_named', [True, False])
def test_labels_are_those_of_the_training_files_whatever_the_checkpoint_has(tmp_path: Path, is_named: bool):
    checkpoint = write_checkpoint(tmp_path / 'made', 'classification', is_named=is_named)  # three outputs
    values = tiny_values(tmp_path, **{'train.start_from': str(checkpoint)})
    values['model'], values['head'] = dict.fromkeys(values['model']), dict.fromkeys(values['head'])
    values['data']['tokenizer'] = None
    config = fill_config(values).config
    assert config.examples.labels == ('bad', 'good') and config.head.outputs == 2


def test_a_start_of_other_rows_is_refused_before_rows_are_generated(tmp_path: Path):
    checkpoint = write_checkpoint(tmp_path / 'made', 'classification')
    values = tiny_values(tmp_path, **{'train.start_from': str(checkpoint), 'data.tokenizer': 'fixed:listops'})
    values['model'], values['head'] = dict.fromkeys(values['model']), dict.fromkeys(values['head'])
    rows = {'format': 'arena', 'train': 'listops:rows=9:length=5-9', 'cache': str(tmp_path / 'cache')}
    values['examples'] |= rows | {'dev': rows['train'], 'test': ''}
    with pytest.raises(InputError, match=r'ids stand for other pieces .* \(fixed:listops\); start from'):
        fill_config(values)
    assert not (tmp_path / 'cache').exists()


def test_a_teacher_with_other_pieces_than_the_student_cannot_be_combined_with_it(tmp_path: Path):
    """No tokenizer fits both models, so the error does not ask for the other model's tokenizer."""
    student = write_teacher(tmp_path / 'student')
    teacher = write_teacher(tmp_path / 'teacher', words=['x', *WORDS[1:]])
    fields = {'train.start_from': str(student), 'distill.teacher': str(teacher)}
    for tokenizer in (tmp_path / 'student' / 'vocab.txt', tmp_path / 'teacher' / 'vocab.txt'):
        values = tiny_values(tmp_path, **fields, **{'data.tokenizer': str(tokenizer)})
        with pytest.raises(
            InputError, match='^train.start_from .* and distill.teacher .* cannot be combined: 1 of the'
        ):
            fill_config(values)
    drawn = {'train.start_random': True, 'data.tokenizer': str(tmp_path / 'teacher' / 'vocab.txt')}
    assert fill_config(tiny_values(tmp_path, **fields, **drawn)).config.train.start_random


def test_a_fine_tuning_run_needs_a_tokenizer(tmp_path: Path):
    values = tiny_values(tmp_path)
    values['data']['tokenizer'] = None
    with pytest.raises(
        InputError, match=r'^train\.start_from is not given, and neither is data\.tokenizer: name a checkpoint'
    ):
        fill_config(values)


def test_what_a_run_from_text_to_text_leaves_open_follows_a_checkpoint(tmp_path: Path):
    """tests/tasks/test_text_to_text.py tests the values that are filled in."""
    values = glue_config('rte-pretrained').to_dict()
    with pytest.raises(
        InputError, match=r'^train\.start_from is not given, and neither is data\.tokenizer: name a checkpoint'
    ):
        fill_config(values)
    encoder = write_checkpoint(tmp_path / 'made', 'fill_mask')
    with pytest.raises(InputError, match=rf'^model is left open, .* of train\.start_from; {encoder} holds none$'):
        fill_config(values | {'train': values['train'] | {'start_from': str(encoder)}})
    complete = glue_config('rte').to_dict()
    assert fill_config(complete) == (from_dict(complete, RunConfig), None, None)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'data.mask_rate': 0.2}, r'^data\.mask_rate is 0\.2; the task fine_tuning does not read it, so it must be'),
        ({'eval.context': 4}, r'^eval\.context is 4; the task fine_tuning does not read it'),
        ({'head.kind': 'span'}, r"^head\.kind is 'span'; examples\.problem 'classification' needs 'sequence'$"),
        ({'head.outputs': 3}, r'^head\.outputs is 3; the examples have 2 \(bad, good\)$'),
        ({'model.vocab_size': 17}, r'^the tokenizer has 18 tokens, more than model\.vocab_size 17$'),
        ({'train.start_random': True}, r'^train\.start_random is True; it needs train\.start_from'),
    ],
)
def test_fields_that_do_not_serve(tmp_path: Path, fields: dict, message: str):
    from efficient_attention.training.run import build_run

    with pytest.raises(InputError, match=message):
        build_run(tiny_config(tmp_path, **fields))


def test_other_tasks_refuse_examples():
    with pytest.raises(InputError, match=r"^examples\.text is 'review'; the task pretraining does not read it"):
        from_dict({'examples': {'text': 'review'}}, RunConfig)
    assert RunConfig().examples.problem == 'none'


def test_a_drawn_student_alone_is_as_large_as_one_with_a_teacher(tmp_path: Path):
    teacher = write_teacher(tmp_path / 'teacher', width=24, feed_forward_width=40, ranks=('up=4',))

    def model_of(**fields: Any) -> ModelConfig:
        values = tiny_values(tmp_path, **fields)
        values['model'] = dict.fromkeys(values['model']) | {'width': 8, 'heads': 4}
        return fill_config(values).config.model

    learns = model_of(**{'distill.teacher': str(teacher)})
    alone = model_of(**{'train.start_from': str(teacher), 'train.start_random': True})
    assert (alone.head_width, alone.feed_forward_width, alone.embedding_width) == (2, 32, 8)
    # the freshly drawn student has the teacher's factored layers
    assert dataclasses.replace(alone, ranks=()) == learns and alone.ranks == ('up=4',)
