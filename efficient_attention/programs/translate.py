"""Generates a target text for each source text of a file with an encoder-decoder, and optionally scores the texts.

    efficient-attention translate --model runs/multi30k --input test.de --output test.en --beams 5
    efficient-attention translate --model runs/multi30k --input test.de --output test.en --references test.en.gold
    echo 'Zwei Hunde spielen im Schnee.' | efficient-attention translate --model runs/multi30k

Without --input it reads standard input and answers line by line. Without --output it writes to standard output. With
--output, an interrupted command can be resumed: finished lines are kept in `<output>.partial` until all lines are done.
`--format jsonl` writes one object per line, with the --best texts and their scores. With --references, the last line on
standard output is one JSON object: BLEU, chrF and exact match with their signatures, and the search settings.

--references without --input scores an existing --output and needs no --model:

    efficient-attention translate --output test.en --references test.en.gold
"""

import json
import sys
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import missing_flag_error, parse_flags
from efficient_attention.commands.flags import (
    checkpoint_from_flags,
    define_batch_size,
    define_checkpoint,
    define_integers,
    define_model,
    define_output,
    define_path,
)
from efficient_attention.config.json_parsing import parse_json
from efficient_attention.errors import InputError, counted
from efficient_attention.processes.allocator import tune_allocator

SEARCH: tuple[str, ...] = (
    'beams',
    'best',
    'penalty',
    'alpha',
    'stop',
    'max_tokens',
    'min_tokens',
    'ratio',
    'extra',
    'batch_size',
)
SEARCH += ('repetition_penalty', 'no_repeat_ngram_size', 'bad_words_ids', 'suppress_tokens', 'begin_suppress_tokens')
SEARCH += ('ends', 'do_sample', 'temperature', 'top_k', 'top_p', 'seed')
BEAMS = 5  # default of the flag --beams


def main() -> None:
    """Reads the flags, generates and writes the target texts, and prints scores if there are reference texts."""
    options = define_flags()
    parse_flags(sys.argv, options=options, about=__doc__)
    if options.references is not None and options.input is None:
        score_existing_output(options)
        return
    if options.model is None:
        raise missing_flag_error('model')
    check_files(options)
    tune_allocator()
    from efficient_attention.inference.decoding_options import pretrained_decoding_options
    from efficient_attention.inference.translate_file import (
        translate_file,
        translate_lines,
        translate_stream,
    )  # imported late, so that --help is fast
    from efficient_attention.inference.translator import make_pretrained_translator
    from efficient_attention.interop.pretrained import open_pretrained

    named = search_options_from_flags(options)
    pretrained = open_pretrained(options.model, checkpoint_from_flags(options))
    decoding = pretrained_decoding_options(pretrained, options.model, named, {'beams': BEAMS})
    translator = make_pretrained_translator(pretrained, options.model, decoding, options.prefix, length=options.length)
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
        print_scores(options, translator.decoding.reported_options())


def search_options_from_flags(options: flags.FlagValues) -> dict[str, Any]:
    """Returns the search flags that the command line sets; raises InputError if a value cannot be parsed."""
    named: dict[str, Any] = {name: options[name].value for name in SEARCH if options[name].present}
    if 'bad_words_ids' in named:
        try:
            named['bad_words_ids'] = parse_json(named['bad_words_ids'])
        except ValueError:
            raise InputError(f'--bad_words_ids is {options.bad_words_ids!r}; give lists, as [[5,6],[7]]') from None
    return named


def score_existing_output(options: flags.FlagValues) -> None:
    """Scores an existing output file against the references; raises InputError if a flag would only affect a search for
    new texts.
    """
    if options.output is None:
        raise InputError('--references needs --output, and also --input unless the output file exists')
    if unread := [name for name in (*SEARCH, 'prefix', 'length', 'checkpoint', 'average') if options[name].present]:
        raise InputError(f'--{unread[0]} changes a search, but without --input only the existing --output is scored')
    if options.model is not None:
        raise InputError('--model needs --input; without both, --references scores the existing --output')
    print_scores(options)


def print_scores(options: flags.FlagValues, search: dict[str, Any] | None = None) -> None:
    """Prints the scores of the generated texts against the references, and the search settings if known."""
    from efficient_attention.inference.translate_file import score_translated_file

    print(json.dumps(score_translated_file(options.output, options.references, form=options.format) | (search or {})))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_model(options)
    define_path(
        'input', 'File with one source text per line, plain or .gz; standard input by default.', options=options
    )
    define_output(
        'File for the generated texts, one per line; must not exist yet. Standard output by default.', options=options
    )
    meaning = (
        'File with one reference text per line, to score the output; without --input, scores an existing --output.'
    )
    define_path('references', meaning, options=options)
    define_checkpoint('', '; best by default where the run names a metric, else last', options)
    flags.DEFINE_enum(
        'format',
        'text',
        ('text', 'jsonl'),
        'Output format: only the best text, or all texts with scores.',
        flag_values=options,
    )
    meaning = "Most tokens of a source; by default the run's limit, or the model's number of positions, or 512."
    flags.DEFINE_integer('length', 0, meaning, lower_bound=0, flag_values=options)
    flags.DEFINE_string(
        'prefix', None, "Text put before each source; by default the run's prefix.", flag_values=options
    )
    define_search_flags(options)
    define_batch_size(32, '', options)
    return options


