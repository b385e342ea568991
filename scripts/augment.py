"""Adds training rows by word replacement (Jiao et al. 2019, TinyBERT), in the file format of the task.

    python scripts/augment.py --model runs/books_bert --input data/glue/SST-2/train.tsv --output data/sst2_20.tsv \
      --set format=glue --set name=sst2 --copies 20
    python scripts/augment.py --model checkpoints/bert --input mine.csv --output more.csv --set text=review

`--model` is any masked language model. `--set` sets a field of the config's `examples` group, such as the names of the
columns. Words of one piece are replaced by predictions of the model. Words of several pieces are replaced by nearest
neighbours of their vectors. `--vectors` names the vectors: a text file in GloVe's format, or a model such as the
teacher, whose token embeddings are used. Without `--vectors` the token embeddings of `--model` are used.

Each row is followed by the rows made from it. The last line of output is one JSON object: rows read and written.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import dataclasses
import json
import sys
from pathlib import Path

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import checkpoint_from_flags, define_checkpoint, define_model, define_output
from efficient_attention.programs.predict import parse_field


def main() -> None:
    """Reads the flags, writes the file with the additional training rows, and prints how many rows it has."""
    options = define_flags()
    parse_flags(sys.argv, ('model', 'input', 'output'), options=options)
    # This import is late, so that --help and flag errors are fast.
    from efficient_attention.config.examples import ExamplesConfig
    from efficient_attention.inference.augment_file import augment_file
    from efficient_attention.inference.fill_mask import MaskFiller
    from efficient_attention.inference.word_neighbours import open_vectors
    from efficient_attention.inference.word_replacement import WordReplacer

    config = dataclasses.replace(ExamplesConfig(), **dict(parse_field(text) for text in options.set))
    vectors = open_vectors(Path(options.vectors)) if options.vectors else None
    filler = MaskFiller(options.model, checkpoint=checkpoint_from_flags(options))
    replacer = WordReplacer(filler, vectors, candidates=options.candidates)
    draws = {'copies': options.copies, 'share': options.share, 'seed': options.seed}
    print(json.dumps(augment_file(Path(options.input), options.output, replacer, config, **draws)))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    flags.DEFINE_string('input', None, 'The training file: CSV, TSV or JSON lines.', flag_values=options)
    define_output('File to write, with the file ending of --input.', options=options)
    flags.DEFINE_multi_string('set', [], 'FIELD=VALUE of the examples group.', flag_values=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    flags.DEFINE_string('vectors', '', 'A file with a word and its vector per line, or a model.', flag_values=options)
    flags.DEFINE_integer('copies', 20, 'New texts to try per row.', flag_values=options)
    flags.DEFINE_float('share', 0.4, 'Probability of replacing a word.', flag_values=options)
    flags.DEFINE_integer('candidates', 15, 'Most candidate replacements per word.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Random seed, combined with the row number.', flag_values=options)
    return options


if __name__ == '__main__':
    run_command(main)
