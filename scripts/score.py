"""Runs the subcommand `score` of efficient-attention from the checkout: python scripts/score.py --help

The program is efficient_attention/programs/score.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('score')
