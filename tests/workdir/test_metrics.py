"""Tests that metrics.jsonl has every step once and stays valid after any end of a process."""

import json
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError, RunError
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter, SaveError
from efficient_attention.workdir.metrics import MetricsLog, changed_lines_note, read_metrics, unreadable_lines_note
from tests.workdir.test_checkpoint_writer import make_state
from tests.workdir.test_tensorboard_events import HalfWritten


def write(workdir, steps, *, start_step: int = 0, split: str = 'train') -> None:
    with MetricsLog(workdir, start_step=start_step) as log:
        for step in steps:
            log.write_metrics(step, split, {'loss': 1 / (step + 1)})


def test_lines_hold_step_split_and_plain_numbers(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write_metrics(
            10, 'train', {'loss': jnp.float32(0.5), 'skipped': np.int32(3), 'rate': 1e-3, 'half': jnp.bfloat16(2)}
        )
        text = (tmp_path / 'metrics.jsonl').read_text()  # each line is flushed before the log is closed
    assert text == '{"step": 10, "split": "train", "loss": 0.5, "skipped": 3, "rate": 0.001, "half": 2.0}\n'


def test_numbers_that_are_not_finite_stay_json_and_come_back(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write_metrics(1, 'train', {'a': jnp.float32('nan'), 'b': float('inf'), 'c': -math.inf})

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


WHOLE = '{"step": 1, "split": "train", "loss": 0.5}'
BAD = {
    '{"step": 1}': 'not a JSON object with step and split',
    'hello': 'not JSON',
    '{"step": 2, "split": "train", "lo': 'not JSON',
    '[1, 2]': 'not a JSON object with step and split',
    '{"step": -1, "split": "train"}': "step -1 of split 'train' is not a valid step",
    WHOLE: "step 1 of split 'train' comes twice",
    WHOLE.replace('0.5', '0.7'): "step 1 of split 'train' comes twice",
    **{
        f'{{"step": 1, "split": "held_out", "loss": {value}}}': f'loss is {value}, which is no number'
        for value in ('"an"', 'true', 'null', '[1.0]', '{"a": 1}')
    },
}


@pytest.mark.parametrize('bad', BAD)
def test_a_line_that_cannot_be_used_is_left_out_and_named(tmp_path, bad: str):
    path = tmp_path / 'metrics.jsonl'
    path.write_text(f'{WHOLE}\n{bad}\n{{"step": 3, "split": "train", "loss": 0.25}}\n')
    assert [(line['step'], line['loss']) for line in read_metrics(tmp_path)] == [(1, 0.5), (3, 0.25)]
    with MetricsLog(tmp_path, start_step=3) as log:
        assert log.dropped == [f'line 2: {BAD[bad]}']
        line = f'{path}: unusable lines are ignored: line 2: {BAD[bad]}'
        assert unreadable_lines_note(tmp_path, log.dropped) == [line]
        assert unreadable_lines_note(tmp_path, log.dropped * 3) == [f'{line}, and 2 more']
        log.write_metrics(4, 'train', {'loss': 0.125})
    assert [line['step'] for line in read_metrics(tmp_path)] == [1, 3, 4]
    with MetricsLog(tmp_path, start_step=4) as log:
        assert log.dropped == []


def test_a_digit_that_was_changed_is_noticed(tmp_path):
    write(tmp_path, [1, 2])
    with MetricsLog(tmp_path, start_step=2) as log:
        log.write_metrics(3, 'train', {'loss': math.nan})
        digest = log.digest()
    path = tmp_path / 'metrics.jsonl'
    assert changed_lines_note(tmp_path, read_metrics(tmp_path), digest) == []
    path.write_text(path.read_text().replace('0.5', '0.6'))
    line = f'{path}: its first 3 lines are not what the run wrote; it goes on without them'
    assert changed_lines_note(tmp_path, read_metrics(tmp_path), digest) == [line]


def test_a_workdir_without_metrics_has_none(tmp_path):
    assert read_metrics(tmp_path) == []


def test_trackers_get_each_new_line_once(tmp_path):
    write(tmp_path, [1, 2])
    sent: list = []
    with MetricsLog(tmp_path, start_step=2) as log:
        log.trackers = SimpleNamespace(log=lambda *line: sent.append(line))
        for step in (2, 3):
            log.write_metrics(step, 'train', {'loss': jnp.float32(0.5)})
    assert sent == [(3, 'train', {'loss': 0.5})]


def test_lines_that_cannot_be_written_are_kept_for_the_next_try(tmp_path, caplog):
    expected = tmp_path / 'expected'
    write(expected, range(1, 9))
    with MetricsLog(tmp_path) as log:
        log._file = HalfWritten(log._file)
        for step in range(1, 9):
            if step == 6:
                log._file = log._file.file
            log.write_metrics(step, 'train', {'loss': 1 / (step + 1)})
    assert (tmp_path / 'metrics.jsonl').read_bytes() == (expected / 'metrics.jsonl').read_bytes()
    path = tmp_path / 'metrics.jsonl'
    line = f'{path}: cannot be written (No space left on device); its lines are kept for the next try'
    assert caplog.messages == [line]


def test_a_step_gets_no_checksums_while_its_metrics_are_unwritten(tmp_path):
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints, MetricsLog(tmp_path) as log:
        checkpoints.before_seal = log.check_lines_written
        whole = log._file
        for step in (1, 2, 3):
            log._file = HalfWritten(whole) if step == 2 else whole
            log.write_metrics(step, 'train', {'loss': 1.0})
            checkpoints.save(step, make_state(step), record={})
            if step == 2:
                with pytest.raises(SaveError, match=r'step 2 not saved .*metrics.jsonl: lines up to this step are not'):
                    checkpoints.wait_until_saved()
                assert checkpoints.reader.written_steps() == [1]
    assert checkpoints.reader.complete_steps() == [1, 3]
    assert [line['step'] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_lines_that_are_never_written_end_the_run(tmp_path, capfd):
    lost = 'metrics.jsonl: the last 2 line'
    with pytest.raises(RunError, match=lost), MetricsLog(tmp_path) as log:
        log._file = HalfWritten(log._file)
        log.write_metrics(1, 'train', {'loss': 1.0})
        log.write_metrics(2, 'train', {'loss': 1.0})
    with pytest.raises(KeyboardInterrupt), MetricsLog(tmp_path) as log:  # another error ends the `with` block
        log._file = HalfWritten(log._file)
        log.write_metrics(1, 'train', {'loss': 1.0})
        log.write_metrics(2, 'train', {'loss': 1.0})
        raise KeyboardInterrupt
    assert lost in capfd.readouterr().err


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr('jax.process_index', lambda: 1)
    write(tmp_path, [1])
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / 'metrics.jsonl').mkdir()
    with pytest.raises(InputError, match=r'metrics.jsonl: cannot be read \(Is a directory\)'):
        read_metrics(tmp_path)
