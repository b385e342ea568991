"""Runs the subcommand `analyze-heads` of efficient-attention from the checkout: python scripts/analyze_heads.py --help

The program is efficient_attention/programs/analyze_heads.py.
"""

from efficient_attention.programs.dispatch import run_program

if __name__ == '__main__':
    run_program('analyze-heads')
