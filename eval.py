"""Evaluates a trained model on its held-out data: python eval.py --workdir runs/quickstart [--checkpoint=best].

The last printed line is one JSON object. For text-to-text models, a line with the losses comes before the beam search,
so that the losses are not lost if the search is interrupted.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import json
import sys

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_batch_size,
    define_checkpoint,
    define_split,
    define_trained_workdir,
    define_verify,
)
from efficient_attention.commands.host_flags import define_host_flags, multi_host_run_from_flags
from efficient_attention.processes.allocator import tune_allocator

WORKDIR = define_trained_workdir()
define_checkpoint('last')
BATCH_SIZE = define_batch_size(
    None, ', over all devices; with memory, the streams of the text; default: as in the config'
)
PROTOCOL = {  # These flags are for language-model evaluation; an unset flag takes the config's value.
    'split': define_split(('held_out', 'test'), None, 'Part of the text to evaluate on.'),
    'context': flags.DEFINE_integer('context', None, 'Tokens that the model sees at once.'),
    'stride': flags.DEFINE_integer('stride', None, 'Tokens by which the window moves; the context = no overlap.'),
    'memory_length': flags.DEFINE_integer('memory_length', None, 'Tokens of memory before each segment of --context.'),
    'compressed_length': flags.DEFINE_integer('compressed_length', None, 'Cache slots of compressed memory.'),
    'clamp_length': flags.DEFINE_integer('clamp_length', None, 'Larger distances count as this one; 0 = no limit.'),
    'same_length': flags.DEFINE_bool('same_length', None, 'Let each token attend to memory_length keys.'),
}
SEARCH = {  # These flags are for the beam search of text-to-text models; an unset flag takes the config's value.
    'beams': flags.DEFINE_integer('beams', None, 'Beams of the search; 1 = greedy.', lower_bound=1),
    'penalty': flags.DEFINE_enum('penalty', None, ('gnmt', 'length'), 'Length penalty of the search.'),
    'alpha': flags.DEFINE_float('alpha', None, 'Exponent of the length penalty.'),
}
VERIFY = define_verify()
define_host_flags()


def main() -> None:
    """Parses the flags, evaluates the run, and prints the metrics."""
    parse_flags(sys.argv, required=('workdir',))
    # These imports are late, because --help and errors about flags would otherwise take twice as long.
    from efficient_attention.inference.evaluate_workdir import evaluate_workdir
    from efficient_attention.workdir.checkpoint_verification import verify_checkpoints

    if VERIFY.value:
        verify_checkpoints(WORKDIR.value)
        return
    tune_allocator()
    protocol = {name: flag.value for name, flag in (PROTOCOL | SEARCH).items() if flag.value is not None}
    options = {'checkpoint': checkpoint_from_flags(), 'batch_size': BATCH_SIZE.value, **protocol}
    with multi_host_run_from_flags({'options': options}):
        show(evaluate_workdir(WORKDIR.value, **options, before_search=show))


def show(metrics: dict[str, float | str]) -> None:
    """Prints metrics as one JSON line; in a run of several processes, only process 0 prints."""
    import jax

    if jax.process_index() == 0:
        print(json.dumps(metrics), flush=True)


if __name__ == '__main__':
    run_command(main)
