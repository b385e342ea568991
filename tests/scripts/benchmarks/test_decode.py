"""Tests the decoding benchmark: its ratios, its command line, and a real call of each decoding method."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.generate import STREAMED
from efficient_attention.models.cached_decoding import cache_specs
from efficient_attention.models.decoder import Decoder
from scripts import benchmark as command
from scripts.benchmarks import decode as benchmark
from tests.models.drawn import drawn

TINY = benchmark.MODEL | {'layers': 1, 'width': 8, 'heads': 2, 'vocab_size': 11, 'attention': 'causal'}


def fake_run(program: list[str], shape: dict[str, Any]) -> dict[str, Any]:
    """Replaces a measuring process: returns figures that follow from a formula."""
    assert program == benchmark.CHILD
    rate = {'cached': 1000.0, 'memory': 1000.0}.get(shape['way'], 1e5 / shape['context'])
    return {'name': 'fake', 'tokens_per_second': rate, 'rates': [rate], 'state_bytes': shape['context']}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py decode` with figures that follow from a formula."""
    monkeypatch.setattr(command, 'run_measurement_process', lambda program, shape, allocator: fake_run(program, shape))  # noqa: ARG005
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'decode', *map(str, arguments)])
    command.main()


def test_figures_are_written_with_their_ratio(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'decode.json'
    sizes = '--contexts', '100,400', '--sides', 'causal,favor'
    run_command(monkeypatch, '--parts', 'cache', *sizes, '--output', path)
    report = json.loads(path.read_text(encoding='utf-8'))['decode']['cache']
    assert list(report['sides']) == ['causal', 'favor']
    assert {context: row['ratio'] for context, row in report['sides']['causal'].items()} == {'100': 1.0, '400': 4.0}
    assert '400 favor' in capsys.readouterr().out


def test_ratios_compare_processes_of_the_same_round_which_take_turns():
    rates, asked = iter([10.0, 5.0, 1.0, 3.0]), []

    def run(shape: dict[str, Any]) -> dict[str, Any]:
        asked.append(shape['way'])
        return {'tokens_per_second': next(rates), 'state_bytes': 7}

    row = benchmark.compare(benchmark.CACHE, {}, 2, run)
    assert asked == ['cached', 'recomputed', 'recomputed', 'cached']
    assert row['ratio_range'] == [2.0, 3.0] and row['ratio'] == 2.5


def test_every_comparison_can_run():
    for comparison in benchmark.COMPARISONS.values():
        assert {comparison.fast, comparison.slow} <= benchmark.WAYS.keys()
        for fields in comparison.sides.values():
            assert cache_specs(ModelConfig(**(benchmark.MODEL | fields)), max(comparison.contexts))


@pytest.mark.parametrize('options', [['--contexts', '8,0'], ['--rounds', '0'], ['--calls', '0']])
def test_numbers_below_one_are_refused_at_once(options, monkeypatch):
    with pytest.raises(InputError, match=f'^{options[0]} 0: it must be at least 1$'):
        run_command(monkeypatch, *options)


def test_a_part_without_any_of_the_sides_is_refused(monkeypatch):
    with pytest.raises(InputError, match='^--parts memory has none of --sides favor; '):
        run_command(monkeypatch, '--parts', 'memory', '--sides', 'favor')


def work_of(way: str) -> benchmark.DecodingCall:
    graph, params = drawn(lambda: Decoder(ModelConfig(**TINY), rngs=nnx.Rngs(0)))
    return benchmark.WAYS[way](graph, params, {'model': TINY, 'context': 16, 'calls': 1})


def test_a_measurement_has_a_rate_for_each_call():
    found = benchmark.measure_shape({'model': TINY, 'way': 'sliding', 'context': 16, 'calls': 2})
    assert len(found['rates']) == 2 and found['tokens_per_second'] > 0
    assert found['state_bytes'] == 0


def test_recomputing_moves_the_context_on_by_one_token_a_call():
    work = work_of('recomputed')
    first, second = np.asarray(work.call()), np.asarray(work.call())
    assert work.tokens == 1 and (first[:, 1:] == second[:, :-1]).all()


def test_a_cached_call_makes_as_many_tokens_as_it_says_and_keeps_the_context():
    work = work_of('cached')
    assert jnp.shape(work.call()) == (1, STREAMED) == (1, work.tokens)
    assert work.state_bytes >= 2 * 4 * 16 * TINY['width']  # keys and values in float32


def test_a_segment_goes_on_where_the_one_before_ended():
    work = work_of('memory')
    first, second = np.asarray(work.call()), np.asarray(work.call())
    # the memory has changed between the calls
    assert first.shape == (1, work.tokens, TINY['vocab_size']) and (first != second).any()
    assert work.state_bytes == 4 * 16 * TINY['width']  # the inputs of one layer for the context
