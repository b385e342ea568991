"""Runs the subcommand `generate` of efficient-attention from the checkout: python scripts/generate.py --help

The program is efficient_attention/programs/generate.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('generate')
