"""Loads tokenizers from users' files: vocab.txt, tokenizer.json, SentencePiece models, or vocab.json with
merges.txt."""

import json
import math
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.config.json_parsing import parse_json
from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.sources.text_files import decode_utf8
from efficient_attention.data.tokenizers.added_tokens import (
    SETTINGS,
    add_author_tokens,
    added_tokens,
    read_tokenizer_settings,
)
from efficient_attention.data.tokenizers.byte_level import PAIR, load_byte_level_bpe
from efficient_attention.data.tokenizers.fixed_vocabulary import fixed_tokenizer, is_fixed_vocabulary
from efficient_attention.data.tokenizers.marian import is_marian
from efficient_attention.data.tokenizers.sentencepiece import read_sentencepiece
from efficient_attention.data.tokenizers.special_tokens import SENTINELS
from efficient_attention.data.tokenizers.training import RUNS
from efficient_attention.data.tokenizers.wordpiece import read_vocabulary, wordpiece_tokenizer
from efficient_attention.errors import InputError

# A tokenizer.json may contain only regular expressions of published tokenizer families; these end on any text.
# A regular expression of unknown origin might run for ever, or crash the process.
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SIGNS = r' ?[^\s\p{L}\p{N}]+[\r\n]*'
SPACES = r'\s*[\r\n]+|\s+(?!\S)|\s+'
CAPITALS, SMALL = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]', r'[\p{Ll}\p{Lm}\p{Lo}\p{M}]'
BEFORE = r'[^\r\n\p{L}\p{N}]?'  # matches a space or sign that is joined to the letters after it
FAMILIES = {
    'GPT-2': (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ),
    'GPT-4': (
        # Llama 3 uses the same regular expression as GPT-4.
        '|'.join([ENDINGS, BEFORE + r'\p{L}+', r'\p{N}{1,3}', SIGNS, SPACES]),
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r'\s*[\r\n]|\s+(?!\S)|\s+',
    ),
    'GPT-4o': (
        f'{BEFORE}{CAPITALS}*{SMALL}+{ENDINGS}?|{BEFORE}{CAPITALS}+{SMALL}*{ENDINGS}?|'
        r'\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|' + SPACES,
    ),
    'Llama 3': (),  # GPT-4's
    'Qwen': (
        '|'.join([ENDINGS, BEFORE + r'\p{L}+', r'\p{N}', SIGNS, SPACES]),
        '|'.join([ENDINGS, BEFORE + r'[\p{L}\p{M}]+', r'\p{N}', r' ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*', SPACES]),
    ),
}
# Tokenizers that are trained here, or converted from SentencePiece models, contain these regular expressions.
OWN = (' {2,}', r'\s+', RUNS)
SAFE_PATTERNS = frozenset({*OWN, *(pattern for patterns in FAMILIES.values() for pattern in patterns)})

UNKNOWN = 'a \U000e0100'  # test text: a word, and a character that no vocabulary contains
STEPS = ('normalizer', 'pre_tokenizer', 'decoder')  # parts of a tokenizer.json that may contain regular expressions
MOST_SENTINELS = 10_000
MOST_GROWTH = 1000  # maximum number of characters that a normalizer may make from one character


