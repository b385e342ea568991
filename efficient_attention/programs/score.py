"""Scores a trained model on a problem by likelihood.

    efficient-attention score --model runs/pieces_full --problem blimp --files 'data/blimp/data/*.jsonl'
    efficient-attention score --model checkpoints/gpt2 --problem lambada --files data/lambada/lambada_test.jsonl
    efficient-attention score --model checkpoints/gpt2 --problem choice --files codah.tsv --set format=swag
    efficient-attention score --model runs/x --problem exact --files test.jsonl --train_files train.jsonl --shots 0 1 8

Problems: blimp, lambada, choice, winograd, exact, text. docs/scoring.md says what each one measures and which numbers
are comparable. `--set` sets a field of the problem: template, format, label, text, text_pair, answer, detokenizer or
stride. With `--ngram`, an n-gram model of the run's training text answers the same questions.

The last line of output is one JSON object with all figures.
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
    define_integers,
    define_length,
    define_model,
    define_output,
)
from efficient_attention.errors import InputError
from efficient_attention.processes.allocator import tune_allocator

NAMES = ('blimp', 'lambada', 'choice', 'winograd', 'exact', 'text')
# flags with the name of an option in `ScoreOptions`
CHOSEN = (
    'train_files',
    'shots',
    'description',
    'delimiter',
    'seed',
    'empty_prompt',
    'limit',
    'batch_size',
    'length',
    'ngram',
    'published',
    'output',
)
LISTS = ('files', 'train_files', 'shots')  # flags that may have several values
TEXTS = ('description', 'delimiter', 'empty_prompt')  # flags in which \n is a line end


def main() -> None:
    """Reads the flags, scores the problem, prints a table and one JSON line."""
    options = define_flags()
    parse_flags(joined_lists(sys.argv, LISTS), ('model', 'problem', 'files'), options=options, about=__doc__)
    from efficient_attention.scoring.report import ScoreOptions, score_problem  # imported late, so that --help is fast

    tune_allocator()
    chosen: dict[str, Any] = {name: options[name].value for name in CHOSEN}
    chosen |= {name: chosen[name].replace('\\n', '\n') for name in TEXTS if chosen[name]}
    fields, checkpoint = dict(parse_field(text) for text in options.set), checkpoint_from_flags(options)
    choice = ScoreOptions(fields=fields, checkpoint=checkpoint, **chosen)
    found = score_problem(options.model, options.problem, options.files, choice)
    print(json.dumps(found))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    flags.DEFINE_enum('problem', None, NAMES, 'Kind of problem.', flag_values=options)
    flags.DEFINE_string('files', None, 'Files of the problem; paths or globs.', flag_values=options)
    flags.DEFINE_string('train_files', '', 'Files from which examples are drawn.', flag_values=options)
    define_integers('shots', [0], 'Solved examples before each question, such as 0,1,8', options)
    flags.DEFINE_multi_string('set', [], 'FIELD=VALUE of the reader, such as format=race.', flag_values=options)
    flags.DEFINE_string('description', '', 'Text before examples and question.', flag_values=options)
    between = 'Text after description and examples; default: two line ends, unless the prompts begin with one.'
    flags.DEFINE_string('delimiter', None, between, flag_values=options)
    empty = 'Prompt of the measure against_empty, such as Answer:; default: the document separator.'
    flags.DEFINE_string('empty_prompt', '', empty, flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Random seed of the examples.', lower_bound=0, flag_values=options)
    flags.DEFINE_integer(
        'limit', 0, 'At most this many questions, or characters of text, per file; 0 = all.', 0, flag_values=options
    )
    order = 'Also score an n-gram model of the training text, of this order; 0 = none.'
    flags.DEFINE_integer('ngram', 0, order, 0, flag_values=options)
    published = 'JSON lines of published BLiMP accuracies, one object per UID.'
    flags.DEFINE_string('published', '', published, flag_values=options)
    define_output('File for one JSON line per question: prompt, scores, answer.', options=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    define_batch_size(16, '', options)
    define_length(0, "Most tokens per row; 0 = the model's positions, or the length of its training rows.", options)
    return options


def parse_field(text: str) -> tuple[str, Any]:
    """Parses 'name=value', a field of a problem's reader; raises InputError for another form."""
    name, is_there, value = text.partition('=')
    known = ('template', 'format', 'label', 'text', 'text_pair', 'answer', 'detokenizer', 'stride')
    if not is_there or name not in known:
        raise InputError(f'--set {text!r}: write FIELD=VALUE with one of {", ".join(known)}')
    return name, value.replace('\\n', '\n')
