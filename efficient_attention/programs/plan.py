"""Estimates time and memory of a training step on given devices, which need not be present, by compiling the step.

    efficient-attention plan --config configs/pretrain/bert.py:large --topology v5e:4x4 --config.mesh.fsdp=16
    efficient-attention plan --config configs/quickstart.py --topology cpu:8 --nolargest
    efficient-attention plan --config configs/lm/gpt.py --topology h200:1 --compare_remat

Config fields are set as for train.py. No data are read and no array is created. Plans for TPUs and GPUs need the
environment that `make plan` creates: .venv-plan/bin/efficient-attention plan ...
"""

import json
import sys

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import define_config, define_output


def main() -> None:
    """Reads the flags, plans the training step, and prints the plan."""
    options = define_flags()
    parse_flags(sys.argv, ('config', 'topology'), options=options, about=__doc__)
    # This import is late, because loading JAX would slow down --help.
    from efficient_attention.planning.topology import parse_topology

    topology = parse_topology(options.topology)
    from efficient_attention.planning.plan import as_dict, make_plan
    from efficient_attention.planning.remat_comparison import format_policies, plan_policies
    from efficient_attention.planning.report import format_plan
    from efficient_attention.training.fill_config import fill_config_for_plan

    config = fill_config_for_plan(options.config.to_dict())
    if options.compare_remat:
        plans = plan_policies(config, topology)
        printed, figures = format_policies(plans), {policy: as_dict(plan) for policy, plan in plans.items()}
    else:
        plan = make_plan(config, topology, is_searched=options.largest)
        printed, figures = format_plan(plan), as_dict(plan)
    print(printed)
    if options.output:
        write_atomically(options.output, json.dumps(figures, indent=2) + '\n')


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_config('Config file; fields follow as --config.<group>.<field>=value.', options)
    devices = 'Devices: v5e:4x4 | v5p:8x8x4 | v6e:4x4 | h200:8 | cpu:8, or another size.'
    flags.DEFINE_string('topology', None, devices, flag_values=options)
    largest = 'Search for the largest batch that fits; compiles at most three sizes.'
    flags.DEFINE_bool('largest', True, largest, flag_values=options)
    compared = 'Print a table of all policies of model.remat instead of a plan.'
    flags.DEFINE_bool('compare_remat', False, compared, flag_values=options)
    define_output('JSON file for the figures.', options=options)
    return options
