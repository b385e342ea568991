"""Scores encoder-decoders by the length of the source text: prints the scores, and plots a line per model.

    python scripts/score_by_length.py --models runs/reverse,runs/reverse_rotary --pairs toy:reverse:1000:1-100:3 \\
        --edges 10,20,40,60,80,100 --metric exact_match --beams 1 --output reverse.png
    python scripts/score_by_length.py --models runs/multi30k --pairs 'joined:4:lines:test.de,test.en' --edges 40,60,80

--edges are upper bounds of length groups: a source belongs to the first edge that is at least its number of words.
Prints one JSON object: the edges, the pairs per group, and each model's score per group, null for an empty group.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import flags
from matplotlib.figure import Figure

from efficient_attention.atomic_files import atomic_file
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_batch_size, define_integers, define_output
from efficient_attention.data.pairs.pair_datasets import TextPair, parse_pair_datasets
from efficient_attention.errors import InputError
from efficient_attention.inference.translate_file import log_truncations
from efficient_attention.inference.translator import open_translator
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.tasks.metrics.translation import translation_scores

METRICS = ('bleu', 'chrf', 'exact_match', 'word_accuracy')
WHOLE = {'bleu': 100.0, 'chrf': 100.0, 'exact_match': 1.0, 'word_accuracy': 1.0}  # {metric: best possible score}
COLOURS = 6  # number of different line colours in the plot
EDGES = (5, 10, 15, 20, 30, 40, 60, 80, 100)


def main() -> None:
    """Generates texts with each model, scores them by source length, and prints and plots the scores."""
    options = define_flags()
    parse_flags(sys.argv, ('models', 'pairs'), options=options)
    if options.edges != sorted(set(options.edges)) or options.edges[0] < 1:
        raise InputError(f'--edges is {options.edges}; they must be at least 1 and in rising order')
    if len(set(options.models)) < len(options.models):
        raise InputError(f'--models has {options.models}; each may be given only once')
    found = [pair for one in parse_pair_datasets(options.pairs, '--pairs') for pair in one.read_pairs()]
    pairs = [pair for pair in found if len(pair.source.split()) <= options.edges[-1]]
    if longer := len(found) - len(pairs):
        print(f'left out {longer:,} pairs with sources of more than {options.edges[-1]} words', file=sys.stderr)
    groups = group_pairs_by_length(pairs, options.edges)
    tune_allocator()
    decoding = {'beams': options.beams, 'batch_size': options.batch_size}
    scores = {}
    for model in options.models:
        translator = open_translator(Path(model), decoding=decoding)
        made = [best[0].text if best else '' for best in translator([pair.source for pair in pairs])]
        log_truncations(translator)
        scores[model] = [group_score(made, pairs, group, options.metric) for group in groups]
    counts = [len(group) for group in groups]
    print(json.dumps({'metric': options.metric, 'words': options.edges, 'pairs': counts, 'scores': scores}))
    if options.output is not None:
        with atomic_file(options.output) as partial:
            plot_figure(scores, options.edges, options.metric).savefig(partial, format='png', dpi=150)


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    flags.DEFINE_list(
        'models', None, 'Workdirs of runs or Hugging Face folders, separated by commas.', flag_values=options
    )
    flags.DEFINE_string('pairs', None, 'Datasets of pairs, as in pairs.test of a config.', flag_values=options)
    flags.DEFINE_enum('metric', 'bleu', METRICS, 'Metric to compute.', flag_values=options)
    define_integers(
        'edges',
        EDGES,
        'Upper bounds of the length groups, in words of the source, in rising order; longer sources are left out',
        options,
    )
    flags.DEFINE_integer('beams', 5, 'Beams of the search; 1 = greedy.', flag_values=options)
    define_batch_size(32, '', options)
    define_output('PNG file of the plot; by default none is written.', options=options)
    return options


def group_pairs_by_length(pairs: Sequence[TextPair], edges: Sequence[int]) -> list[list[int]]:
    """Groups text pairs by the number of words in their sources; returns the indices of the pairs in each group."""
    words = np.array([len(pair.source.split()) for pair in pairs], np.int64)
    starts = [0, *edges[:-1]]
    bounds = zip(starts, edges, strict=True)
    return [np.flatnonzero((words > low) & (words <= high)).tolist() for low, high in bounds]


def group_score(made: Sequence[str], pairs: Sequence[TextPair], group: Sequence[int], metric: str) -> float | None:
    """Returns the score of the generated texts in one length group; None if the group is empty."""
    if not group:
        return None
    texts, references = [made[number] for number in group], [pairs[number].target for number in group]
    if metric == 'word_accuracy':
        return word_accuracy(texts, references)
    return float(translation_scores(texts, references)[metric])


def word_accuracy(texts: Sequence[str], references: Sequence[str]) -> float:
    """Returns the share of words that are equal to the reference word at the same position; extra words are wrong."""
    right = total = 0
    for text, reference in zip(texts, references, strict=True):
        places = list(itertools.zip_longest(text.split(), reference.split()))
        right += sum(ours == theirs for ours, theirs in places)
        total += len(places)
    return right / total


def plot_figure(scores: dict[str, list[float | None]], edges: Sequence[int], metric: str) -> Figure:
    """Returns a plot of scores over source length, with a line per model.

    From the seventh line on, colours repeat, and lines are dashed.
    """
    figure = Figure(figsize=(8, 4), layout='constrained')
    axes = figure.subplots()
    names = [Path(name).name for name in scores]
    for number, (name, values) in enumerate(scores.items()):
        style = {'color': f'C{number % COLOURS}', 'linestyle': '--' if number >= COLOURS else '-', 'marker': 'o'}
        label = name if names.count(names[number]) > 1 else names[number]
        axes.plot(edges, [np.nan if value is None else value for value in values], label=label, **style)
    axes.set_ylim(0, 1.02 * WHOLE[metric])
    axes.set_xlabel('words of the source, at most')
    axes.set_ylabel(metric)
    axes.grid(color='#e2e8f0')
    axes.legend(frameon=False, loc='center left', bbox_to_anchor=(1.0, 0.5))
    return figure


if __name__ == '__main__':
    run_command(main)
