"""Tests that a plan combines the numbers of the compiled step with the published ones of the chip."""

import dataclasses

import pytest

from efficient_attention.planning import plan as planning
from efficient_attention.planning.chips import CHIPS
from efficient_attention.planning.plan import (
    StepTimeEstimate,
    as_dict,
    batch_size_multiple,
    estimate_step_time,
    make_plan,
)
from efficient_attention.planning.topology import parse_topology
from tests.planning.tiny_step import TOPOLOGY, config, tiny_step

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts


@pytest.fixture
def compiled(monkeypatch):
    """Returns the list of batch sizes for which a step was compiled; temporary memory is faked as 1,000 bytes a row."""
    asked = []

    def compile_step(one, _):
        asked.append(one.train.batch_size)
        step, rows = tiny_step(), one.train.batch_size
        return dataclasses.replace(step, memory=dataclasses.replace(step.memory, temporary=1000 * rows))

    monkeypatch.setattr(planning, 'compile_step', compile_step)
    return asked


def test_without_a_search_one_step_is_compiled(compiled):
    plan = make_plan(config(), TOPOLOGY, is_searched=False)
    assert compiled == [8] and plan.largest is None and plan.activation_bytes is None
    assert as_dict(plan)['largest_batch'] is None


def test_the_largest_batch_and_what_grows_with_it(compiled):
    plan = make_plan(config(), TOPOLOGY)
    assert plan.largest is not None and set(plan.largest.points) == set(compiled)
    assert plan.largest.rows > 1000 and plan.largest.rows % 2 == 0
    assert plan.batch_size == 8 and plan.activation_bytes == 8 * 1000


@pytest.mark.usefixtures('compiled')
def test_where_the_batch_does_not_fit_the_plan_is_of_the_largest(monkeypatch):
    fixed = tiny_step().memory.total_bytes - tiny_step().memory.temporary
    monkeypatch.setattr(planning.Topology, 'memory_per_device', property(lambda _: fixed + 5000))
    plan = make_plan(config(), TOPOLOGY)
    assert plan.batch_size == plan.largest.rows == 4


def test_rows_of_a_batch_divide_over_devices_and_micro_batches():
    assert batch_size_multiple(tiny_step()) == 2


def test_the_estimate_of_a_step_says_what_it_follows_from(monkeypatch):
    cost = planning.Cost(flops=197e12, bytes=819e9 / 2, cycles=2 * CHIPS['v5e'].clock)
    sent = [planning.CollectiveTotal('all-gather', 'fsdp', 1, CHIPS['v5e'].link / 4)]
    monkeypatch.setattr(planning, 'peak_flops', lambda _: 197e12)
    estimate = estimate_step_time(parse_topology('v5e:2x2'), tiny_step(), cost, sent)
    assert estimate == StepTimeEstimate(1.0, 0.5, 2.0, 0.25) and estimate.step_seconds == 2.25
    # The compiler's cycles leave out the products in kernels.
    cost = dataclasses.replace(cost, kernel_flops=197e12 / 4)
    assert estimate_step_time(parse_topology('v5e:2x2'), tiny_step(), cost, sent).compiler == 2.25
    assert dataclasses.replace(estimate, compiler=None).step_seconds == 1.25
    # A kernel overlaps its products only with its own traffic.
    with_kernel = dataclasses.replace(estimate, compiler=None, kernels={'dq': (0.1, 0.3), 'forward': (0.2, 0.1)})
    assert with_kernel.kernel_seconds == pytest.approx(0.5)
    assert with_kernel.step_seconds == pytest.approx(0.7 + 0.5 + 0.25)
    # no peak numbers are published for a CPU
    assert estimate_step_time(TOPOLOGY, tiny_step(), cost, sent).step_seconds is None
