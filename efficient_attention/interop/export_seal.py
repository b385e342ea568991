"""The seal of an exported model: the SHA-256 of its files, written at the export and compared when it is opened.

It is the seal of a checkpoint (`workdir/seal.py`), which `sha256sum --check` reads too. A folder without one, as others
make them, is read as it is. Files that nobody here reads may be added to a sealed folder (README.md, .gitattributes);
a file that would be read, such as another tokenizer or an index of shards, may not.
"""

from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.interop.config_in import CONFIG
from efficient_attention.interop.safetensors_files import INDEX
from efficient_attention.interop.tokenizer_files import CARRIED, PIECES
from efficient_attention.workdir.seal import damage, has_seal, write_seal

LABEL = 'exported model'
READ_NAMES = (CONFIG, INDEX, *CARRIED)
READ_KINDS = ('*.safetensors', PIECES)
ADVICE = 'delete the folder and export it again, or, if the change is meant, remove its seal (seal-*.sha256)'


def seal_export(folder: Path) -> None:
    """Writes the seal of a folder in which nothing changes any more; raises OSError."""
    write_seal(folder, LABEL)


def check_export(folder: Path) -> None:
    """Raises InputError, which names the first file, where a folder is sealed and not what was written."""
    if has_seal(folder) and (found := damage(folder, LABEL, may_be_added=may_be_added)):
        raise InputError(f'{folder} is damaged: {found}; {ADVICE}')


def may_be_added(name: str) -> bool:
    """Whether a file of this name in the folder is one that is not read."""
    return name not in READ_NAMES and not any(Path(name).match(kind) for kind in READ_KINDS)
