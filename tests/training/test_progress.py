"""Tests the progress shown during a run: plain lines, a bar, or nothing."""

import contextlib
import io
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from rich.console import Console

from efficient_attention.training.guarded_run import guarded_run
from efficient_attention.training.progress import (
    BarProgress,
    LineProgress,
    format_duration,
    format_metrics,
    show_long_activity,
    show_progress,
)
from efficient_attention.workdir.config_file import read_config
from tests.training.tiny_run import fresh_workdir, tiny_config

METRICS = {
    'loss': jnp.float32(2.5),
    'other': 1.0,
    'tokens_per_second': 12345.6,
    'waiting_share': 0.0123,
    'flops_utilisation': 0.4,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_metrics_as_text_in_a_fixed_order():
    assert format_metrics(METRICS) == ['loss 2.5000', 'tokens/s 12,346', 'waiting for input 1.2 %', 'FLOPs 40.0 %']
    assert format_metrics({'loss': float('nan')}) == ['loss nan']


@pytest.mark.parametrize(
    ('seconds', 'text'), [(0, '0:00:00'), (59.6, '0:01:00'), (3723, '1:02:03'), (90000, '25:00:00')]
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_lines_carry_the_time_left_at_the_speed_since_this_process_began():
    now, stream = [0.0], io.StringIO()
    progress = LineProgress(1000, start_step=500, stream=stream, clock=lambda: now[0])
    now[0] = 20.0
    progress.advance_display(600)
    progress.report_metrics(600, {'loss': 2.5})
    progress.print_line('held-out loss 3')
    assert stream.getvalue() == 'step 600/1000  loss 2.5000  0:01:20 left\nheld-out loss 3\n'


def test_the_first_step_which_compiles_is_left_out_of_the_speed():
    now, stream = [0.0], io.StringIO()
    progress = LineProgress(100, start_step=0, stream=stream, clock=lambda: now[0])
    for step, now[0] in ((1, 30.0), (2, 31.0), (50, 79.0)):
        progress.advance_display(step)
    progress.report_metrics(50, {})
    assert stream.getvalue() == 'step 50/100  0:00:50 left\n'


def test_the_time_of_later_compilations_is_left_out_of_the_speed():
    now, stream = [0.0], io.StringIO()
    progress = LineProgress(100, start_step=0, stream=stream, clock=lambda: now[0])
    progress.exclude_seconds(29.0)
    now[0] = 30.0
    progress.report_metrics(1, {})  # the only step so far took one second without its compilation
    progress.advance_display(1)
    now[0] = 75.0
    progress.exclude_seconds(40.0)
    progress.advance_display(6)
    progress.report_metrics(6, {})
    assert stream.getvalue() == 'step 1/100  0:01:39 left\nstep 6/100  0:01:34 left\n'


def test_the_bar_too_leaves_out_compilations():
    bar = BarProgress(100, start_step=0, console=Console(file=io.StringIO()))
    column = bar.display.columns[-2]
    column.render(SimpleNamespace(completed=1, elapsed=30.0, remaining=99))
    bar.exclude_seconds(40.0)
    drawn = column.render(SimpleNamespace(completed=6, elapsed=75.0, remaining=94))
    assert drawn.plain == '0:01:34 left'


def test_a_line_breaks_each_silence_of_ten_seconds():
    now, doing, stream = [0.0], ['compiling'], io.StringIO()
    progress = LineProgress(100, start_step=0, stream=stream, activity=lambda: doing[0], clock=lambda: now[0])
    for now[0] in range(0, 26):
        progress.break_silence()
    progress.print_line('compiled')
    progress.advance_display(7)
    doing[0] = 'training'
    for now[0] in range(26, 37):
        progress.break_silence()
    assert stream.getvalue().splitlines() == [
        'step 0/100  compiling for 10 s',
        'step 0/100  compiling for 20 s',
        'compiled',
        'step 7/100  training for 9 s',
    ]


def test_a_thread_breaks_silences_until_the_end(monkeypatch):
    monkeypatch.setattr('efficient_attention.training.progress.QUIET_SECONDS', 0.0)
    monkeypatch.setattr('efficient_attention.training.progress.LOOK_SECONDS', 0.001)
    stream = io.StringIO()
    with show_progress(10, stream=stream, activity=lambda: 'evaluating'):
        while 'step 0/10  evaluating for 0 s\n' not in stream.getvalue():
            pass
    threads = [thread for thread in threading.enumerate() if thread.name == 'progress']
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_a_long_activity_has_a_line_every_ten_seconds(monkeypatch):
    monkeypatch.setattr('efficient_attention.training.progress.LOOK_SECONDS', 0.001)
    stream, now = io.StringIO(), iter(range(1000))  # each look takes a second or two of this clock
    with show_long_activity('restoring step 500', stream=stream, clock=lambda: float(next(now, 1000))):
        while stream.getvalue().count('\n') < 2:
            pass
    lines = re.findall(r'^restoring step 500 for (\d+) s$', stream.getvalue(), re.MULTILINE)
    assert 10 <= int(lines[0]) < 15 and 20 <= int(lines[1]) < 30
    monkeypatch.setattr('efficient_attention.training.progress.process_index_and_count', lambda: (1, 2))
    others = io.StringIO()
    with show_long_activity('restoring step 500', stream=others, clock=lambda: 1000.0 * next(now)):
        time.sleep(0.05)
    assert not others.getvalue()


def test_without_a_terminal_there_are_lines():
    stream = io.StringIO()
    with show_progress(10, stream=stream) as progress:
        progress.advance_display(1)
        progress.report_metrics(5, METRICS)
    assert stream.getvalue().startswith(
        'step 5/10  loss 2.5000  tokens/s 12,346  waiting for input 1.2 %  FLOPs 40.0 %  0:00:0'
    )
    assert '\x1b' not in stream.getvalue()


def test_a_terminal_has_a_bar_and_lines_above_it(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    stream = Terminal()
    with show_progress(10, start_step=2, stream=stream) as progress:
        progress.report_metrics(5, METRICS)
        progress.print_line('saved [checkpoint] 5')
        progress.advance_display(10)
    assert 'saved [checkpoint] 5' in stream.getvalue()
    assert '10/10' in stream.getvalue()


@pytest.mark.parametrize(('width', 'last'), [(80, 'waiting for input 1.2 %'), (110, 'FLOPs 40.0 %')])
def test_the_bar_stays_on_one_line(width, last):
    console = Console(file=io.StringIO(), width=width, height=20, force_terminal=True)
    bar = BarProgress(10_000, start_step=0, console=console)
    bar.report_metrics(2_000, {**METRICS, 'tokens_per_second': 99_999})
    lines = console.render_lines(bar.display.get_renderable(), pad=False)
    assert len(lines) == 1
    text = ''.join(segment.text for segment in lines[0])
    assert ' left ' in text
    assert last in text


def test_other_processes_are_silent(monkeypatch):
    monkeypatch.setattr('jax.process_index', lambda: 1)
    stream = io.StringIO()
    with show_progress(10, stream=stream) as progress:
        progress.advance_display(1)
        progress.exclude_seconds(1.0)
        progress.report_metrics(1, METRICS)
        progress.print_line('x')
    assert stream.getvalue() == ''


def test_a_restored_checkpoint_and_an_imported_folder_have_lines(tmp_path: Path, monkeypatch):
    said: list[str] = []

    @contextlib.contextmanager
    def record(activity: str):
        said.append(activity)
        yield

    for module in ('guarded_run', 'initial_params'):
        monkeypatch.setattr(f'efficient_attention.training.{module}.show_long_activity', record)
    workdir = fresh_workdir(tmp_path / 'first')
    with guarded_run(read_config(workdir), workdir) as run:
        assert int(run.state.step) == 0
    assert said == [f'verifying the checkpoints in {workdir}', 'restoring step 0']
    said.clear()
    fields = {'train.start_from': str(workdir), 'data.tokenizer': str(workdir / 'tokenizer.json')}
    with guarded_run(tiny_config(tmp_path / 'second', **fields), tmp_path / 'run'):
        verifying = f'verifying the checkpoints in {tmp_path / "run"}'
        assert said == [verifying, f'importing the parameters of {workdir}', f'verifying {workdir}']
