"""Sets of rows of long-range tasks, by a short text: 'listops:rows=2000:length=500-2000:seed=0' and the like.

    listops:rows=<n>:length=<shortest>-<longest>[:seed=<n>]     both lengths excluded, as Long Range Arena draws them
    pathfinder:rows=<n>:size=<16|20|32|64|128|256>[:bars=<easy|intermediate|hard|n>][:distractors=<n>]
        [:starts=<drawn|fixed>][:seed=<n>]
    recall:rows=<n>:length=<words>:pairs=<n>[:keys=<n>][:values=<n>][:seed=<n>]
    passages:rows=<n>:length=<bytes>[:seed=<n>]:source=<stdlib, text:<glob>, ... as data.source>
    imdb:folder=<with train/{neg,pos} and test/{neg,pos}>       bytes; a tenth of train validates
    cifar10:folder=<with train/<class> and test/<class>>        grey 32 x 32 images; a tenth of train validates
    listops:folder=<with basic_{train,val,test}.tsv>            the released rows of Long Range Arena
    pathfinder:folder=<with metadata/*.npy and imgs/>           its pictures; 80, 10, 10 % of them in their order
    aan:folder=<with new_aan_pairs.{train,eval,test}.tsv>       pairs of texts, bytes

Source and folder stand at the end: they may have colons. The split is that of the config's field. A generated row is a
function of (seed, split, its number) alone.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from efficient_attention.data.arena.arena_row import ArenaSet, SetOptions

LAST = re.compile(r'(?:^|:)(source|folder)=(.*)', re.DOTALL)
# What makes the set of each kind from its options. A run loads only the module of its own kind.
GENERATED = {
    'listops': 'listops.listops_set',
    'pathfinder': 'pathfinder.pathfinder_set',
    'recall': 'recall.recall_set',
    'passages': 'passages.passages_set',
}
# The class of each kind that is read from a folder, by the set's text and the folder.
READ = {
    'imdb': 'file_sets.Reviews',
    'cifar10': 'file_sets.Images',
    'listops': 'file_sets.Tables',
    'pathfinder': 'file_sets.Pictures',
    'aan': 'file_sets.CitationPairs',
}


def open_set(text: str, field: str) -> ArenaSet:
    """The set of a short text, as above.

    Args:
        text: of a config's field.
        field: its name, for messages.

    Raises:
        InputError: unknown kind or option, or a number out of range; names the field and what is wrong.
    """
    kind, _, rest = text.partition(':')
    last = LAST.search(rest)
    parts = [part.partition('=') for part in rest[: last and last.start()].strip(':').split(':') if part]
    values = {name: value for name, _, value in parts}
    options = SetOptions(text, field, values | ({last[1]: last[2]} if last else {}))
    if kind not in GENERATED | READ:
        raise options.fault(f'known kinds of rows: {", ".join(GENERATED | READ)}')
    if len(values) < len(parts):
        raise options.fault('an option comes twice')
    if kind in READ and ('folder' in options.left or kind not in GENERATED):
        found = loaded(READ[kind])(text, Path(options.word('folder')).expanduser())
    else:
        found = loaded(GENERATED[kind])(options)
    options.end()
    return found


def loaded(name: str) -> Any:
    """A class or function of this folder by its module and name."""
    module, member = name.split('.')
    return getattr(importlib.import_module(f'efficient_attention.data.arena.{module}'), member)
