"""Predicts masked tokens: efficient-attention fill-mask --model runs/quickstart 'A list is a [MASK] type.'"""

import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import checkpoint_from_flags, define_checkpoint, define_model


def main() -> None:
    """Reads the flags and texts, and prints the most probable tokens for each [MASK] of each text."""
    options = define_flags()
    texts = parse_flags(sys.argv, ('model',), options=options, words='TEXT...', about=__doc__)
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
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_checkpoint('', '; last by default', options)
    flags.DEFINE_integer('top', 5, 'Tokens to print per mask.', flag_values=options)
    return options
