"""metrics.jsonl and TensorBoard events: every step once, always JSON, whatever happened to the process before."""

import json
import math
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError, RunError
from efficient_attention.workdir.checkpoint_writer import Checkpoints, SaveError
from efficient_attention.workdir.metrics import MetricsLog, best_evaluation, read_metrics
from tests.workdir.test_checkpoint_writer import make_state
from tests.workdir.test_events import HalfWritten


def write(workdir, steps, *, start_step: int = 0, split: str = 'train') -> None:
    with MetricsLog(workdir, start_step=start_step) as log:
        for step in steps:
            log.write(step, split, {'loss': 1 / (step + 1)})


def test_lines_hold_step_split_and_plain_numbers(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(
            10, 'train', {'loss': jnp.float32(0.5), 'skipped': np.int32(3), 'rate': 1e-3, 'half': jnp.bfloat16(2)}
        )
        text = (tmp_path / 'metrics.jsonl').read_text()  # before closing: each line is flushed
    assert text == '{"step": 10, "split": "train", "loss": 0.5, "skipped": 3, "rate": 0.001, "half": 2.0}\n'


def test_numbers_that_are_not_finite_stay_json_and_come_back(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(1, 'train', {'a': jnp.float32('nan'), 'b': float('inf'), 'c': -math.inf})

    def refuse(constant: str) -> None:
        raise AssertionError(f'{constant} is not JSON')

    line = (tmp_path / 'metrics.jsonl').read_text()
    assert json.loads(line, parse_constant=refuse)['a'] == 'nan'
    (found,) = read_metrics(tmp_path)
    assert math.isnan(found['a'])
    assert (found['b'], found['c']) == (math.inf, -math.inf)


def test_a_resumed_run_has_each_step_once(tmp_path):
    write(tmp_path, [10, 20, 30, 40])
    write(tmp_path, [30, 40, 50], start_step=20)
    assert [line['step'] for line in read_metrics(tmp_path)] == [10, 20, 30, 40, 50]


def test_what_was_measured_at_the_step_of_the_restart_is_not_written_twice(tmp_path):
    write(tmp_path, [10, 20])
    write(tmp_path, [20], start_step=20, split='held_out')
    write(tmp_path, [20, 30], start_step=20, split='held_out')
    found = [(line['step'], line['split']) for line in read_metrics(tmp_path)]
    assert found == [(10, 'train'), (20, 'train'), (20, 'held_out'), (30, 'held_out')]


def test_a_new_start_in_a_used_workdir_leaves_nothing_of_the_old_steps(tmp_path):
    write(tmp_path, [10, 20])
    write(tmp_path, [10])
    assert [line['step'] for line in read_metrics(tmp_path)] == [10]


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path):
    write(tmp_path, [10, 20])
    with (tmp_path / 'metrics.jsonl').open('a') as file:
        file.write('{"step": 30, "spl')
    assert [line['step'] for line in read_metrics(tmp_path)] == [10, 20]
    write(tmp_path, [30], start_step=20)
    assert [line['step'] for line in read_metrics(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize('bad', ['{"step": 1}', 'hello', '[1, 2]', '3'])
def test_another_damaged_line_is_named(tmp_path, bad):
    (tmp_path / 'metrics.jsonl').write_text('{"step": 1, "split": "train"}\n' + bad + '\n')
    with pytest.raises(InputError, match=rf'^{tmp_path}/metrics.jsonl, line 2: not a JSON object'):
        read_metrics(tmp_path)


@pytest.mark.parametrize('value', ['"an"', 'true', 'null', '[1.0]', '{"a": 1}'])
def test_a_metric_that_is_no_number_is_named(tmp_path, value: str):
    (tmp_path / 'metrics.jsonl').write_text(f'{{"step": 1, "split": "held_out", "loss": {value}}}\n')
    line = f'{tmp_path}/metrics.jsonl, line 1: loss is {value}, which is no number'
    with pytest.raises(InputError, match=f'^{re.escape(line)}$'):
        read_metrics(tmp_path)


def test_a_workdir_without_metrics_has_none(tmp_path):
    assert read_metrics(tmp_path) == []


def test_tensorboard_events_are_written(tmp_path):
    write(tmp_path / 'new', [1, 2])
    (events,) = (tmp_path / 'new' / 'tensorboard').iterdir()
    assert b'train/loss' in events.read_bytes()


def test_lines_that_cannot_be_written_are_kept_for_the_next_try(tmp_path, caplog):
    expected = tmp_path / 'expected'
    write(expected, range(1, 9))
    with MetricsLog(tmp_path) as log:
        log._file = HalfWritten(log._file)
        for step in range(1, 9):
            if step == 6:
                log._file = log._file.file
            log.write(step, 'train', {'loss': 1 / (step + 1)})
    assert (tmp_path / 'metrics.jsonl').read_bytes() == (expected / 'metrics.jsonl').read_bytes()
    path = tmp_path / 'metrics.jsonl'
    line = f'{path}: cannot be written (No space left on device); its lines are kept for the next try'
    assert caplog.messages == [line]


def test_a_step_is_not_sealed_while_its_lines_are_unwritten(tmp_path):
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints, MetricsLog(tmp_path) as log:
        checkpoints.before_seal = log.check_written
        whole = log._file
        for step in (1, 2, 3):
            log._file = HalfWritten(whole) if step == 2 else whole
            log.write(step, 'train', {'loss': 1.0})
            checkpoints.save(step, make_state(step), record={})
            if step == 2:
                with pytest.raises(SaveError, match=r'step 2 not saved .*metrics.jsonl: lines up to this step are not'):
                    checkpoints.wait()
                assert checkpoints.reader.written_steps() == [1]
    assert checkpoints.reader.steps() == [1, 3]
    assert [line['step'] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_lines_that_are_never_written_end_the_run(tmp_path, capfd):
    lost = 'metrics.jsonl: the last 2 line'
    with pytest.raises(RunError, match=lost), MetricsLog(tmp_path) as log:
        log._file = HalfWritten(log._file)
        log.write(1, 'train', {'loss': 1.0})
        log.write(2, 'train', {'loss': 1.0})
    with pytest.raises(KeyboardInterrupt), MetricsLog(tmp_path) as log:  # which ends it with another error
        log._file = HalfWritten(log._file)
        log.write(1, 'train', {'loss': 1.0})
        log.write(2, 'train', {'loss': 1.0})
        raise KeyboardInterrupt
    assert lost in capfd.readouterr().err


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr('jax.process_index', lambda: 1)
    write(tmp_path, [1])
    assert list(tmp_path.iterdir()) == []


LINES = [
    {'step': 1, 'split': 'train', 'f1': 9.0},
    {'step': 1, 'split': 'held_out', 'f1': 0.5, 'loss': 3.0},
    {'step': 2, 'split': 'held_out', 'f1': 0.3, 'loss': 2.0},
    {'step': 3, 'split': 'held_out', 'f1': 0.75, 'loss': 4.0},
    {'step': 4, 'split': 'held_out', 'f1': 0.25, 'loss': 5.0},
    {'step': 5, 'split': 'held_out', 'f1': math.nan, 'loss': math.nan},
]


@pytest.mark.parametrize('metric, mode, step', [('f1', 'max', 3), ('f1', 'min', 4), ('loss', 'min', 2)])
def test_the_best_evaluation_counts(tmp_path: Path, metric: str, mode: str, step: int):
    lines = ''.join(json.dumps(line).replace('NaN', '"nan"') + '\n' for line in LINES)
    (tmp_path / 'metrics.jsonl').write_text(lines)
    best = best_evaluation(tmp_path, CheckpointConfig(best_metric=metric, best_mode=mode))
    assert best == {name: value for name, value in LINES[step].items() if name != 'split'}


def test_an_evaluation_before_the_last_pruning_is_not_the_best(tmp_path: Path):
    lines = [
        {'step': 4, 'split': 'held_out', 'f1': 0.9, 'still_pruning': 1.0},
        {'step': 8, 'split': 'held_out', 'f1': 0.8},
    ]
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    assert best_evaluation(tmp_path, CheckpointConfig(best_metric='f1', best_mode='max'))['step'] == 8


def test_without_an_evaluation_there_is_no_best(tmp_path: Path):
    assert best_evaluation(tmp_path, CheckpointConfig(best_metric='f1')) == {}
