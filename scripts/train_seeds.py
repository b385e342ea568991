"""Runs the subcommand `seeds` of efficient-attention from the checkout: python scripts/train_seeds.py --help

The program is efficient_attention/programs/seeds.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('seeds')
