"""Tests the printed lines of a plan."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest

from efficient_attention.attention.kernel_work import KernelWork
from efficient_attention.planning.plan import LargestBatch, StepTimeEstimate, plan_of_compiled_step
from efficient_attention.planning.report import format_plan, missing_teacher_lines, row_length
from tests.planning.tiny_step import TOPOLOGY, tiny_step

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts


def test_a_plan_in_lines():
    plan = plan_of_compiled_step(TOPOLOGY, tiny_step(), 8, LargestBatch(16, {8: 2**20, 16: 2**21}))
    text = format_plan(plan)
    assert text.startswith('8,936 parameters on 2 cpu device(s) (data 1 x fsdp 2')
    assert ', a batch of 8 rows of 32 tokens' in text.split('\n')[0]
    assert 'matrix products' in text and ' x all-gather over fsdp: ' in text
    assert ': fits\nwhat one device does in a step:\n' in text
    assert 'time of a step: no estimate' in text
    assert text.endswith('largest batch that fits: 16 rows (compiled: 8 rows 1.00 MiB, 16 rows 2.00 MiB)')


def test_a_plan_says_what_it_leaves_out_of_a_student():
    config = SimpleNamespace(distill=SimpleNamespace(is_enabled=True))
    plan: Any = SimpleNamespace(step=SimpleNamespace(run=SimpleNamespace(config=config)))
    assert [line[:24] for line in missing_teacher_lines(plan)] == ['without distill.teacher,']
    assert not list(missing_teacher_lines(plan_of_compiled_step(TOPOLOGY, tiny_step(), 8, None)))


def test_a_time_names_its_source():
    plan = plan_of_compiled_step(TOPOLOGY, tiny_step(), 8, None)
    by_compiler = dataclasses.replace(plan, estimate=StepTimeEstimate(0.001, 0.002, 0.004, 0.001))
    assert "time of a step: 5 ms: the compiler's estimate, plus sending\n" in format_plan(by_compiler)
    by_roofline = dataclasses.replace(plan, estimate=StepTimeEstimate(0.001, 0.002, None, 0.001))
    assert 'time of a step: 3 ms: the longer of products and memory traffic, plus sending\n' in format_plan(by_roofline)
    assert "compiler's" not in format_plan(by_roofline)
    assert 'largest batch' not in format_plan(by_roofline)


def test_products_in_kernels_are_named():
    plan = plan_of_compiled_step(TOPOLOGY, tiny_step(), 8, None)
    assert plan.cost and 'splash' not in format_plan(plan)
    half = dataclasses.replace(plan.cost, kernel_flops=plan.cost.flops / 2)
    line = '\n    at most 50% in splash attention, whose time is taken at the published peak\n'
    assert line in format_plan(dataclasses.replace(plan, cost=half))


def test_kernels_are_named_with_their_loads_and_time():
    plan = plan_of_compiled_step(TOPOLOGY, tiny_step(), 8, None)
    assert plan.cost and 'mosaic' not in format_plan(plan)
    work = KernelWork('dq', round(plan.cost.flops / 4), 2**30)
    estimate = StepTimeEstimate(0.004, 0.003, None, 0.001, {'dq': (0.001, 0.002)})
    text = format_plan(
        dataclasses.replace(plan, estimate=estimate, cost=dataclasses.replace(plan.cost, kernels={'dq': work}))
    )
    assert '\n    25% in the kernel dq of mosaic, which loads 1.00 GiB\n' in text
    assert 'step: 6 ms: the longer of products and memory traffic, separately for each kernel, plus sending' in text
    assert re.search(r'\n  of both, in kernels of mosaic +2 ms\n', text)


def test_calls_that_are_not_counted_are_named():
    plan = plan_of_compiled_step(TOPOLOGY, tiny_step(), 8, None)
    assert plan.cost and 'not counted' not in format_plan(plan)
    some = dataclasses.replace(plan.cost, uncounted_calls=('__cublas$gemm', 'foo'))
    line = '\n  not counted: what is inside calls of __cublas$gemm, foo\n'
    assert line in format_plan(dataclasses.replace(plan, cost=some))


def test_rows_of_two_texts_have_two_lengths():
    shapes = {'source': SimpleNamespace(shape=(8, 96)), 'tokens': SimpleNamespace(shape=(8, 64))}
    plan: Any = SimpleNamespace(
        step=SimpleNamespace(run=SimpleNamespace(task=SimpleNamespace(batch_shapes=shapes.copy)))
    )
    assert row_length(plan) == '96 tokens and targets of 64'


def test_a_program_that_no_device_holds():
    memory = dataclasses.replace(tiny_step().memory, temporary=2**60)
    plan = plan_of_compiled_step(
        TOPOLOGY, dataclasses.replace(tiny_step(), program=None, memory=memory), 8, LargestBatch(0, {8: 2**40})
    )
    assert ': does not fit\n' in format_plan(plan)
    assert 'the compiler refuses this program' in format_plan(plan) and 'time of a step' not in format_plan(plan)
    assert format_plan(plan).endswith('no batch fits (compiled: 8 rows 1.00 TiB)')
