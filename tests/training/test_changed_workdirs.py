"""Tests how a run reacts to metrics that were changed in its workdir, and to checkpoints that are gone."""

import json
import shutil
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.training import guarded_run
from efficient_attention.training.loop import train
from efficient_attention.workdir.checkpoint_reader import UnreadCheckpoint
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import MetricsLog
from tests.training.tiny_run import fresh_workdir

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(tmp_path: Path):
    workdir = fresh_workdir(tmp_path)
    (workdir / 'metrics.jsonl').write_text('{"step": 4, "split": "train"}\n')
    shutil.rmtree(workdir / 'checkpoints')
    with pytest.raises(InputError, match='though step 0 was saved; .*, name a new --workdir, or remove .* to begin'):
        train(read_config(workdir), workdir)
    with pytest.raises(InputError, match='though step 0 was saved; restore it'):
        evaluate_workdir(workdir)
    assert (workdir / 'metrics.jsonl').read_text() and not (workdir / 'checkpoints').exists()


def test_a_run_that_ended_before_its_first_checkpoint_begins_anew_with_a_line(tmp_path: Path):
    assert guarded_run.no_checkpoint_note(tmp_path) == []
    with MetricsLog(tmp_path) as log:
        log.write_metrics(4, 'train', {'loss': 1.0})
    line = 'the run before ended at step 4 or later without a checkpoint; this one begins anew'
    assert guarded_run.no_checkpoint_note(tmp_path) == [line]


def test_a_log_that_was_cut_or_changed_is_named(tmp_path: Path):
    path = tmp_path / 'metrics.jsonl'
    with MetricsLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.write_metrics(step, 'train', {'loss': 1 / step})
        record = {guarded_run.LINES: log.lines, guarded_run.LINES_HASH: log.digest()}
    newest = UnreadCheckpoint(3, json.loads(json.dumps(record)))
    whole = path.read_text()
    for content, line in (
        (whole, ''),
        (whole.replace('0.5', '0.4'), f'{path}: its first 3 lines are not what the run wrote; it goes on without them'),
        (whole.partition('\n')[2], f'{path} has 2 lines of the steps so far, and had 3: the rest is lost'),
    ):
        path.write_text(content)
        with MetricsLog(tmp_path, start_step=3) as log:
            assert guarded_run.damaged_metrics_notes(newest, log) == ([line] if line else [])
    path.write_text(whole + 'x\n')
    with MetricsLog(tmp_path, start_step=3) as log:
        assert guarded_run.damaged_metrics_notes(newest, log) == [
            f'{path}: unusable lines are ignored: line 4: not JSON'
        ]
