"""Tests plans of attention calls: devices without specifications are refused, and a bar on an H200's plan."""

import importlib.util
import sys

import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.errors import InputError
from efficient_attention.planning.topology import parse_topology
from scripts.benchmarks import planned_attention


def test_a_cpu_has_no_plan(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, 'argv', ['planned_attention.py', '--topology', 'cpu:1'])
    with pytest.raises(InputError, match='--topology cpu:1: the planner knows no peak and bandwidth of a CPU'):
        planned_attention.main()


@pytest.mark.slow
@pytest.mark.parametrize(
    'text, share, temporary', [('linear(causal=True)', 0.35, 250), ('favor(256, causal=True)', 1.07, 510)]
)
def test_causal_features_cost_at_most_a_share_of_softmax_on_an_h200(text: str, share: float, temporary: float):
    """At 16,384 tokens, the shares of cuDNN's causal softmax are 0.31 and 1.02 (docs/results/scaling.md)."""
    if importlib.util.find_spec('jax_cuda13_plugin') is None:
        pytest.skip('needs jax_cuda13_plugin: make plan')
    softmax, features = (
        planned_attention.plan_call(parse_mechanism(mechanism), 16_384, parse_topology('h200:1'))
        for mechanism in ('causal', text)
    )
    assert 0 < features.estimate <= share * softmax.estimate
    assert features.temporary <= temporary and features.longest > features.estimate
