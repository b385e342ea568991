"""Tests that teachers unfit for the task or the student are refused, and tests of teachers with global tokens."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.distillation.teacher import (
    check_loss_terms_fit_student,
    check_teacher_inputs,
    check_teacher_outputs,
    warn_if_teacher_task_differs,
    warn_of_missing_tokenizer,
)
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.training.run import build_run
from tests.distillation.test_teacher import batch_of, config_of
from tests.distillation.tiny_teacher import write_teacher
from tests.one_device import EIGHT
from tests.tolerances import assert_close
from tests.training.tiny_run import tiny_config as masked_lm_config

GLOBAL = {'attention': 'window(4) | global_tokens(1)', 'global_tokens': 1}
OF_STUDENT = {f'model.{name}': value for name, value in GLOBAL.items()}
OF_SENTENCES = {'head.sentence_layers': 1, 'head.pooling': 'mean', 'examples.sentences': 3}
PLAIN = {'model.attention': 'full', 'model.global_tokens': 0}
INSIDE_ALONE = {'distill.soft': 0.0, 'distill.hidden': 1.0}


def assert_refused(config: RunConfig, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        build_run(config)
    assert '\n' not in str(found.value)


@pytest.mark.parametrize(
    'fields, message',
    [
        (
            {'distill.layers': '1,2'},
            "distill.layers is '1,2'; nothing reads it where distill.hidden, distill",
        ),
        (
            {'distill.projection': 'one'},
            "distill.projection is 'one'; nothing reads it where distill.hidden",
        ),
        (
            INSIDE_ALONE | {'distill.temperature': 5.0},
            'distill.temperature is 5.0; nothing reads it where',
        ),
        (
            {'model.layer_units': (4, 8), 'distill.attention': 1.0, 'model.feed_forward_width': 8},
            r'the student has model.layer_units \(4, 8\)',
        ),
    ],
    ids=str,
)
def test_fields_of_the_student(tmp_path: Path, fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        check_loss_terms_fit_student(config_of(tmp_path, write_teacher(tmp_path / 'teacher'), **fields))


def test_heads_without_soft_targets_or_rows_of_their_own(tmp_path: Path):
    config = config_of(tmp_path, write_teacher(tmp_path / 'teacher'))
    multi_hop = dataclasses.replace(config.head, kind='multi_hop')
    with pytest.raises(InputError, match="distill.soft is 1.0; head.kind 'multi_hop' has no soft targets"):
        check_loss_terms_fit_student(dataclasses.replace(config, head=multi_hop))
    inside = config_of(tmp_path, tmp_path / 'teacher/model', **OF_SENTENCES, **{'distill.hidden': 1.0})
    with pytest.raises(InputError, match='distill.hidden needs one row per text; head.sentence_layers makes one row'):
        check_loss_terms_fit_student(inside)


@pytest.mark.parametrize(
    'made, fields, message',
    [
        (GLOBAL, PLAIN, 'has global tokens, but the rows of a student without them mark none'),
        (GLOBAL, OF_STUDENT | {'model.global_tokens': 2}, 'supports at most 1 global tokens; model.global_tokens is 2'),
        (
            {'labels': ('LABEL_0', 'LABEL_1')},
            {},
            'its labels have no names; give them as "id2label" in its',
        ),
    ],
    ids=str,
)
def test_a_teacher_that_does_not_fit_is_refused(
    tmp_path: Path, made: dict[str, Any], fields: dict[str, Any], message: str
):
    assert_refused(config_of(tmp_path, write_teacher(tmp_path / 'teacher', **made), **fields), message)


def test_a_head_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = config_of(tmp_path, write_teacher(tmp_path / 'teacher'))
    towers = dataclasses.replace(config, head=dataclasses.replace(config.head, kind='towers', transform='relu'))
    monkeypatch.setattr('efficient_attention.tasks.fine_tuning.check_head', lambda *_: None)
    assert_refused(towers, "head.kind is 'sequence'; the student has 'towers'")
    alone = dataclasses.replace(towers, distill=dataclasses.replace(towers.distill, soft=0.0, hidden=1.0))
    assert build_run(alone).teacher is not None  # No loss reads the teacher's head.
    assert_refused(
        config_of(tmp_path, tmp_path / 'teacher/model', **OF_SENTENCES),
        'head.sentence_layers must be set in both models or in neither',
    )


def test_attention_that_cannot_be_split(tmp_path: Path):
    config = config_of(
        tmp_path, write_teacher(tmp_path / 'teacher', attention='nystrom(4)', attention_dropout_rate=0.0), **PLAIN
    )
    with pytest.raises(InputError, match=r"distill.teacher .*: mesh.sequence is 2; model.attention 'nystrom\(4\)'"):
        build_run(dataclasses.replace(config, mesh=MeshConfig(sequence=2)), EIGHT)


def test_masked_models(tmp_path: Path):
    """A masked-LM student needs a teacher with a masked-LM head of equal size that separates packed documents."""
    config = masked_lm_config(tmp_path / 'run', **{'data.pairs': 'none'})
    classifier = open_pretrained(write_teacher(tmp_path / 'classifier'))
    with pytest.raises(InputError, match='^distill.teacher there has no masked-LM head, which distill.soft'):
        check_teacher_outputs(config, Path('there'), classifier)
    masked = open_pretrained(write_teacher(tmp_path / 'masked', labels=()))
    with pytest.raises(InputError, match='has 18 logits per word; model.vocab_size is 70$'):
        check_teacher_outputs(config, Path('there'), masked)
    alike = dataclasses.replace(masked, model=dataclasses.replace(masked.model, vocab_size=70, max_length=64))
    check_teacher_outputs(config, Path('there'), alike)
    check_teacher_inputs(config, Path('there'), alike)
    mixing = dataclasses.replace(alike.model, attention='nystrom(4)', attention_dropout_rate=0.0)
    with pytest.raises(InputError, match="^distill.teacher there: data.pairs is 'none', which packs documents"):
        check_teacher_inputs(config, Path('there'), dataclasses.replace(alike, model=mixing))


def test_a_teacher_without_global_tokens_reads_rows_that_mark_some(tmp_path: Path):
    teacher = write_teacher(tmp_path / 'teacher')
    said = []
    for fields in ({}, OF_STUDENT):
        batch = batch_of(build_run(config_of(tmp_path, teacher, **fields)))
        said.append(batch['teacher_logits'])
    assert batch['is_global'].any()
    assert_close(said[0], said[1])


def test_last_vectors_and_embeddings_need_no_map_of_layers(tmp_path: Path):
    teacher = write_teacher(tmp_path / 'teacher', layers=3)  # 3 layers are no multiple of the student's 2.
    fields = {'distill.cosine': 1.0, 'distill.embeddings': 1.0, 'model.layers': 2}
    run = build_run(config_of(tmp_path, teacher, **fields))
    assert run.teacher is not None and run.teacher.layers == {}
    assert {'teacher_cosine', 'teacher_embeddings'} <= set(batch_of(run))


def test_a_teacher_of_another_task_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    config = config_of(tmp_path, write_teacher(tmp_path / 'teacher'))
    config = dataclasses.replace(config, examples=dataclasses.replace(config.examples, name='mrpc'))
    trained_for = {name: dataclasses.replace(config.examples, name=name) for name in ('sst2', 'mrpc')}
    opened = open_pretrained(tmp_path / 'teacher/model')
    for examples in trained_for.values():
        run = dataclasses.replace(config, examples=examples)
        warn_if_teacher_task_differs(config, Path('there'), dataclasses.replace(opened, run=run))
    warn_if_teacher_task_differs(config, Path('there'), opened)  # This folder was not exported from a run.
    [record] = caplog.records
    assert record.getMessage().startswith('the teacher there was trained for sst2, this run is mrpc')


@pytest.mark.parametrize(
    'vocabulary, tokenizer, warns', [({'a': 0}, None, True), (None, None, False), ({'a': 0}, 'tokenizer.json', False)]
)
def test_a_teacher_without_a_tokenizer_is_a_warning(
    vocabulary: dict[str, int] | None, tokenizer: str | None, warns: bool, caplog: pytest.LogCaptureFixture
):
    task, pretrained = SimpleNamespace(vocabulary=vocabulary), SimpleNamespace(tokenizer=tokenizer)
    warn_of_missing_tokenizer(task, Path('there'), pretrained)  # type: ignore[arg-type]
    said = ['the teacher there has no tokenizer file: assuming that its token ids equal those of this run']
    assert caplog.messages == (said if warns else [])
