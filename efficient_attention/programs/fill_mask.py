"""Predicts masked tokens: python scripts/fill_mask.py --model runs/quickstart 'A list is a [MASK] type.'"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import checkpoint_from_flags, define_checkpoint, define_model


def main() -> None:
    """Reads the flags and texts, and prints the most probable tokens for each [MASK] of each text."""
    options = define_flags()
    texts = parse_flags(sys.argv, ('model',), options=options, words='TEXT...')
    # This import is late, so that --help and flag errors are fast.
    from efficient_attention.inference.fill_mask import MaskFiller
    from efficient_attention.interop.config_import import read_config_json

    is_run = 'task' in read_config_json(options.model)
    fill = MaskFiller(options.model, checkpoint=checkpoint_from_flags(options) or ('last' if is_run else ''))
    for text in texts:
        masks = fill(text, options.top)
        print(text)
        for number, candidates in enumerate(masks, 1):
            print(f'  mask {number}: ' + '  '.join(f'{token} {probability:.1%}' for token, probability in candidates))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_checkpoint('', '; last by default', options)
    flags.DEFINE_integer('top', 5, 'Tokens to print per mask.', flag_values=options)
    return options


if __name__ == '__main__':
    run_command(main)
