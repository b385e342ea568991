"""Tests the memory benchmark: its ratios and growth, its command line, and one real measurement."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import memory as benchmark


def fake_run(program: list[str], shape: dict[str, Any]) -> dict[str, Any]:
    """Replaces a measuring process: returns figures that follow from a formula."""
    assert program == benchmark.CHILD
    model = shape['model']
    layers = model.get('layers', 0)
    grows = model.get('stack', 'plain') == 'plain'
    bytes_ = (10 * layers if grows else 20) * 2**20
    figures = {'name': 'fake', 'parameters': 100 * layers, 'temporary_bytes': bytes_, 'argument_bytes': 1}
    seconds = {'causal': 4.0, 'sparse_fixed(128, 32)': 2.0, 'sparse_strided(128)': 1.0}[model['attention']]
    if not shape['steps']:
        return figures
    return figures | {'seconds': [seconds, 3 * seconds, seconds / 2], 'peak_bytes': bytes_ + 5}


def measure(run: benchmark.Run = fake_run, **changes: Any) -> list[dict[str, Any]]:
    fields = {'parts': list(benchmark.PARTS), 'layers': None, 'lengths': None, 'segments': None}
    options = SimpleNamespace(
        **(fields | {'vocab_size': None, 'rounds': 2, 'steps': 3, 'quick': False, 'plot': None} | changes)
    )
    return [json.loads(json.dumps(report)) for report in benchmark.measure(options, run)]


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py memory` with figures that follow from a formula."""
    monkeypatch.setattr(command, 'run_measurement_process', lambda program, shape, allocator: fake_run(program, shape))  # noqa: ARG005
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'memory', *map(str, arguments)])
    command.main()


def test_growth_and_ratios_follow_from_the_figures():
    report = measure()[-1]
    assert report['depth']['growth']['plain'] == {'6': 1.0, '12': 2.0, '24': 4.0, '48': 8.0}
    assert set(report['depth']['growth']['reversible'].values()) == {1.0}
    rows = {(row['side'], row['size']): row for row in report['depth']['ratios']}
    assert rows['reversible', 24]['temporary_bytes'] == pytest.approx(20 / 240)
    rows = {row['side']: row for row in report['patterns']['ratios']}
    assert rows['fixed']['seconds'] == 0.5 and rows['strided']['seconds'] == 0.25
    assert rows['fixed']['against'] == 'dense' and rows['fixed']['size'] == 12288
    assert report['patterns']['growth'] == {}


def test_without_steps_there_are_no_times_and_no_resident_memory(capsys: pytest.CaptureFixture[str]):
    report = measure(parts=['depth'], layers=[2, 4], steps=0)[-1]
    row = report['depth']['sides']['plain']['4']
    assert (row['seconds'], row['range'], row['peak_bytes']) == (None, None, None)
    ratios = capsys.readouterr().out.splitlines()
    assert '      4 remat / plain: 1.000 x the temporary memory' in ratios


def test_quick_and_the_vocabulary_size_change_what_is_measured():
    shapes = []

    def run(program: list[str], shape: dict[str, Any]) -> dict[str, Any]:
        shapes.append(shape)
        return fake_run(program, shape)

    measure(run, parts=['depth', 'patterns'], quick=True, vocab_size=256, rounds=1)
    assert {shape['model']['vocab_size'] for shape in shapes} == {256}
    assert all(shape['rows'] == shape['steps'] == 1 and shape['length'] <= 256 for shape in shapes)
    assert {shape['model']['layers'] for shape in shapes} == {1, 2}


def test_every_size_is_reported_when_it_is_done():
    reports = measure(parts=['depth', 'patterns'], layers=[4, 2, 2])
    assert [list(report['depth']['sides']['plain']) for report in reports] == [['2'], ['2', '4'], ['2', '4']]
    assert ['patterns' in report for report in reports] == [False, False, True]


def test_sides_take_turns():
    asked = []

    def run(program: list[str], shape: dict[str, Any]) -> dict[str, Any]:
        asked.append(shape['model']['attention'])
        return fake_run(program, shape)

    measure(run, parts=['patterns'], rounds=2)
    assert asked[:3] == asked[3:][::-1] and len(set(asked)) == 3


def test_every_row_is_a_model_and_differs_from_the_baseline_only_in_its_choice():
    for part in benchmark.PARTS.values():
        shapes = {side: part.benchmark_shape(side, part.sizes[0], 1) for side in part.sides}
        models = [ModelConfig(**shape['model']) for shape in shapes.values()]
        assert len(set(models)) == len(part.sides)
        assert len({(shape['rows'], shape['length']) for shape in shapes.values()}) == 1
        for side, shape in shapes.items():
            choice = {*part.sides[side], 'attention'}
            first = shapes[next(iter(part.sides))]['model']
            rest, wanted = (
                {name: value for name, value in model.items() if name not in choice}
                for model in (shape['model'], first)
            )
            assert rest == wanted


