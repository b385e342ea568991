"""Tests how cases of the GPU benchmark are run: within a budget, with recorded failures, and again where left off."""

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.errors import InputError, RunError
from scripts.benchmarks.gpu import attention
from scripts.benchmarks.gpu import cases as benchmark
from scripts.benchmarks.gpu.cases import DRY, FULL, UNFINISHED, Case, make_head, run_parts
from scripts.measure_gpu import PARTS

MACHINE = {'device': 'NVIDIA H200', 'count': 1, 'jax': '0.11.2', 'jaxlib': '0.11.2'}
HEAD = make_head('attention', MACHINE, 'abc', '0123', DRY)


def case(side: str, measure: Callable[[], dict[str, Any]] = lambda: {'milliseconds': 1.0}) -> Case:
    return Case('causal 64', side, measure)


def run_part(path: Path, head: dict[str, Any], cases: list[Case], stop: float) -> int:
    return run_parts({path: (head, cases)}, stop)


def soon() -> float:
    return time.monotonic() + 60.0


def results(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text(encoding='utf-8'))['cases']


def raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def measure() -> dict[str, Any]:
        raise error

    return measure


def test_a_failure_is_recorded_in_one_line_and_the_next_case_runs(tmp_path: Path, capsys):
    path = tmp_path / 'runs' / 'attention.json'
    failing = case('cudnn', raising(NotImplementedError('cudnn has\nno GPU')))
    long = case('xla', raising(MemoryError('much ' * 200)))
    assert run_part(path, HEAD, [failing, long, case('blocked')], soon()) == 0
    found = results(path)
    about = {'group': 'causal 64', 'side': 'cudnn', 'is_peer': False}
    assert found['causal 64: cudnn'] == about | {'reason': 'NotImplementedError: cudnn has no GPU'}
    assert len(found['causal 64: xla']['reason']) < 260
    assert found['causal 64: blocked']['milliseconds'] == 1.0
    assert capsys.readouterr().out.count('\n') == 3


def test_no_case_starts_after_the_budget_and_the_next_call_goes_on(tmp_path: Path):
    path, ran = tmp_path / 'attention.json', []

    def measured(name: str) -> Case:
        return case(name, lambda: ran.append(name) or {'milliseconds': 1.0})

    every = [measured(name) for name in 'abc']
    assert run_part(path, HEAD, every, time.monotonic()) == 3 and not ran
    assert run_part(path, HEAD, every[:2], soon()) == 0
    assert run_part(path, HEAD, every, soon()) == 0
    assert ran == ['a', 'b', 'c']