def define_search_flags(options: flags.FlagValues) -> None:
    """Defines the flags of beam search, such as beams, length penalty and maximum tokens.

    If a flag is not given, the files of a Hugging Face folder may set the option. So the defaults here are only for
    --help; they equal `DecodingOptions`'s defaults, except for the beams.
    """
    flags.DEFINE_integer('beams', BEAMS, 'Beams of the search; 1 = greedy.', flag_values=options)
    flags.DEFINE_integer('best', 1, 'Texts per line, with --format jsonl.', flag_values=options)
    flags.DEFINE_enum('penalty', 'gnmt', ('gnmt', 'length'), 'Length penalty of the search.', flag_values=options)
    flags.DEFINE_float('alpha', 0.6, 'Exponent of the length penalty.', flag_values=options)
    stops = (
        'When a search ends: exact = no text can improve; early = probably none can; first = --beams texts have ended.'
    )
    flags.DEFINE_enum('stop', 'exact', ('exact', 'early', 'first'), stops, flag_values=options)
    flags.DEFINE_integer('max_tokens', 256, 'Most tokens of a generated text.', flag_values=options)
    flags.DEFINE_float('ratio', 1.0, 'Most generated tokens per source token; see --extra.', flag_values=options)
    flags.DEFINE_integer(
        'extra', 50, 'Tokens that a text may have beyond --ratio times its source.', flag_values=options
    )
    flags.DEFINE_integer('min_tokens', 0, 'Fewest tokens of a generated text.', flag_values=options)
    define_token_rule_flags(options)


def define_token_rule_flags(options: flags.FlagValues) -> None:
    """Defines the flags that restrict the generated tokens, and the flags of sampling."""
    meaning = 'Above 1, tokens already in the text become less probable.'
    flags.DEFINE_float('repetition_penalty', 1.0, meaning, flag_values=options)
    meaning = 'No sequence of this many tokens occurs twice in a text; 0 = no limit.'
    flags.DEFINE_integer('no_repeat_ngram_size', 0, meaning, flag_values=options)
    meaning = 'Sequences of token ids that never occur, such as [[5,6],[7]].'
    flags.DEFINE_string('bad_words_ids', None, meaning, flag_values=options)
    define_integers('suppress_tokens', None, 'Token ids that never occur', options)
    define_integers('begin_suppress_tokens', None, 'Token ids that never come first', options)
    define_integers('ends', None, "Token ids that end a text; by default the checkpoint's", options)
    flags.DEFINE_boolean('do_sample', False, 'Sample each token instead of searching.', flag_values=options)
    flags.DEFINE_float('temperature', 1.0, 'Below 1, probable tokens become even more probable.', flag_values=options)
    flags.DEFINE_integer('top_k', 0, 'Sample from this many most probable tokens; 0 = all.', flag_values=options)
    meaning = 'Sample from the fewest tokens whose total probability reaches this value.'
    flags.DEFINE_float('top_p', 1.0, meaning, flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Seed of sampling, combined with the line number.', flag_values=options)


def check_files(options: flags.FlagValues) -> None:
    """Raises InputError if input, output and reference files do not fit together; called before a model is loaded."""
    output: Path | None = options.output
    if options.input is None and output is not None:
        raise InputError('--output needs --input; without both, standard input and output are used')
    if output is None and options.references is not None:
        raise InputError('--references needs --output')
    if output is not None and output.exists():
        way = '; to score this file, give only --output and --references' if options.references else ''
        raise InputError(f'{output}: there is a file already; name another one (--output){way}')
    if options.references is not None:
        check_references(options.input, options.references)
    if options.best > 1 and options.format == 'text':
        raise InputError(f'--best is {options.best}; --format text has only one text per line; use --format jsonl')


def check_references(source: Path, references: Path) -> None:
    """Raises InputError if the numbers of source texts and references differ; called before hours of search."""
    from efficient_attention.data.sources.text_files import read_lines

    texts, right = (sum(1 for _ in read_lines(path)) for path in (source, references))
    if texts != right:
        raise InputError(
            f'{references} has {counted(right, "line")}, but {source} has {counted(texts, "line")}; '
            'both need the same number'
        )
