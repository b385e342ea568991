"""Runs the subcommand `convert` of efficient-attention from the checkout: python scripts/convert.py --help

The program is efficient_attention/programs/convert.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('convert')
