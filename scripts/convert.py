"""Converts checkpoints: python scripts/convert.py --source runs/sst2 --to exported

`--source` is a Hugging Face folder (safetensors alone) or a workdir, `--to` becomes a Hugging Face folder. With
`--to-long 4096 --pattern 'window(128) | global_tokens(1)'` the encoder gets as many positions and that attention.
"""

import argparse
from pathlib import Path

from efficient_attention.commands.flags import run_command
from efficient_attention.errors import InputError


def main() -> None:
    """Reads, changes what is asked for, writes, and says what was written."""
    arguments = parsed()
    from efficient_attention.interop.lengthen import lengthen
    from efficient_attention.interop.pretrained import open_pretrained, save_pretrained

    if arguments.to.exists() and (not arguments.to.is_dir() or any(arguments.to.iterdir())):
        raise InputError(f'--to {arguments.to}: there is something already')
    pretrained = open_pretrained(arguments.source, arguments.checkpoint)
    pretrained = lengthen(
        pretrained, length=arguments.to_long, attention=arguments.pattern, global_tokens=arguments.global_tokens
    )
    save_pretrained(arguments.to, pretrained)
    model = pretrained.model
    positions = f'{model.position_limit} positions' if model.position_limit else 'any number of positions'
    print(f'{arguments.to}: {positions}, attention {model.attention}')


def parsed() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description='Convert a checkpoint to a Hugging Face folder.')
    parser.add_argument('--source', type=Path, required=True, help='Hugging Face folder or workdir')
    parser.add_argument('--to', type=Path, required=True, help='new folder')
    parser.add_argument('--checkpoint', default='', help='of a workdir: last, best or a step')
    parser.add_argument('--to-long', type=int, metavar='N', help='positions, as copies of those there are')
    parser.add_argument('--pattern', help="attention of all layers, such as 'window(128) | global_tokens(1)'")
    parser.add_argument('--global-tokens', type=int, metavar='G', help='most tokens of a row that data mark as global')
    return parser.parse_args()


if __name__ == '__main__':
    run_command(main)
