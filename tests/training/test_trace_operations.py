"""Tests the times and the layers of the operations in a trace."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.training.trace_operations import (
    TPU_LINE,
    TimedEvent,
    TraceEvent,
    TraceLine,
    longest_operations,
    message_class,
    module_scopes,
    operation_events,
    self_durations,
)


def test_the_time_of_an_operation_excludes_operations_inside_it():
    events = [('loop', 0, 100), ('body', 10, 30), ('inner', 15, 5), ('body', 60, 30), ('last', 100, 7)]
    found = self_durations(TimedEvent(('p', name), start, duration) for name, start, duration in reversed(events))
    assert found == [
        (('p', name), time) for name, time in (('loop', 40), ('body', 25), ('inner', 5), ('body', 30), ('last', 7))
    ]


def event(name: str, **stats: str) -> TraceEvent:
    return TraceEvent(name, 1.0, 2.0, stats.items())


def test_operations_are_found_on_lines_of_tpus_and_of_other_devices():
    line = TraceLine('stream', [event('gemm', hlo_op='dot.1', hlo_module='jit_f'), event('wait')])
    assert [*operation_events(line)] == [TimedEvent(('jit_f', 'dot.1'), 1.0, 2.0)]
    line = TraceLine(TPU_LINE, [event('%fusion.3 = f32[8]{0} fusion(...)')])
    assert [*operation_events(line)] == [TimedEvent(('', 'fusion.3'), 1.0, 2.0)]


def test_scopes_have_no_name_of_the_jitted_function():
    def instruction(name: str, scope: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, metadata=SimpleNamespace(op_name=scope))

    computation = SimpleNamespace(instructions=[instruction('dot', 'jit(step)/layer/dot'), instruction('copy', '')])
    both = {'dot': 'layer/dot', 'copy': ''}
    assert module_scopes('m', [computation]) == {(of, name): both[name] for of in ('m', '') for name in both}


def test_a_trace_names_the_layers_of_its_longest_operations(tmp_path):
    def train_step(x):
        with jax.named_scope('attention'):
            return jnp.linalg.matrix_power(x, 3)

    def other(x):
        return jnp.sin(x @ x)

    x = jnp.ones((256, 256))
    programs = jax.jit(train_step), jax.jit(other)
    jax.block_until_ready([program(x) for program in programs])
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(tmp_path, profiler_options=options):
        jax.block_until_ready([program(x) for program in programs])
    (path,) = tmp_path.glob('plugins/profile/*/*.xplane.pb')
    found = longest_operations(path.read_bytes(), 'jit_train_step', 9)
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert sum(one.share for one in found) == pytest.approx(1) and all(one.seconds > 0 for one in found)
    assert all(one.scope.startswith('attention/') for one in found) and 'dot_general' in found[0].scope
    assert not any('sin' in one.scope for one in found)
    assert longest_operations(path.read_bytes(), 'jit_unknown', 5) == []
    assert {plane.name for plane in message_class('Space').FromString(path.read_bytes()).planes} >= {'/host:metadata'}
