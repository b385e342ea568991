"""Compares the policies of `model.remat` by plans of one training step: which one is the fastest that fits?"""

from efficient_attention.config.model import REMAT_POLICIES
from efficient_attention.config.run import RunConfig
from efficient_attention.planning.plan import Plan, make_plan, with_remat
from efficient_attention.planning.report import in_bytes, row_length
from efficient_attention.planning.topology import Topology

COLUMNS = ('model.remat', 'products', 'traffic', 'step', 'temporary', 'together')


def plan_policies(config: RunConfig, topology: Topology) -> dict[str, Plan]:
    """Compiles a config's training step with each policy of rematerialisation, and returns the plans by policy.

    Raises:
        InputError: the environment cannot compile for the topology, the config does not fit the devices,
            or it does not allow a policy.
    """
    return {policy: make_plan(with_remat(config, policy), topology, is_searched=False) for policy in REMAT_POLICIES}


def fastest_policy(plans: dict[str, Plan]) -> str | None:
    """Returns the policy with the shortest estimated step of those that fit a device; None if none fits.

    Without estimates, the policy that stores most is taken to be the fastest.
    """
    fitting = {policy: plan for policy, plan in plans.items() if plan.is_fitting}
    return min(fitting, key=lambda policy: fitting[policy].estimate.step_seconds or 0.0, default=None)


def format_policies(plans: dict[str, Plan]) -> str:
    """Returns a text table of the policies, with times and memory per device, and a line about the fastest policy."""
    first = next(iter(plans.values()))
    lines = [
        f'{first.step.run.describe_run()}, a batch of {first.batch_size} rows of {row_length(first)}',
        ''.join(f'{name:<12}' if place == 0 else f'{name:>14}' for place, name in enumerate(COLUMNS)),
    ]
    for policy, plan in plans.items():
        estimate, memory = plan.estimate, plan.step.memory
        times = [in_milliseconds(seconds) for seconds in (estimate.products, estimate.traffic, estimate.step_seconds)]
        cells = [*times, in_bytes(memory.temporary), in_bytes(memory.total_bytes)]
        lines.append(f'{policy:<12}' + ''.join(f'{cell:>14}' for cell in cells))
    limit, fastest = in_bytes(first.topology.memory_per_device), fastest_policy(plans)
    found = f'no policy fits {limit}'
    if fastest:
        is_timed = plans[fastest].estimate.step_seconds is not None
        how = 'is the fastest policy' if is_timed else 'recomputes least of the policies'
        found = f'{fastest!r} {how} that {"fits" if is_timed else "fit"} {limit}'
    return '\n'.join([*lines, found])


def in_milliseconds(seconds: float | None) -> str:
    """Returns seconds as text in milliseconds; '-' if they are not known."""
    return '-' if seconds is None else f'{1e3 * seconds:.3g} ms'
