"""Parses JSON from files of unknown origin; every fault of a file becomes a ValueError with a plain message."""

import json
from pathlib import Path
from typing import Any

FAULTS = {  # message of Python's JSON parser -> the fault in plain words
    'Expecting value': 'a value is missing',
    "Expecting ',' delimiter": 'a comma or a closing bracket is missing',
    "Expecting ':' delimiter": 'a colon is missing',
    'Expecting property name enclosed in double quotes': 'a name in double quotes is missing',
    'Illegal trailing comma': 'a comma stands before a closing bracket',
    'Extra data': 'text stands behind the end',
    'Unterminated string': 'a text has no closing quote',
    'Invalid control character': 'a text holds a line end or another control character',
    'Invalid \\': 'a text holds a backslash with an unknown letter behind it',
}


def read_json_file(path: Path) -> Any:
    """Returns the parsed content of a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: as `parse_json`, or the path is a device or a pipe, which may never end.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError('not a file')
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Returns the parsed content of JSON text; raises ValueError with a plain message if the text is invalid.

    Raises:
        ValueError: the text is no JSON, is not UTF-8, is nested too deeply for Python, or has a number of thousands of
            digits. The message names the fault and its position.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        fault = next((words for said, words in FAULTS.items() if error.msg.startswith(said)), error.msg)
        line = f'line {error.lineno}, ' if '\n' in error.doc.strip() else ''
        raise ValueError(f'{fault} at {line}column {error.colno}') from None
    except UnicodeDecodeError as error:
        raise ValueError(f'byte 0x{error.object[error.start]:02x} at offset {error.start} is not UTF-8') from None
    except RecursionError:
        raise ValueError('nested too deeply') from None
    except ValueError:  # Python raises for whole numbers of more than 4,300 digits
        raise ValueError('a number has too many digits') from None
