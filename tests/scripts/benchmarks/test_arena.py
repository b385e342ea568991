"""Tests the benchmark of long-range classifiers: ratios to full attention, its command line, and one real
measurement.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.training.step_extensions import has_running_means, only_running_means
from scripts import benchmark as command
from scripts.benchmarks import arena as benchmark
from scripts.benchmarks.arena import GENERATED, SIDES, benchmark_shape

ROOT = Path(__file__).parents[3]


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py arena` with made-up times: full attention grows with the square of the length, the others
    linearly.
    """

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        assert (Path(program[-1]).name, allocator, shape['rows']) == ('arena.py', 'keep', 32)
        cost = shape['length'] ** 2 if shape['model']['attention'] == 'full' else 1024 * shape['length']
        found = {'name': 'fake', 'seconds': [cost / 1024**2] * 3, 'temporary_bytes': 64 * cost}
        return found | {'peak_bytes': None, 'parameters': 10}

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'arena', *map(str, arguments)])
    command.main()


def test_shares_are_of_full_attention(tmp_path: Path, monkeypatch, capsys):
    arguments = ('--parts', 'train', '--sides', 'linear', '--lengths', '1024,4096', '--output', tmp_path / 'arena.json')
    run_command(monkeypatch, *arguments)
    found = json.loads((tmp_path / 'arena.json').read_text(encoding='utf-8'))['arena']['lengths']
    assert {side: one['speed'] for side, one in found['4096'].items()} == {'full': 1.0, 'linear': 4.0}
    assert (found['4096']['linear']['memory'], found['1024']['linear']['memory']) == (0.25, 1.0)
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line == '4096 linear 0.25 (0.25 to 0.25) 4.00 256 0.25 10'.split()


def test_every_generator_has_its_speed(tmp_path: Path, monkeypatch, capsys):
    few = [f'{text.split("rows=")[0]}rows=3:{text.partition("rows=")[2].partition(":")[2]}' for text in GENERATED]
    monkeypatch.setattr(benchmark, 'GENERATED', few)
    run_command(monkeypatch, '--parts', 'rows', '--output', tmp_path / 'rows.json')
    found = json.loads((tmp_path / 'rows.json').read_text(encoding='utf-8'))['arena']
    assert list(found) == ['generated'] and list(found['generated']) == few
    for speeds in found['generated'].values():
        assert list(speeds) == ['train', 'test'] and min(speeds.values()) > 0
    assert capsys.readouterr().out.count(' rows/s') == 2 * len(few)


@pytest.mark.parametrize(
    'arguments', [('--rounds', 0), ('--steps', 0), ('--lengths', 0), ('--rows', 0), ('--sides', 'x')]
)
def test_bad_flags_are_refused(monkeypatch, arguments: tuple):
    with pytest.raises(InputError, match=arguments[0]):
        run_command(monkeypatch, *arguments)


@pytest.mark.parametrize('side', SIDES)
def test_every_mechanism_has_a_model_of_each_length(side: str):
    for length in (1024, 1500):
        config = ModelConfig(**benchmark_shape(side, 'small', length)['model'])
        assert config.max_length == length and all(
            limit >= length for limit in config.position_limits_by_field.values()
        )


def tiny_shape() -> dict[str, Any]:
    """Returns the shape of a small model with routing attention, whose centroids are running means, on rows of 24
    tokens.
    """
    shape = benchmark_shape('routing', 'small', 24)
    shape['model'] |= {'width': 8, 'layers': 1, 'feed_forward_width': 8}
    return shape


def test_a_step_leaves_running_means_to_their_own_rule():
    """The optimizer keeps no moments of running means, and their update ends on the unit sphere."""
    shape = tiny_shape()
    config = ModelConfig(**shape['model'])
    step, first_state = benchmark.make_step(config, HeadConfig(**shape['head']))
    state = jax.jit(first_state)()
    assert has_running_means(state.params) and not has_running_means(state.opt_state)
    before = jax.device_get(jax.tree.leaves(only_running_means(state.params)))
    after, metrics = jax.jit(step, donate_argnums=0)(state, benchmark.random_batch(2, 24, config.vocab_size))
    points = jax.device_get(jax.tree.leaves(only_running_means(after.params)))
    assert points and not metrics['skipped']
    for moved, start in zip(points, before, strict=True):
        np.testing.assert_allclose(np.linalg.norm(moved[..., :-1], axis=-1), 1.0, rtol=1e-5)
        assert not moved[..., -1].any() and not np.array_equal(moved, start)


def test_a_real_step():
    shape = tiny_shape()
    found = benchmark.measure_shape(shape | {'rows': 2, 'steps': 2})
    assert len(found['seconds']) == 2 and found['temporary_bytes'] > 0 and found['parameters'] > 0


def test_the_page_shows_the_figures_of_its_files():
    page = (ROOT / 'docs/results/arena.md').read_text(encoding='utf-8').splitlines()
    rows = json.loads((ROOT / 'docs/results/data/arena_rows.json').read_text(encoding='utf-8'))['arena']['generated']
    assert list(rows) == list(GENERATED)
    for split in ('train', 'test'):
        speeds = ' | '.join(f'{found[split]:,.0f}' for found in rows.values())
        assert f'| {split} | {speeds} |' in page
    for name, digits in (('arena_speed', '.2f'), ('arena_pathx', '.3g')):
        by_length = json.loads((ROOT / 'docs/results/data' / f'{name}.json').read_text(encoding='utf-8'))['arena'][
            'lengths'
        ]
        for side in next(iter(by_length.values())):
            figures = [by_length[length][side] for length in sorted(by_length, key=int)]
            steps = ', '.join(f'{figure["steps_per_second"]:{digits}}' for figure in figures)
            memory = ', '.join(f'{figure["temporary_bytes"] / 2**20:.0f}' for figure in figures)
            [line] = [line for line in page if line.startswith(f'| `{side}` | {steps} |') and f'| {memory} |' in line]
            if name == 'arena_speed' and side != 'full':
                speeds = ', '.join(f'{figure["speed"]:.1f}' for figure in figures)
                shares = ', '.join(f'{figure["memory"]:.2f}' for figure in figures)
                assert f'| {speeds} |' in line and line.endswith(f'| {shares} |')
