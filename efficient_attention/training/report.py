"""The old name of `efficient_attention.workdir.report` as a command, for one release."""

import sys

from efficient_attention.commands.command_line import run_command
from efficient_attention.workdir.report import main

if __name__ == '__main__':
    print('efficient_attention.training.report is now efficient_attention.workdir.report', file=sys.stderr)
    run_command(main)
