"""Texts from texts, a line each, with an encoder-decoder that train.py trained.

    python scripts/translate.py --model runs/multi30k --input test.de --output test.en --beams 5
    python scripts/translate.py --model runs/multi30k --input test.de --output test.en --references test.en.gold
    echo 'Zwei Hunde spielen im Schnee.' | python scripts/translate.py --model runs/multi30k

Without --input it reads standard input, and answers line by line; without --output it writes to standard output. With
--output an interrupted command goes on where it
was: what is done stands in `<output>.partial` until all is. `--format jsonl` writes an object a line, with the --best
texts and their scores. With --references the last line on standard output is one JSON object of BLEU, chrF and exact
matches with their signatures, and of the search. Without --input, --references scores an --output that is there, and
needs no --model:

    python scripts/translate.py --output test.en --references test.en.gold
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals(keeps_freed_memory=True)  # before the imports, which take a while

import json
import sys
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import (
    chosen_checkpoint,
    define_batch_size,
    define_checkpoint,
    define_integers,
    define_model,
    define_output,
    define_path,
)
from efficient_attention.config.json_text import parse_json
from efficient_attention.errors import InputError
from efficient_attention.processes.allocator import keep_freed_memory

SEARCH = ('beams', 'best', 'penalty', 'alpha', 'stop', 'max_tokens', 'min_tokens', 'ratio', 'extra', 'batch_size')
SEARCH += ('repetition_penalty', 'no_repeat_ngram_size', 'bad_words_ids', 'suppress_tokens', 'begin_suppress_tokens')
SEARCH += ('ends', 'do_sample', 'temperature', 'top_k', 'top_p', 'seed')
BEAMS = 5  # by default


def main() -> None:
    """Reads the flags, translates, writes, and prints the scores if there are references."""
    options = define_flags()
    parse_flags(sys.argv, options=options)
    if options.references is not None and options.input is None:
        score_alone(options)
        return
    if options.model is None:
        raise InputError('--model is missing')
    check_files(options)
    print(keep_freed_memory(), file=sys.stderr)
    from efficient_attention.inference.search_options import decoding_of
    from efficient_attention.inference.translate_file import (
        translate_file,
        translate_lines,
        translate_stream,
    )  # after --help
    from efficient_attention.inference.translator import translator_of
    from efficient_attention.interop.pretrained import open_pretrained

    named = given(options)
    pretrained = open_pretrained(options.model, chosen_checkpoint(options))
    decoding = decoding_of(pretrained, options.model, named, {'beams': BEAMS})
    translator = translator_of(pretrained, options.model, decoding, options.prefix, length=options.length)
    if options.output is None and options.input is not None:
        translate_lines(translator, options.input, sys.stdout, form=options.format)
        return
    if options.input is None:
        translate_stream(translator, sys.stdin.buffer, sys.stdout, form=options.format)
        return
    identity = {'model': translator.origin, 'prefix': translator.prefix, 'length': translator.encoder.source.length}
    identity |= {name: getattr(translator.decoding, name) for name in SEARCH if name != 'batch_size'}
    translate_file(translator, options.input, options.output, form=options.format, identity=identity)
    if options.references is not None:
        print_scores(options, translator.decoding.shown())


def given(options: flags.FlagValues) -> dict[str, Any]:
    """The options of the search that the command line names; raises InputError where one cannot be read."""
    named = {name: options[name].value for name in SEARCH if options[name].present}
    if 'bad_words_ids' in named:
        try:
            named['bad_words_ids'] = parse_json(named['bad_words_ids'])
        except ValueError:
            raise InputError(f'--bad_words_ids is {options.bad_words_ids!r}; give lists, as [[5,6],[7]]') from None
    return named


def score_alone(options: flags.FlagValues) -> None:
    """Prints the scores of an output that is there; raises InputError where there is none, or a model is named."""
    if options.output is None:
        raise InputError('--references needs --output, and --input unless that file is there')
    if unread := [name for name in (*SEARCH, 'prefix', 'length', 'checkpoint', 'average') if options[name].present]:
        raise InputError(f'--{unread[0]} is of a search, and without --input the --output that is there is scored')
    if options.model is not None:
        raise InputError('--model needs --input; without both, --references scores the --output that is there')
    print_scores(options)


def print_scores(options: flags.FlagValues, search: dict[str, Any] | None = None) -> None:
    """Prints the scores of the output against the references, and the search that it is from where that is known."""
    from efficient_attention.inference.translate_file import file_scores

    print(json.dumps(file_scores(options.output, options.references, form=options.format) | (search or {})))


def define_flags() -> flags.FlagValues:
    """The flags of this command."""
    options = flags.FlagValues()
    define_model(options)
    define_path('input', 'File of texts, a line each, plain or .gz; standard input by default.', options=options)
    define_output(
        'File for the texts that are found, a line each; must be missing. Standard output by default.', options=options
    )
    meaning = 'File of the texts that are right, to score by; without --input, the --output that is there.'
    define_path('references', meaning, options=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    flags.DEFINE_enum(
        'format', 'text', ('text', 'jsonl'), 'Of the output: the best text, or all with scores.', flag_values=options
    )
    meaning = "Most tokens of a source; by default the run's, or as many as the model has positions, or 512."
    flags.DEFINE_integer('length', 0, meaning, lower_bound=0, flag_values=options)
    flags.DEFINE_string('prefix', None, "Before each text; the run's by default.", flag_values=options)
    define_search(options)
    define_batch_size(32, '', options)
    return options


def define_search(options: flags.FlagValues) -> None:
    """Defines the flags of the search. If a flag is not given, the files of a Hugging Face folder may decide it.

    So the defaults here are only for --help; they are those of `Decoding`, except for the beams.
    """
    flags.DEFINE_integer('beams', BEAMS, 'Open hypotheses of the search; 1 = greedy.', flag_values=options)
    flags.DEFINE_integer('best', 1, 'Texts for each line, in --format jsonl.', flag_values=options)
    flags.DEFINE_enum('penalty', 'gnmt', ('gnmt', 'length'), 'Length penalty of the search.', flag_values=options)
    flags.DEFINE_float('alpha', 0.6, 'Exponent of the length penalty.', flag_values=options)
    stops = 'Where the search of a text ends: where nothing can improve; sooner, by a guess; or at --beams ended texts.'
    flags.DEFINE_enum('stop', 'exact', ('exact', 'early', 'first'), stops, flag_values=options)
    flags.DEFINE_integer('max_tokens', 256, 'Most tokens of a text, whatever its source.', flag_values=options)
    flags.DEFINE_float('ratio', 1.0, 'Most tokens of a text for each of its source.', flag_values=options)
    flags.DEFINE_integer('extra', 50, 'Tokens that a text may have beyond --ratio of its source.', flag_values=options)
    flags.DEFINE_integer('min_tokens', 0, 'Fewest tokens of a text.', flag_values=options)
    define_rules(options)


def define_rules(options: flags.FlagValues) -> None:
    """Defines the flags of the rules on which tokens may follow, and of drawing."""
    meaning = 'Above 1 tokens of a text become less probable to come again.'
    flags.DEFINE_float('repetition_penalty', 1.0, meaning, flag_values=options)
    meaning = 'No sequence of so many tokens comes twice in a text; 0 = any may.'
    flags.DEFINE_integer('no_repeat_ngram_size', 0, meaning, flag_values=options)
    meaning = 'Sequences of ids that no text has, such as [[5,6],[7]].'
    flags.DEFINE_string('bad_words_ids', None, meaning, flag_values=options)
    define_integers('suppress_tokens', None, 'Ids that no text has', options)
    define_integers('begin_suppress_tokens', None, 'Ids that no text begins with', options)
    define_integers('ends', None, "Ids that end a text; the checkpoint's by default", options)
    flags.DEFINE_boolean('do_sample', False, 'Draw each token, instead of a search.', flag_values=options)
    flags.DEFINE_float('temperature', 1.0, 'Below 1 probable tokens become more probable.', flag_values=options)
    flags.DEFINE_integer('top_k', 0, 'Draw among so many tokens; 0 = all.', flag_values=options)
    meaning = 'Draw among the fewest tokens with this probability together.'
    flags.DEFINE_float('top_p', 1.0, meaning, flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Seed of the draws, which also depend on the line number.', flag_values=options)


def check_files(options: flags.FlagValues) -> None:
    """Raises InputError where the files do not fit together, before a model is read."""
    output: Path | None = options.output
    if options.input is None and output is not None:
        raise InputError('--output needs --input; without both, standard input and output are used')
    if output is None and options.references is not None:
        raise InputError('--references needs --output')
    if output is not None and output.exists():
        way = ', or score it with --references and without --model and --input' if options.references else ''
        raise InputError(f'{output}: there is a file already; name another one (--output){way}')
    if options.references is not None:
        check_references(options.input, options.references)
    if options.best > 1 and options.format == 'text':
        raise InputError(f'--best is {options.best}; --format text holds one text a line, --format jsonl all of them')


def check_references(source: Path, references: Path) -> None:
    """Raises InputError where there is not a reference for each text, before hours of search."""
    from efficient_attention.data.sources.text_files import read_lines

    texts, right = (sum(1 for _ in read_lines(path)) for path in (source, references))
    if texts != right:
        raise InputError(f'{references} has {right} lines, {source} {texts}')


if __name__ == '__main__':
    run_command(main)
