"""Evaluates a trained model on its held-out data: efficient-attention eval --workdir runs/x [--checkpoint=best]

A language model, also of a Hugging Face folder, on any text: efficient-attention eval --workdir checkpoints/gpt2
--source text:data/test.txt --context 1024 --stride 512

The last printed line is one JSON object. For text-to-text models, a line with the losses comes before the beam search.
So the losses are not lost if the search is interrupted.
"""

import json
import sys
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import joined_lists, parse_flags
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_batch_size,
    define_checkpoint,
    define_split,
    define_verify,
    define_workdir,
)
from efficient_attention.commands.host_flags import define_host_flags, multi_host_run_from_flags
from efficient_attention.processes.allocator import tune_allocator

# These flags are for language-model evaluation; an unset flag takes the config's value.
PROTOCOL = ('split', 'context', 'stride', 'memory_length', 'compressed_length', 'clamp_length', 'same_length')
SEARCH = ('beams', 'penalty', 'alpha')  # flags for the beam search of text-to-text models, likewise


def main() -> None:
    """Parses the flags, evaluates the run, and prints the metrics."""
    options = define_flags()
    parse_flags(joined_lists(sys.argv, ('mask_heads',)), ('workdir',), options=options, about=__doc__)
    # These imports are late, because --help and errors about flags would otherwise take twice as long.
    from efficient_attention.inference.evaluate_workdir import evaluate_workdir
    from efficient_attention.workdir.checkpoint_verification import verify_checkpoints

    if options.verify:
        verify_checkpoints(options.workdir)
        return
    tune_allocator()
    chosen: dict[str, Any] = {
        name: options[name].value for name in (*PROTOCOL, *SEARCH) if options[name].value is not None
    }
    chosen |= {'checkpoint': checkpoint_from_flags(options), 'batch_size': options.batch_size, 'source': options.source}
    if options.mask_heads is not None:
        from efficient_attention.models.head_gates import parse_heads

        chosen['mask_heads'] = parse_heads(options.mask_heads)
    with multi_host_run_from_flags({'options': chosen}, options):
        show(evaluate_workdir(options.workdir, **chosen, before_search=show))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_workdir('Folder of the run, or a Hugging Face folder of a language model.', options)
    define_checkpoint('last', options=options)
    rows = (
        ', over all devices; with segment memory, parts of the text read in parallel; default: as in the config, or 8'
    )
    define_batch_size(None, rows, options)
    other = 'Text for a language model in place of its held-out text, spelled as data.source: text:data/test.txt.'
    flags.DEFINE_string('source', None, other, flag_values=options)
    masked = 'Heads of self-attention to switch off, LAYER.HEAD with numbers from 0, such as 3.1,4.7.'
    flags.DEFINE_string('mask_heads', None, masked, flag_values=options)
    define_split(('held_out', 'test'), None, 'Part of the text to evaluate on.', options)
    for name, meaning in {
        'context': 'Tokens that the model sees at once.',
        'stride': 'Tokens by which the window moves; equal to --context = no overlap.',
        'memory_length': 'Tokens of memory before each segment of --context.',
        'compressed_length': 'Cache slots of compressed memory.',
        'clamp_length': 'Larger distances count as this one; 0 = no limit.',
    }.items():
        flags.DEFINE_integer(name, None, meaning, flag_values=options)
    flags.DEFINE_bool('same_length', None, 'Let each token attend to memory_length keys.', flag_values=options)
    flags.DEFINE_integer('beams', None, 'Beams of the search; 1 = greedy.', lower_bound=1, flag_values=options)
    penalties = ('gnmt', 'length')
    flags.DEFINE_enum('penalty', None, penalties, 'Length penalty of the search.', flag_values=options)
    flags.DEFINE_float('alpha', None, 'Exponent of the length penalty.', flag_values=options)
    define_verify(options)
    define_host_flags(options)
    return options


def show(metrics: dict[str, float | str]) -> None:
    """Prints metrics as one JSON line; in a run of several processes, only process 0 prints."""
    import jax

    if jax.process_index() == 0:
        print(json.dumps(metrics), flush=True)
