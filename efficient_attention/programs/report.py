"""Rewrites the HTML report of a run from its files: efficient-attention report --workdir runs/x

The page is report.html in the workdir. It is made only from the files there, at any time, even during the run.
"""

import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import define_workdir


def main() -> None:
    """Reads the flags, writes the report of the run, and prints the path of the report."""
    options = define_flags()
    parse_flags(sys.argv, ('workdir',), options=options, about=__doc__)
    from efficient_attention.workdir.report import write_report  # imported late, so that --help is fast

    print(write_report(options.workdir))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_workdir(options=options)
    return options
