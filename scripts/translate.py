"""Runs the subcommand `translate` of efficient-attention from the checkout: python scripts/translate.py --help

The program is efficient_attention/programs/translate.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('translate')
