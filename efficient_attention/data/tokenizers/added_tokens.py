"""Finds the tokens that a checkpoint's author added to the tokenizer's vocabulary, in JSON files next to the
vocabulary.

Older layouts have a vocabulary (vocab.txt, spiece.model, vocab.json with merges.txt). They list added tokens in
`added_tokens.json`, under `added_tokens_decoder` of `tokenizer_config.json`, or in a list of additional special tokens.
"""

import dataclasses
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError

SETTINGS, ADDED, SPECIAL_MAP = 'tokenizer_config.json', 'added_tokens.json', 'special_tokens_map.json'
DECODER = 'added_tokens_decoder'  # key of tokenizer_config.json; its value is {id: token}
# keys of tokenizer_config.json or special_tokens_map.json; their values are lists of tokens
FURTHER = ('additional_special_tokens', 'extra_special_tokens')
FLAGS = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')


@dataclasses.dataclass(frozen=True)
class AddedTokenEntry:
    """A token that a checkpoint's author added to the vocabulary, its id (None = the next free id), and the file that
    lists it."""

    token: AddedToken
    id: int | None
    where: str


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Returns the content of tokenizer_config.json; {} if there is no such file."""
    return read_json_object(folder / SETTINGS)


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        values = read_json_file(path)
    except ValueError as error:
        raise InputError(f'{path}: not JSON ({error})') from None
    if not isinstance(values, dict):
        raise InputError(f'{path}: no JSON object')
    return values


def added_tokens(folder: Path) -> list[AddedTokenEntry]:
    """Returns the tokens that a checkpoint's author lists in the files of a folder: first tokens with an id, sorted by
    id, then special tokens without an id, in the order of the files.

    Raises:
        InputError: a file is invalid, or two files give a token different ids; the message names the file.
    """
    settings, mapping = read_tokenizer_settings(folder), read_json_object(folder / SPECIAL_MAP)
    further = [
        _parse_added_token(token, None, folder / name, is_special=True)
        for name, values in ((SETTINGS, settings), (SPECIAL_MAP, mapping))
        for key in FURTHER
        for token in _token_list(values.get(key), folder / name, key)
    ]
    special = {one.token.content for one in further} | set(map(_token_text, [*settings.values(), *mapping.values()]))
    numbered = [_parse_added_token(token, id, folder / SETTINGS) for id, token in _numbered_tokens(settings, folder)]
    for token, id in read_json_object(folder / ADDED).items():
        numbered.append(_parse_added_token(token, id, folder / ADDED, is_special=token in special))
    found: dict[str, AddedTokenEntry] = {}
    for one in sorted(numbered, key=lambda one: one.id or 0) + further:
        first = found.setdefault(one.token.content, one)
        if one.id is not None and first.id != one.id:
            raise InputError(f'{one.where}: {one.token.content!r} has the id {one.id}, and {first.id} in {first.where}')
    return list(found.values())


def add_author_tokens(tokenizer: Tokenizer, added: list[AddedTokenEntry]) -> Tokenizer:
    """Adds the tokens of a checkpoint's author to a tokenizer, which then never splits these tokens in a text. New
    tokens must have the next free ids. Returns the tokenizer.

    Raises:
        InputError: a token has another id than expected; the message names the file.
    """
    size = tokenizer.get_vocab_size()
    for one in added:
        known, name = tokenizer.token_to_id(one.token.content), one.token.content
        if known is not None and one.id not in (None, known):
            raise InputError(f'{one.where}: {name!r} has the id {one.id}, and {known} in the vocabulary')
        if known is None and one.id not in (None, size):
            raise InputError(f'{one.where}: {name!r} has the id {one.id}; the next free id of the vocabulary is {size}')
        size += known is None
    tokenizer.add_tokens([one.token for one in added])
    return tokenizer


def _numbered_tokens(settings: dict[str, Any], folder: Path) -> list[tuple[Any, Any]]:
    decoder = settings.get(DECODER) or {}
    if not isinstance(decoder, dict):
        raise InputError(f'{folder / SETTINGS}: {DECODER} is no object of ids and tokens')
    return [(int(id) if id.isdecimal() else id, token) for id, token in decoder.items()]


def _token_list(value: Any, path: Path, key: str) -> list[Any]:
    tokens = list(value.values()) if isinstance(value, dict) else value or []
    if not isinstance(tokens, list):
        raise InputError(f'{path}: {key} is no list of tokens')
    return tokens


def _token_text(value: Any) -> str:
    """Returns the text of a token that is given as a string or as an object; '' for any other value."""
    text = value.get('content') if isinstance(value, dict) else value
    return text if isinstance(text, str) else ''


def _parse_added_token(token: Any, id: Any, path: Path, *, is_special: bool = False) -> AddedTokenEntry:
    name = _token_text(token)
    if not name:
        raise InputError(f'{path}: an added token without text')
    if id is not None and (not isinstance(id, int) or isinstance(id, bool) or id < 0):
        raise InputError(f'{path}: {name!r} has the id {id!r}, which is no whole number from 0')
    flags: dict[str, bool] = {'special': is_special, 'normalized': not is_special}
    if isinstance(token, dict):
        flags |= {flag: bool(token[flag]) for flag in FLAGS if flag in token}
    return AddedTokenEntry(AddedToken(name, **flags), id, str(path))
