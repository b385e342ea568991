"""Fills the masks of texts: python scripts/fill_mask.py --workdir runs/quickstart 'A list is a [MASK] type.'"""

import argparse
from pathlib import Path

from efficient_attention.commands.flags import run_command


def main() -> None:
    """Prints the most probable tokens for each [MASK] of each text."""
    parser = argparse.ArgumentParser(description='Fill the masks of texts with a pretrained model.')
    parser.add_argument('texts', nargs='+', metavar='TEXT', help='text with one [MASK] or more')
    parser.add_argument('--workdir', type=Path, required=True, help='folder of the run')
    parser.add_argument('--checkpoint', default='last', help='last (the default), best or a step')
    parser.add_argument('--top', type=int, default=5, help='tokens to print for each mask')
    arguments = parser.parse_args()
    from efficient_attention.inference.fill_mask import MaskFiller

    fill = MaskFiller(arguments.workdir, checkpoint=arguments.checkpoint)
    for text in arguments.texts:
        masks = fill(text, arguments.top)
        print(text)
        for number, candidates in enumerate(masks, 1):
            print(f'  mask {number}: ' + '  '.join(f'{token} {probability:.1%}' for token, probability in candidates))


if __name__ == '__main__':
    run_command(main)
