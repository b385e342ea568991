"""Runs the subcommand `predict` of efficient-attention from the checkout: python scripts/predict.py --help

The program is efficient_attention/programs/predict.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('predict')
