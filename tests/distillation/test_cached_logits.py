"""Tests that a teacher's logits of the training rows are computed once and cached by teacher and rows."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.config.distill import DistillConfig
from efficient_attention.distillation import cached_logits
from efficient_attention.distillation.cached_logits import (
    CachedTeacherLogits,
    can_cache_logits,
    load_or_compute_logits,
    rows_digest,
)
from efficient_attention.errors import InputError
from efficient_attention.models.fine_tuning import NOWHERE
from efficient_attention.tasks.fine_tuning import FineTuningTask
from efficient_attention.training.loop import train
from efficient_attention.training.run import Run, build_run
from tests.distillation.test_teacher import config_of, saved
from tests.distillation.tiny_teacher import write_teacher
from tests.one_device import EIGHT
from tests.tasks.test_one_step import fine_tuning
from tests.tolerances import assert_close
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture
from tests.training.tiny_fine_tuning import ROWS
from tests.training.tiny_run import drawn_workdir

LONG = {'train.steps': 20, 'examples.buckets': (8, 16)}  # A batch has 8 rows, so 20 steps read all rows.


@pytest.fixture(scope='module')
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp('teacher'))


def run_of(folder: Path, teacher: Path, **fields: Any) -> Run:
    return build_run(config_of(folder, teacher, **(LONG | fields)))


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Run:
    return run_of(tmp_path_factory.mktemp('kept'), teacher)


def files_of(run: Run) -> set[Path]:
    """Returns the files of cached teacher logits in the run's cache."""
    return set(Path(run.config.distill.cache, 'teachers').iterdir())


def kept_of(run: Run, *arguments: Any) -> CachedTeacherLogits | None:
    return load_or_compute_logits(run.teacher, run.task, run.evaluation, *arguments)


def test_kept_logits_are_those_that_the_teacher_says_in_a_step(run: Run):
    lines: list[str] = []
    shutil.rmtree(Path(run.config.distill.cache, 'teachers'), ignore_errors=True)  # Another test may have left files.
    kept = kept_of(run, lines.append)
    assert kept is not None and kept.logits.shape == (ROWS['train'], 2)
    assert len(lines) == 1 and lines[0].startswith('the teacher computes the logits of 160 training rows once')
    for batch in run.task.training_batches(18, 21, 0, 1):
        added = kept.add_teacher_logits(batch)
        assert_close(added['teacher_logits'], run.put_batch_on_devices(batch)['teacher_logits'])
        np.testing.assert_array_equal(run.put_batch_on_devices(added)['teacher_logits'], added['teacher_logits'])


def test_devices_that_share_the_rows_keep_the_same_logits(run: Run, teacher: Path, tmp_path: Path):
    split = build_run(config_of(tmp_path, teacher, **LONG, **{'mesh.data': 2}), EIGHT[:2])
    assert split.mesh.size == 2
    kept, expected = kept_of(split), kept_of(run)
    assert kept is not None and expected is not None
    assert_close(kept.logits, expected.logits)


def test_a_second_run_reads_the_file_of_the_first(run: Run, teacher: Path, monkeypatch: pytest.MonkeyPatch):
    first = kept_of(run)
    monkeypatch.setattr(cached_logits, 'compute_logits', lambda *_: pytest.fail('it is computed anew'))
    folder = Path(run.config.distill.cache)
    second = kept_of(run_of(folder, teacher, **{'train.seed': 5, 'distill.temperature': 3.0}))
    assert first is not None and second is not None
    np.testing.assert_array_equal(first.logits, second.logits)


@pytest.mark.parametrize('index, is_shared, is_written', [(0, True, True), (1, True, False), (1, False, True)])
def test_processes_that_share_a_folder_write_the_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, is_shared: bool, is_written: bool
):
    path = tmp_path / 'kept.npy'
    monkeypatch.setattr(jax, 'process_index', lambda: index)
    monkeypatch.setattr(cached_logits, 'all_processes_have_file', lambda _: is_shared)
    cached_logits.write_logits_per_folder(path, np.arange(3.0))
    assert path.is_file() == is_written


def test_another_teacher_and_other_rows_have_files_of_their_own(tmp_path: Path, run: Run, teacher: Path):
    kept_of(run)
    before, folder = files_of(run), Path(run.config.distill.cache)
    kept_of(run_of(folder, write_teacher(tmp_path / 'other', seed=9), **{'examples.buckets': (16,)}))
    kept_of(run_of(folder, teacher, **{'data.length': 12, 'examples.overlong': 'truncate', 'examples.buckets': (12,)}))
    assert len(before) == 1 and len(files_of(run)) == 3


