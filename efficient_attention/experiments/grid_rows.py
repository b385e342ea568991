"""Which rows a cell of a grid reads, whatever they lie in: an identity of the content of each split."""

import re
from collections.abc import Mapping
from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.nested_dicts import from_dict
from efficient_attention.data.arena.arena_row import SPLITS
from efficient_attention.data.examples.labelled_text import ARENA, arena_set
from efficient_attention.data.preparation.cache_folder import json_sha256
from efficient_attention.errors import InputError
from efficient_attention.tasks.fine_tuning import content_digests

PLACE = re.compile(r':(folder|source)=.*')  # where a set of rows lies
DIGITS = 16  # of an identity; as many as name a folder of rows


class RowIdentities:
    """Those of cells, each computed once: a digest of tens of thousands of files takes seconds."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}

    def of(self, examples: Mapping[str, Any]) -> dict[str, str]:
        """{split: identity} of a cell's examples; {} where they cannot be read, which its training then says."""
        fields = {name: value for name, value in examples.items() if value is not None}
        key = json_sha256(fields)
        if key not in self.known:
            try:
                config = from_dict(fields, ExamplesConfig, 'examples.')
                self.known[key] = {split: row_identity(config, split) for split in SPLITS if fields.get(split)}
            except InputError:
                self.known[key] = {}
        return self.known[key]


def row_identity(config: ExamplesConfig, split: str) -> str:
    """What the rows of a split are, the same on another machine where they lie elsewhere.

    Raises:
        InputError: they are missing.
    """
    if config.format != ARENA:
        return json_sha256(content_digests(config, split))[:DIGITS]
    rows = arena_set(config, split)
    identity = {'set': PLACE.sub('', rows.text), 'rules': rows.rules, 'split': split}
    return json_sha256(identity | {'digest': rows.digest(split), 'classes': rows.classes(split)})[:DIGITS]
