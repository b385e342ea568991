"""Runs the subcommand `train` of efficient-attention from the checkout: python train.py --help

The program is efficient_attention/programs/train.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('train')
