"""Runs the subcommand `fill-mask` of efficient-attention from the checkout: python scripts/fill_mask.py --help

The program is efficient_attention/programs/fill_mask.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('fill-mask')
