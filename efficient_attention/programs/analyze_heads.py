"""Measures what the attention heads of a model do, and writes the results as JSON and as a page.

    efficient-attention analyze-heads --model checkpoints/minilm --text 'texts/*.txt' --output heads
    efficient-attention analyze-heads --model checkpoints/minilm --dependencies dev.conllu test.conllu --output heads

`--text` measures each head's entropy, its share of weight on special tokens, punctuation and neighbours, and its mean
distance, in tokens or for images in pixels; it draws a map of the heads, and compares scores of a token's importance
with the effect of leaving the token out (encoders only).
`--dependencies` finds, per relation, the attention head that links words to their parents (Clark et al. 2019).
`--removal` measures a metric of a run, such as accuracy, without each head, with one head kept per layer, and with ever
more heads removed. The three may be given together.

The command writes `heads.json` and `heads.html`, and prints a table of the relations. The last line of output is one
JSON object with the paths.
"""

import json
import sys
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import joined_lists, parse_flags
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_checkpoint,
    define_length,
    define_model,
    define_output,
)
from efficient_attention.processes.allocator import tune_allocator


def main() -> None:
    """Reads the flags, measures the heads, writes JSON and page, and prints one JSON line."""
    options = define_flags()
    parse_flags(joined_lists(sys.argv, ('text', 'dependencies')), ('model', 'output'), options=options, about=__doc__)
    # These imports are late, so that --help is fast.
    from efficient_attention.inspection.head_analysis import HeadOptions, analyze_heads
    from efficient_attention.inspection.head_report import relation_table, write_head_report

    tune_allocator()
    chosen: dict[str, Any] = {
        name: options[name].value for name in ('text', 'length', 'limit', 'compared', 'least_cases', 'seed', 'removal')
    }
    files = [part.strip() for part in options.dependencies.split(',') if part.strip()]
    found = analyze_heads(
        options.model, HeadOptions(dependencies=files, checkpoint=checkpoint_from_flags(options), **chosen)
    )
    for row in relation_table(found.get('relations', [])):
        print('\t'.join(row))
    if found.get('relations') == []:
        print(f'no relation has {options.least_cases} test cases; --least_cases sets another number')
    page, data = reversed(write_head_report(found, options.output))
    print(json.dumps({'page': str(page), 'data': str(data), **found.get('probe', {})}))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    flags.DEFINE_string(
        'text', '', 'Files of plain text, or of images for a model of images; paths or globs.', flag_values=options
    )
    files = 'Two CoNLL-U files: dev, in which heads are chosen, and test.'
    flags.DEFINE_string('dependencies', '', files, flag_values=options)
    define_output('Path of the JSON file and of the page, without suffix.', options=options)
    most = 'At most this many windows per text file; 0 = all.'
    flags.DEFINE_integer('limit', 32, most, 0, flag_values=options)
    compared = 'Rows in which scores of tokens are compared with leaving tokens out; 0 = none.'
    flags.DEFINE_integer('compared', 20, compared, 0, flag_values=options)
    least = 'Fewest test cases of a relation in the table.'
    flags.DEFINE_integer('least_cases', 100, least, 1, flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Random seed of the copy with random weights.', 0, flag_values=options)
    metric = "Metric of the run's evaluation, such as accuracy, to measure without some heads."
    flags.DEFINE_string('removal', '', metric, flag_values=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_length(0, 'Most tokens per window; 0 = as many as the model reads.', options)
    return options
