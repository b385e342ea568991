"""Parses JSON from files of unknown origin, with one kind of error whatever is wrong with them."""

import json
from pathlib import Path
from typing import Any


def read_json_file(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: as `parse_json`, or it is a device or a pipe, which may have no end.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError('not a file')
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, not UTF-8, or nested more deeply than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('nested too deeply') from None
