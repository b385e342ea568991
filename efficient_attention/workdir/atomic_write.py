"""Replaces a small file at once: whoever reads it, or is killed meanwhile, has the old or the new one."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file at once by one with `text`, in UTF-8; `<name>.tmp` beside it is used on the way.

    Raises:
        OSError: it cannot be written; the old file is then as it was.
    """
    temporary = path.with_suffix('.tmp')
    temporary.unlink(missing_ok=True)  # a link there would have what it leads to overwritten
    with temporary.open('x', encoding='utf-8') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # else a power cut after the rename may leave the new name with no content
    temporary.replace(path)
