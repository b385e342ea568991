"""Estimates time and memory of a training step on given devices, which need not be present, by compiling the step.

    python scripts/plan.py --config configs/pretrain/bert.py:large --topology v5e:4x4 --config.mesh.fsdp=16
    python scripts/plan.py --config configs/quickstart.py --topology cpu:8 --nolargest
    python scripts/plan.py --config configs/lm/gpt.py --topology h200:1 --compare_remat

Config fields are set as for train.py. No data are read and no array is created. Plans for TPUs and GPUs need the
environment that `make plan` creates: .venv-plan/bin/python scripts/plan.py ...
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import sys

from absl import flags
from ml_collections import config_flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_path

CONFIG = config_flags.DEFINE_config_file(
    'config', None, 'A file of configs/; fields follow as --config.<group>.<field>=value.'
)
TOPOLOGY = flags.DEFINE_string(
    'topology', None, 'Devices: v5e:4x4 | v5p:8x8x4 | v6e:4x4 | h200:8 | cpu:8, or another size.'
)
LARGEST = flags.DEFINE_bool('largest', True, 'Search for the largest batch that fits; compiles at most three sizes.')
COMPARE = flags.DEFINE_bool('compare_remat', False, 'Print a table of all policies of model.remat instead of a plan.')
OUTPUT = define_path('output', 'JSON file for the figures.')


def main() -> None:
    """Reads the flags, plans the training step, and prints the plan."""
    parse_flags(sys.argv, required=('config', 'topology'))
    # This import is late, because loading JAX would slow down --help.
    from efficient_attention.planning.topology import parse_topology

    topology = parse_topology(TOPOLOGY.value)
    from efficient_attention.planning.plan import as_dict, make_plan
    from efficient_attention.planning.remat_comparison import format_policies, plan_policies
    from efficient_attention.planning.report import format_plan
    from efficient_attention.training.fill_config import fill_config_for_plan

    config = fill_config_for_plan(CONFIG.value.to_dict())
    if COMPARE.value:
        plans = plan_policies(config, topology)
        printed, figures = format_policies(plans), {policy: as_dict(plan) for policy, plan in plans.items()}
    else:
        plan = make_plan(config, topology, is_searched=LARGEST.value)
        printed, figures = format_plan(plan), as_dict(plan)
    print(printed)
    if OUTPUT.value:
        write_atomically(OUTPUT.value, json.dumps(figures, indent=2) + '\n')


if __name__ == '__main__':
    run_command(main)
