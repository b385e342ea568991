"""Tests the times and the layers of the operations in a trace."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from tests.collectives import compiling_anew


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
    line = TraceLine('stream', [event('gemm', hlo_op='dot.1', hlo_module='jit_f', program_id='4')])
    assert [*operation_events(line)] == [TimedEvent(('jit_f(4)', 'dot.1'), 1.0, 2.0)]
    line = TraceLine(TPU_LINE, [event('%fusion.3 = f32[8]{0} fusion(...)')])
    assert [*operation_events(line)] == [TimedEvent(('', 'fusion.3'), 1.0, 2.0)]


def test_scopes_have_no_name_of_the_jitted_function():
    def instruction(name: str, scope: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, metadata=SimpleNamespace(op_name=scope))

    computation = SimpleNamespace(instructions=[instruction('dot', 'jit(step)/layer/dot'), instruction('copy', '')])
    both = {'dot': 'layer/dot', 'copy': ''}
    names = 'm(3)', 'm', ''
    assert module_scopes(names, [computation]) == {(of, name): both[name] for of in names for name in both}


def traced(folder: Path, run: Callable[[], Any]) -> bytes:
    """Returns the trace of a second run, so that no compilation is in it."""
    jax.block_until_ready(run())
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        jax.block_until_ready(run())
    (path,) = folder.glob('plugins/profile/*/*.xplane.pb')
    return path.read_bytes()


def program_of_layer(layer: str, name: str = 'train_step') -> Callable[[jax.Array], jax.Array]:
    """Returns a jitted function; two of them have equal names of the operations, and of the program if `name` is the
    same.
    """

    def run(x):
        with jax.named_scope(layer):
            return jnp.linalg.matrix_power(x, 3)

    run.__name__ = name
    return jax.jit(run)


def test_a_trace_names_the_layers_of_its_longest_operations(tmp_path):
    step, other, x = (
        program_of_layer('attention', 'attention_step'),
        jax.jit(lambda x: jnp.sin(x @ x)),
        jnp.ones((256, 256)),
    )
    trace = traced(tmp_path, lambda: [step(x), other(x)])
    found = longest_operations(trace, 'jit_attention_step', 9)
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert sum(one.share for one in found) == pytest.approx(1) and all(one.seconds > 0 for one in found)
    assert all(one.scope.startswith('attention/') for one in found) and 'dot_general' in found[0].scope
    assert not any('sin' in one.scope for one in found)
    assert longest_operations(trace, 'jit_unknown', 5) == []
    assert {plane.name for plane in message_class('Space').FromString(trace).planes} >= {'/host:metadata'}


@pytest.mark.parametrize('layers', [('attention', 'feed_forward'), ('feed_forward', 'attention')])
def test_programs_of_one_name_keep_the_layers_of_their_own(tmp_path, layers):
    x = jnp.ones((256, 256))
    programs = [program_of_layer(layer) for layer in layers]
    with compiling_anew():
        jax.block_until_ready([run(x) for run in programs])
    both = longest_operations(traced(tmp_path / 'both', lambda: [run(x) for run in programs]), 'jit_train_step', 9)
    assert {one.scope.partition('/')[0] for one in both} == {*layers}
    for layer, program in zip(layers, programs, strict=True):
        found = longest_operations(traced(tmp_path / layer, functools.partial(program, x)), 'jit_train_step', 9)
        assert found and all(one.scope.startswith(layer) for one in found)


def test_a_program_from_the_cache_keeps_its_layers(tmp_path):
    """Its events have the number that it had when it was compiled, and the trace lists it with another."""
    x = jnp.ones((256, 256))
    jax.block_until_ready(program_of_layer('attention', 'cached_step')(x))
    loaded = program_of_layer('attention', 'cached_step')
    found = longest_operations(traced(tmp_path, lambda: loaded(x)), 'jit_cached_step', 9)
    assert found and all(one.scope.startswith('attention/') for one in found)
