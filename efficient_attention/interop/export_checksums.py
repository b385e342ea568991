"""Writes SHA-256 checksums of all files of an exported model, and verifies them when the model is opened.

The format is the same as a checkpoint's (`workdir/checksums.py`); `sha256sum --check` reads it too. Folders without
checksums, such as other people's, are read unchecked. After the export, files that this project never reads may be
added (README.md, .gitattributes). Files that would be read, such as another tokenizer or an index of shards, may not.
"""

from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.interop.config_import import CONFIG
from efficient_attention.interop.safetensors_files import INDEX
from efficient_attention.interop.tokenizer_files import CARRIED, PIECES
from efficient_attention.workdir.checksums import find_checksum_mismatch, has_any_checksums, write_checksums

LABEL = 'exported model'
READ_NAMES = (CONFIG, INDEX, *CARRIED)
READ_KINDS = ('*.safetensors', PIECES)
ADVICE = 'delete the folder and export it again, or, if the change is intended, remove its checksums (seal-*.sha256)'


def write_export_checksums(folder: Path) -> None:
    """Writes the checksums of a finished export folder; raises OSError."""
    write_checksums(folder, LABEL)


def verify_export_checksums(folder: Path) -> None:
    """Raises InputError if a file of an exported model differs from its checksum; the message names the first such
    file.
    """
    if has_any_checksums(folder) and (found := find_checksum_mismatch(folder, LABEL, may_be_added=is_unchecked_file)):
        raise InputError(f'{folder} is damaged: {found}; {ADVICE}')


def is_unchecked_file(name: str) -> bool:
    """Returns whether users may add a file of this name to an export, because this project never reads it."""
    return name not in READ_NAMES and not any(Path(name).match(kind) for kind in READ_KINDS)
