"""Tests which policy of rematerialisation a comparison calls the fastest, and its table."""

import dataclasses

import pytest

from efficient_attention.errors import InputError
from efficient_attention.planning import plan as planning
from efficient_attention.planning.plan import Plan, StepTimeEstimate, make_plan, with_remat
from efficient_attention.planning.remat_comparison import fastest_policy, format_policies, plan_policies
from efficient_attention.planning.report import format_plan
from efficient_attention.planning.step_compilation import PlannedStep
from tests.planning.tiny_step import TOPOLOGY, config, tiny_step

pytestmark = pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts
ROOM = 10**6
TEMPORARY = {'none': 3 * ROOM, 'dots': 2 * ROOM, 'full': ROOM}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns the policies and batch sizes that were compiled; temporary memory is faked by policy, for 8 rows."""
    asked = []

    def compile_step(one, _) -> PlannedStep:
        policy, rows = one.model.remat, one.train.batch_size
        asked.append((policy, rows))
        step = tiny_step()
        memory = dataclasses.replace(step.memory, temporary=TEMPORARY[policy] * rows // 8)
        return dataclasses.replace(step, memory=memory, run=dataclasses.replace(step.run, config=one))

    monkeypatch.setattr(planning, 'compile_step', compile_step)
    return asked


def limit_memory(monkeypatch: pytest.MonkeyPatch, temporary: int) -> None:
    fixed = tiny_step().memory.total_bytes - tiny_step().memory.temporary
    monkeypatch.setattr(planning.Topology, 'memory_per_device', property(lambda _: fixed + temporary))


def timed(plans: dict[str, Plan], traffic: dict[str, float]) -> dict[str, Plan]:
    return {
        policy: dataclasses.replace(plan, estimate=StepTimeEstimate(0.001, traffic[policy], None, 0.0))
        for policy, plan in plans.items()
    }


def test_the_fastest_policy_is_of_those_that_fit(compiled, monkeypatch):
    limit_memory(monkeypatch, 2 * ROOM)
    plans = plan_policies(config(), TOPOLOGY)
    assert compiled == [('none', 8), ('dots', 8), ('full', 8)]
    assert fastest_policy(plans) == 'dots'  # a CPU has no estimate
    assert format_policies(plans).split('\n')[-1].startswith("'dots' recomputes least of the policies that fit ")
    plans = timed(plans, {'none': 0.001, 'dots': 0.005, 'full': 0.004})
    assert fastest_policy(plans) == 'full'
    lines = format_policies(plans).split('\n')
    assert lines[0].endswith(', a batch of 8 rows of 32 tokens')
    assert lines[1].split() == ['model.remat', 'products', 'traffic', 'step', 'temporary', 'together']
    assert lines[3].split()[:7] == ['dots', '1', 'ms', '5', 'ms', '5', 'ms']
    assert lines[3].split()[7:9] == ['1.91', 'MiB']
    assert lines[-1].startswith("'full' is the fastest policy that fits ")
    limit_memory(monkeypatch, ROOM - 1)
    assert fastest_policy(plans) is None and format_policies(plans).split('\n')[-1].startswith('no policy fits ')


@pytest.mark.parametrize('room, taken', [(3 * ROOM, 'none'), (2 * ROOM, 'dots'), (ROOM, 'full'), (0, 'full')])
def test_a_plan_of_auto_is_of_the_first_policy_that_fits(room: int, taken: str, compiled, monkeypatch):
    limit_memory(monkeypatch, room)
    plan = make_plan(with_remat(config(), 'auto'), TOPOLOGY, is_searched=False)
    assert plan.step.run.config.model.remat == taken == compiled[-1][0]
    assert planning.as_dict(plan)['remat'] == taken
    title = format_plan(plan).split('\n')[0]
    assert title.endswith(' tokens' if taken == 'none' else f' tokens, model.remat={taken}')


def test_the_largest_batch_of_auto_is_of_the_policy_that_stores_least(compiled, monkeypatch):
    limit_memory(monkeypatch, 3 * ROOM)
    plan = make_plan(with_remat(config(), 'auto'), TOPOLOGY)
    assert plan.largest is not None and plan.largest.rows == 24 and plan.batch_size == 8
    assert compiled[0] == ('none', 8) and {policy for policy, _ in compiled[1:]} == {'full'}


def test_a_reversible_model_has_no_policies():
    values = config()
    model = dataclasses.replace(values.model, stack='reversible', norm='pre')
    with pytest.raises(InputError, match="model.remat is 'dots'; it must be 'none' in a reversible stack"):
        with_remat(dataclasses.replace(values, model=model), 'dots')
