"""Runs the subcommand `plan` of efficient-attention from the checkout: python scripts/plan.py --help

The program is efficient_attention/programs/plan.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('plan')