def test_a_case_that_ended_the_process_is_tried_again_after_all_others(tmp_path: Path):
    path, ran = tmp_path / 'attention.json', []
    killed = case('a', raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_part(path, HEAD, [killed], soon())
    assert results(path)['causal 64: a']['reason'] == UNFINISHED
    every = [case(name, lambda name=name: ran.append(name) or {}) for name in 'ab']
    run_part(path, HEAD, every, soon())
    assert ran == ['b', 'a']


def test_the_first_cases_of_all_parts_come_first_and_unfinished_ones_last(tmp_path: Path):
    ran: list[str] = []

    def measured(name: str, *, is_first: bool = False) -> Case:
        return Case('causal 64', name, lambda: ran.append(name) or {'milliseconds': 1.0}, is_first=is_first)

    parts = {
        tmp_path / 'numerics.json': (
            HEAD | {'part': 'numerics'},
            [measured('a'), measured('b', is_first=True), measured('killed', is_first=True)],
        ),
        tmp_path / 'attention.json': (HEAD, [measured('c'), measured('d', is_first=True)]),
    }
    unfinished = {'group': 'causal 64', 'side': 'killed', 'is_peer': False, 'reason': UNFINISHED}
    report = HEAD | {'part': 'numerics', 'cases': {'causal 64: killed': unfinished}}
    (tmp_path / 'numerics.json').write_text(json.dumps(report))
    assert run_parts(parts, time.monotonic()) == 5 and not ran
    assert run_parts(parts, soon()) == 0
    assert ran == ['b', 'd', 'a', 'c', 'killed']


def test_another_commit_with_the_same_code_goes_on(tmp_path: Path):
    path = tmp_path / 'attention.json'
    run_part(path, HEAD, [case('a')], soon())
    run_part(path, HEAD | {'commit': 'def'}, [case('b')], soon())
    assert set(results(path)) == {'causal 64: a', 'causal 64: b'}


def test_the_digest_is_of_the_measured_code(tmp_path: Path):
    for name in ('efficient_attention/attend.py', 'scripts/benchmarks/gpu/cases.py', 'docs/page.md'):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('1')
    first = benchmark.code_digest(tmp_path)
    (tmp_path / 'docs' / 'page.md').write_text('2')
    assert benchmark.code_digest(tmp_path) == first
    (tmp_path / 'efficient_attention' / 'attend.py').write_text('2')
    assert benchmark.code_digest(tmp_path) != first


def test_a_device_that_answers_no_more_ends_the_call(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(benchmark, 'is_device_alive', lambda: False)
    every = [case('a', raising(RuntimeError('illegal address'))), case('b')]
    with pytest.raises(RunError, match="does not answer after the case 'causal 64: a'"):
        run_part(tmp_path / 'attention.json', HEAD, every, soon())
    assert 'illegal address' in results(tmp_path / 'attention.json')['causal 64: a']['reason']


@pytest.mark.parametrize(
    'head, message',
    [
        (HEAD | {'code': '4567'}, "measured with code '0123' instead of '4567'; name another --output"),
        (HEAD | {'machine': MACHINE | {'device': 'cpu'}}, "device 'NVIDIA H200' instead of 'cpu'"),
        (HEAD | {'is_dry_run': False}, 'is_dry_run True instead of False'),
    ],
)
def test_a_file_of_other_code_or_another_device_is_refused(head: dict, message: str, tmp_path: Path):
    path = tmp_path / 'attention.json'
    run_part(path, HEAD, [case('a')], soon())
    with pytest.raises(InputError) as error:
        run_part(path, head, [case('b')], soon())
    assert message in str(error.value) and str(path) in str(error.value)
    assert set(results(path)) == {'causal 64: a'}


@pytest.mark.parametrize('text', ['{', '[]', '{"part": "attention"}', '{"cases": 3}'])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path):
    path = tmp_path / 'attention.json'
    path.write_text(text)
    with pytest.raises(InputError, match='not a report of this script'):
        run_part(path, HEAD, [case('a')], soon())
    assert path.read_text() == text


def test_a_program_is_timed_with_its_range_and_speed(monkeypatch):
    monkeypatch.setattr(benchmark, 'peak_flops', lambda _: 1e12)
    figures = benchmark.measure_program(lambda x: x @ x, [jnp.ones((64, 64))], FULL, flops=2 * 64**3)
    low, high = figures['milliseconds_range']
    assert 0 < low <= figures['milliseconds'] <= high and figures['repeats'] == FULL.repeats
    assert figures['calls'] > 1  # a call takes far less time than a measurement
    assert figures['tflops_per_second'] == pytest.approx(2 * 64**3 / figures['milliseconds'] * 1e-9)
    assert figures['peak_share'] == pytest.approx(figures['tflops_per_second'])
    rates = benchmark.tokens_per_second({'milliseconds': 2.0, 'milliseconds_range': [1.0, 4.0]}, 8)
    assert rates == {'tokens_per_second': 4000.0, 'tokens_per_second_range': [2000.0, 8000.0]}


def test_the_peak_of_memory_is_known_only_where_it_rose():
    assert benchmark.peak_since(None) == {}
    peak = benchmark.peak_bytes()
    assert peak is None or benchmark.peak_since(peak) == {}


def test_a_copy_without_git_needs_the_flag_commit(tmp_path: Path):
    with pytest.raises(InputError, match='git does not tell the commit of this copy; name it with --commit') as error:
        benchmark.current_commit(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert benchmark.output_of(['no-such-command']) == ''


@pytest.mark.parametrize('settings', [DRY, FULL])
def test_the_cases_of_each_part_have_different_names(settings: benchmark.Settings):
    for part in PARTS:
        names = [one.name for one in importlib.import_module(f'scripts.benchmarks.gpu.{part}').list_cases(settings)]
        assert names and len(names) == len(set(names)), part
    assert settings.is_dry or 0 < sum(one.is_first for one in attention.list_cases(settings)) < 30


def test_a_wrong_result_is_said():
    errors = {'output_error': 0.1, 'gradient_error': 0.2}
    assert benchmark.describe(errors | {'is_wrong': True}) == 'errors 1.0e-01, 2.0e-01, WRONG'


def test_the_device_is_described():
    found = benchmark.describe_machine()
    assert found['device'] == jax.local_devices()[0].device_kind and found['jax'] == jax.__version__
