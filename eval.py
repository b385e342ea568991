"""Runs the subcommand `eval` of efficient-attention from the checkout: python eval.py --help

The program is efficient_attention/programs/eval.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('eval')
