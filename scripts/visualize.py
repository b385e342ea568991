"""Runs the subcommand `visualize` of efficient-attention from the checkout: python scripts/visualize.py --help

The program is efficient_attention/programs/visualize.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('visualize')