def test_compressed_memory_reaches_as_far_as_the_plain_one_that_it_is_compared_with():
    models = {
        side: benchmark.COMPRESSION.benchmark_shape(side, 256, 1)['model'] for side in benchmark.COMPRESSION.sides
    }
    reaches = {
        side: model['memory_length'] + model.get('compressed_length', 0) * model.get('compression_rate', 1)
        for side, model in models.items()
    }
    assert reaches == {'plain': 1280, 'mean': 1280, 'convolution, loss': 1280}
    weights = {side: model.get('reconstruction_weight', 0.0) for side, model in models.items()}
    assert weights == {'plain': 0.0, 'mean': 0.0, 'convolution, loss': 1.0}


def test_segments_are_the_sizes_of_compression(monkeypatch, capsys):
    run_command(monkeypatch, '--parts', 'compression', '--segments', '128,64')
    printed = capsys.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines() if ' plain ' in line and '/' not in line] == [
        ['64', 'plain'],
        ['128', 'plain'],
    ]
    assert (
        '    128 mean / plain: 1.000 x the temporary memory, 1.000 x the resident memory, 1.000 x the time' in printed
    )
    assert '4000.0' in printed  # milliseconds


@pytest.mark.lenient_promotion
@pytest.mark.parametrize('side', benchmark.COMPRESSION.sides)
def test_a_step_with_memory_is_measured(side: str):
    small = {'width': 16, 'heads': 2, 'layers': 1, 'feed_forward_width': 16, 'vocab_size': 32, 'memory_length': 8}
    small |= {'compressed_length': 4} if side != 'plain' else {}
    shape = benchmark.COMPRESSION.benchmark_shape(side, 8, steps=1) | {'rows': 2}
    found = benchmark.measure_shape(shape | {'model': shape['model'] | small})
    assert len(found['seconds']) == 1 and found['temporary_bytes'] > 0


def test_memory_is_full_before_the_first_step():
    model = benchmark.COMPRESSION.benchmark_shape('mean', 8, 1)['model'] | {'width': 8, 'heads': 2, 'layers': 1}
    _, first_state = benchmark.make_step(ModelConfig(**model), rows=2)
    carry = jax.jit(lambda: first_state().carry)()
    assert carry.recent.segments_BM.all() and carry.compressed.segments_BM.all()


def test_figures_and_picture_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    figures, plot = tmp_path / 'memory.json', tmp_path / 'memory.svg'
    run_command(monkeypatch, '--layers', '2,4', '--lengths', 64, '--output', figures, '--plot', plot)
    report = json.loads(figures.read_text(encoding='utf-8'))
    assert report['machine']['date'] and report['machine']['jax'] == jax.__version__
    assert list(report['memory']['patterns']['sides']['fixed']) == ['64']
    assert 'svg' in plot.read_text(encoding='utf-8')[:500]


@pytest.mark.parametrize(
    'options, message',
    [
        (['--layers', '0'], '--layers 0: it must be at least 1'),
        (['--vocab_size', '0'], '--vocab_size 0: it must be at least 1'),
        (['--steps', '-1'], '--steps -1: it must be at least 0'),
        (['--parts', 'depth', '--lengths', '64'], '--lengths has no effect without --parts patterns'),
        (['--parts', 'depth', '--segments', '64'], '--segments has no effect without --parts compression'),
        (['--segments', '0'], '--segments 0: it must be at least 1'),
        (['--segments', '64,6'], '--segments 6: it must be a multiple of 4, the tokens of a slot'),
        (['--plot', 'plot.txt'], '--plot plot.txt: it must end in .png or .svg'),
        (['--output', 'nowhere/figures.json'], 'nowhere/figures.json: there is no folder nowhere'),
    ],
)
def test_bad_options_are_refused_at_once(options, message, monkeypatch):
    with pytest.raises(InputError, match=re.escape(message)):
        run_command(monkeypatch, *options)


@pytest.mark.lenient_promotion
def test_real_steps_add_about_what_the_compiler_says():
    shape = benchmark.DEPTH.benchmark_shape('plain', 1, steps=1) | {'rows': 16, 'length': 128}
    found = benchmark.measure_shape(shape)
    assert len(found['seconds']) == 1 and found['parameters'] > 3e5
    # The memory includes all logits, so that other work of the process makes little difference.
    assert found['temporary_bytes'] > 4 * 16 * 128 * 4096
    if found['peak_bytes'] is not None:
        assert 0.5 * found['temporary_bytes'] < found['peak_bytes'] < 3 * found['temporary_bytes']
