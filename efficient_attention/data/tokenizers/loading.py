"""Tokenizers from users' files: vocab.txt, tokenizer.json, SentencePiece models, vocab.json with merges.txt."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.data.cache_manifest import one_line
from efficient_attention.data.sources.text_files import decode
from efficient_attention.data.tokenizers.byte_level import PAIR, byte_level
from efficient_attention.data.tokenizers.sentencepiece import read_sentencepiece
from efficient_attention.data.tokenizers.wordpiece import read_vocabulary, word_piece
from efficient_attention.errors import InputError

SAFE_PATTERNS = frozenset({' {2,}', r'\s+'})  # a stranger's regular expression may hang or crash the normalizer


def load_tokenizer(path: str | Path, *, lowercase: bool) -> Tokenizer:
    """The tokenizer in a `vocab.txt`, `tokenizer.json`, SentencePiece `*.model`, or `vocab.json` beside `merges.txt`.

    Args:
        path: what it is follows from its suffix.
        lowercase: lower-case and strip accents first, as BERT (vocab.txt) and ALBERT (*.model) do. A tokenizer.json
            holds its own normalisation, which is used as it is.

    Raises:
        InputError: no such file, unknown kind, or damaged; names the file and what is wrong in it.
    """
    path = Path(path)
    if path.name == PAIR[0]:
        return byte_level(path.parent)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f'tokenizer {path}: cannot be read ({error.strerror})') from None
    if path.suffix == '.txt':
        return word_piece(read_vocabulary(decode(data, str(path)), path), lowercase=lowercase)
    if path.suffix == '.json':
        return _load_json(decode(data, str(path)), path)
    if path.suffix == '.model':
        return read_sentencepiece(data, str(path), lowercase=lowercase)
    raise InputError(f'tokenizer {path}: known files: vocab.txt, tokenizer.json, vocab.json with merges.txt, *.model')


def _load_json(text: str, path: Path) -> Tokenizer:
    try:
        content = json.loads(text)
        _check_patterns(content.get('normalizer'), path)
        return Tokenizer.from_str(text)
    except InputError:
        raise
    except Exception as error:  # the Rust library raises bare Exception
        raise InputError(f'tokenizer {path}: not a tokenizer.json ({one_line(error)[:200]})') from None


def _check_patterns(part: Any, path: Path) -> None:
    if isinstance(part, dict):
        pattern = part.get('Regex')
        if pattern is not None and pattern not in SAFE_PATTERNS:
            raise InputError(f'tokenizer {path}: its normalizer has the regular expression {str(pattern)[:50]!r}')
        for inner in part.values():
            _check_patterns(inner, path)
    elif isinstance(part, list):
        for inner in part:
            _check_patterns(inner, path)
