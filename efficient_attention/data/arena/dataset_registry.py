"""Opens the Long Range Arena dataset that a config names, such as 'listops:rows=2000:length=500-2000:seed=0'.

    listops:rows=<n>:length=<shortest>-<longest>[:seed=<n>]     excludes both lengths, as Long Range Arena does
    pathfinder:rows=<n>:size=<16|20|32|64|128|256>[:bars=<easy|intermediate|hard|n>][:distractors=<n>]
        [:starts=<drawn|fixed>][:seed=<n>]
    recall:rows=<n>:length=<words>:pairs=<n>[:keys=<n>][:values=<n>][:seed=<n>]
    passages:rows=<n>:length=<bytes>[:seed=<n>]:source=<stdlib, text:<glob>, ... as data.source>
    imdb:folder=<with train/{neg,pos} and test/{neg,pos}>       bytes; a tenth of train is the validation set
    cifar10:folder=<with train/<class> and test/<class>>        grey 32 x 32 images; a tenth of train is for validation
    listops:folder=<with basic_{train,val,test}.tsv>            the released rows of Long Range Arena
    pathfinder:folder=<with metadata/*.npy and imgs/>           its pictures, in order: 80 % train, 10 % dev, 10 % test
    aan:folder=<with new_aan_pairs.{train,eval,test}.tsv>       pairs of texts, bytes

Source and folder must come last, because they may contain colons. The config field that names the dataset decides the
split. A generated row is a function of only (seed, split, row number).
"""

import importlib
import re
from pathlib import Path
from typing import Any

from efficient_attention.data.arena.dataset_interface import ArenaDataset, DatasetOptions

LAST = re.compile(r'(?:^|:)(source|folder)=(.*)', re.DOTALL)
# Kind of dataset -> function that creates it from its options. A run imports only the module of its kind.
GENERATED = {
    'listops': 'listops.listops_dataset',
    'pathfinder': 'pathfinder.pathfinder_dataset',
    'recall': 'associative_recall.associative_recall_dataset',
    'passages': 'same_document_passages.passage_pairs_dataset',
}
# Kind of dataset -> class that reads it from a folder. The class takes the dataset's config text and the folder.
READ = {
    'imdb': 'file_datasets.ImdbReviews',
    'cifar10': 'file_datasets.Cifar10Images',
    'listops': 'file_datasets.ListOpsTables',
    'pathfinder': 'file_datasets.PathfinderImages',
    'aan': 'file_datasets.CitationPairs',
}


def open_arena_dataset(text: str, field: str) -> ArenaDataset:
    """Returns the dataset that a text such as 'listops:rows=2000:length=500-2000' describes; the module docstring
    lists all forms.

    Args:
        text: the text that describes the dataset.
        field: name of its config field, for messages.

    Raises:
        InputError: unknown kind or option, or a number out of range; the message names the field and the fault.
    """
    kind, _, rest = text.partition(':')
    last = LAST.search(rest)
    parts = [part.partition('=') for part in rest[: last and last.start()].strip(':').split(':') if part]
    values = {name: value for name, _, value in parts}
    options = DatasetOptions(text, field, values | ({last[1]: last[2]} if last else {}))
    if kind not in GENERATED | READ:
        raise options.option_error(f'known kinds of rows: {", ".join(GENERATED | READ)}')
    if len(values) < len(parts):
        raise options.option_error('an option is given twice')
    if kind in READ and ('folder' in options.left or kind not in GENERATED):
        found = import_member(READ[kind])(text, Path(options.required_text('folder')).expanduser())
    else:
        found = import_member(GENERATED[kind])(options)
    options.check_no_unknown_option()
    return found


def import_member(name: str) -> Any:
    """Returns a class or function of the package data/arena, given '<module>.<name>'; imports its module."""
    module, member = name.split('.')
    return getattr(importlib.import_module(f'efficient_attention.data.arena.{module}'), member)
