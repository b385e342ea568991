"""Runs the command `efficient-attention` as `python -m efficient_attention`."""

from efficient_attention.programs.dispatch import main

if __name__ == '__main__':
    main()
