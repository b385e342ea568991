"""Runs the subcommand `grid` of efficient-attention from the checkout: python scripts/train_grid.py --help

The program is efficient_attention/programs/grid.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('grid')