def test_rows_with_other_global_tokens_are_other_rows():
    row = {'tokens': np.arange(4), 'token_types': np.zeros(4, np.int8)}
    marks = [np.arange(4) < count for count in (1, 2)]
    digests = {rows_digest([row | extra], ()) for extra in ({}, {'is_global': marks[0]}, {'is_global': marks[1]})}
    assert len(digests) == 3


@pytest.mark.parametrize(
    'fields', [{'distill.keep_logits': False}, {'distill.hidden': 1.0}, {'train.steps': 19}], ids=str
)
def test_they_are_not_kept_where_they_are_not_wanted_or_not_all_read(
    tmp_path: Path, teacher: Path, fields: dict[str, Any]
):
    run = run_of(tmp_path, teacher, **fields)
    assert not can_cache_logits(run.teacher, run.task) and kept_of(run) is None


def test_a_file_that_cannot_be_read_is_named(run: Run):
    kept = kept_of(run)
    assert kept is not None
    file = Path(kept.logits.filename)
    file.unlink()  # The memory map stays valid.
    file.write_bytes(b'no numbers')
    with pytest.raises(InputError, match=rf'{file} cannot be read .*; delete it'):
        kept_of(run)
    file.unlink()


@pytest.mark.parametrize('problem', ['question_answering', 'token_classification'])
def test_kept_logits_of_tokens_serve_batches_of_any_bucket(tmp_path: Path, problem: str):
    """The cached logits of a row are right in batches of any bucket, because padding does not change them."""
    config = fine_tuning(tmp_path, problem)
    examples = dataclasses.replace(config.examples, buckets=(16, 24, 32, 40, 48, 56, 64))
    config = dataclasses.replace(config, examples=examples, train=dataclasses.replace(config.train, batch_size=2))
    other = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=5))
    teacher = drawn_workdir(build_run(other), tmp_path / 'drawn')
    distill = DistillConfig(teacher=str(teacher), cache=str(tmp_path))
    steps = dataclasses.replace(config.train, steps=40)
    run = build_run(dataclasses.replace(config, distill=distill, train=steps))
    kept = kept_of(run)
    assert kept is not None and isinstance(run.task, FineTuningTask)
    for batch in run.task.training_batches(0, 12, 0, 1):
        added, live = kept.add_teacher_logits(batch), np.asarray(run.put_batch_on_devices(batch)['teacher_logits'])
        is_row = batch['index'] >= 0
        is_read = (batch['segments'][is_row] > 0)[..., None] | (problem == 'question_answering')
        assert_close(np.where(is_read, added['teacher_logits'][is_row], 0), np.where(is_read, live[is_row], 0))
    assert kept.logits.shape[1] == 64 > max(len(feature['tokens']) for feature in run.task.encoded.train_rows)
    for feature, logits in zip(run.task.encoded.train_rows, kept.logits, strict=True):
        behind = logits[len(feature['tokens']) :]
        assert (behind == NOWHERE).all() if problem == 'question_answering' else np.isfinite(behind).all()


@pytest.mark.lenient_promotion
@pytest.mark.usefixtures('shared_programs')
def test_a_run_with_kept_logits_and_rounding_that_goes_on_is_the_unbroken_one(tmp_path: Path, teacher: Path):
    fields = {'train.steps': 24, 'checkpoint.every_steps': 12, 'eval.every_steps': 24, 'checkpoint.keep': 2}
    fields |= {'model.quantization': 'int8'}
    config = config_of(tmp_path, teacher, **fields)
    train(config, tmp_path / 'run')
    shutil.copytree(tmp_path / 'run', tmp_path / 'second')
    shutil.rmtree(tmp_path / 'second' / 'checkpoints' / '24')
    shutil.rmtree(tmp_path / 'teachers')  # The resumed run computes the logits again.
    train(config, tmp_path / 'second')
    first, second = (saved(tmp_path / name, 24) for name in ('run', 'second'))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert (tmp_path / 'teachers').is_dir()


def test_logits_of_tokens_are_cut_to_the_batch():
    kept = CachedTeacherLogits(np.arange(24.0).reshape(2, 6, 2), has_tokens=True)
    added = kept.add_teacher_logits({'index': np.array([1, -1]), 'tokens': np.zeros((2, 4))})
    np.testing.assert_array_equal(added['teacher_logits'][0], kept.logits[1, :4])


def test_logits_of_tokens_of_shorter_rows_serve_longer_batches():
    kept = CachedTeacherLogits(np.arange(24.0).reshape(2, 6, 2), has_tokens=True, behind=NOWHERE)
    added = kept.add_teacher_logits({'index': np.array([1, 0]), 'tokens': np.zeros((2, 9))})
    np.testing.assert_array_equal(added['teacher_logits'][:, :6], kept.logits[::-1])
    assert added['teacher_logits'].shape == (2, 9, 2) and (added['teacher_logits'][:, 6:] == NOWHERE).all()