def load_tokenizer(path: str | Path, *, lowercase: bool, is_text_to_text: bool = False) -> Tokenizer:
    """Loads a tokenizer from a vocab.txt, a tokenizer.json, a SentencePiece *.model, or a vocab.json with merges.txt.

    Tokens that other files in the folder add (`added_tokens`) are included.

    Args:
        path: the suffix determines the kind; or a name such as 'fixed:bytes' (fixed_vocabulary.py).
        lowercase: lower-case and strip accents first, as BERT (vocab.txt) and ALBERT (*.model) do. A tokenizer.json
            has its normalisation inside, which is not changed.
        is_text_to_text: a SentencePiece model without a begin token, such as T5's, gets T5's sentinels instead of an
            encoder's special tokens.

    Raises:
        InputError: there is no such file, or it is of unknown kind or damaged; the message names the file and fault.
    """
    path = Path(path)
    if is_fixed_vocabulary(path):
        return fixed_tokenizer(str(path))
    if is_marian(path):
        raise InputError(f'tokenizer {path}: models with two SentencePiece files can only translate, not be trained')
    if path.exists() and not path.is_file():  # Reading a device or a pipe might never end.
        raise InputError(f'tokenizer {path}: not a file')
    try:
        data = path.read_bytes()
    except OSError as error:
        where = '' if path.is_absolute() else f'; the path is relative to {Path.cwd()}'
        raise InputError(f'tokenizer {path}: cannot be read ({error.strerror}{where})') from None
    added = added_tokens(path.parent)
    if path.name == PAIR[0]:
        return add_author_tokens(load_byte_level_bpe(path.parent), added)
    if path.suffix == '.txt':
        return add_author_tokens(
            wordpiece_tokenizer(read_vocabulary(decode_utf8(data, str(path)), path), lowercase=lowercase), added
        )
    if path.suffix == '.json':
        return add_author_tokens(_load_json(decode_utf8(data, str(path)), path), added)
    if path.suffix == '.model':
        options = {'lowercase': lowercase, 'is_text_to_text': is_text_to_text}
        return read_sentencepiece(data, str(path), **options, added=added, sentinels=read_sentinel_count(path))
    raise InputError(f'tokenizer {path}: known files: vocab.txt, tokenizer.json, vocab.json with merges.txt, *.model')


def read_sentinel_count(path: Path) -> int:
    """Returns how many T5 sentinels follow a model's pieces, from its tokenizer_config.json (0 for mT5)."""
    count = read_tokenizer_settings(path.parent).get('extra_ids', SENTINELS)
    if type(count) is not int or not 0 <= count <= MOST_SENTINELS:
        raise InputError(
            f'{path.parent / SETTINGS}: extra_ids is {count!r}; it must be a whole number from 0 to {MOST_SENTINELS}'
        )
    return count


def _load_json(text: str, path: Path) -> Tokenizer:
    try:
        content = parse_json(text)
        for step in STEPS:
            _check_regular_expressions(content.get(step), step, path)
        if _max_normalizer_growth(content.get('normalizer')) > MOST_GROWTH:
            raise InputError(f'tokenizer {path}: its normalizer makes more than {MOST_GROWTH} characters from one')
        # The library gets the checked content, because it might parse the original text differently.
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.no_truncation()  # Callers cut and pad texts themselves, so the settings of the file are switched off.
        tokenizer.no_padding()
        # This call raises an error if the unknown piece, or another piece that the settings name, does not exist.
        tokenizer.encode(UNKNOWN)
        return tokenizer
    except InputError:
        raise
    except Exception as error:  # The Rust library raises a plain Exception.
        raise InputError(f'tokenizer {path}: not a tokenizer.json ({one_line(error)[:200]})') from None


def _check_regular_expressions(part: Any, step: str, path: Path) -> None:
    if isinstance(part, dict):
        pattern = part.get('Regex')
        if pattern is not None and pattern not in SAFE_PATTERNS:
            raise InputError(
                f'tokenizer {path}: its {step} has the regular expression {str(pattern)[:50]!r}, which may run for '
                f'ever on some text; known are those of {", ".join(FAMILIES)}'
            )
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _check_regular_expressions(inner, step, path)


def _max_normalizer_growth(part: Any) -> int:
    """Returns the maximum number of characters that a normalizer's replacements can make from one character."""
    if isinstance(part, dict):
        longest = max((len(part.get(name) or '') for name in ('content', 'prepend')), default=0)
        return max(1, longest) * math.prod(map(_max_normalizer_growth, part.values()))
    return math.prod(map(_max_normalizer_growth, part)) if isinstance(part, list) else 1
