"""Measures the perplexity of whole texts, and undoes the tokenization of published test sets."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from efficient_attention.data.sources.text_files import find_files, read_text
from efficient_attention.errors import InputError, advice_on_name
from efficient_attention.scoring.pairs import Scorer

BETWEEN = re.compile(r'(?<=\S) @([-,.])@ (?=\S)')  # WikiText marks a hyphen, comma or point inside a word or number
BEFORE_MARK = re.compile(r'(?<=\S) (?=(?:[,.;:!?%)\]]|\'s|\'t|\'re|\'ve|\'ll|\'d|n\'t)(?:\s|$))')
AFTER_BRACKET = re.compile(r'(?<=[(\[]) (?=\S)')
QUOTED = re.compile(r'(?<!\S)" ([^"\n]*?) "(?!\S)')


def undo_wikitext(line: str) -> str:
    """Returns a line of WikiText as ordinary text: hyphens joined, no space before a full stop or behind a bracket."""
    line = BETWEEN.sub(r'\1', line)
    line = QUOTED.sub(r'"\1"', line)
    return AFTER_BRACKET.sub('', BEFORE_MARK.sub('', line))


def redo_wikitext(line: str) -> str:
    """Returns ordinary text in the form of WikiText; the inverse of `undo_wikitext` for most lines."""
    line = re.sub(r'(?<=[(\[])(?=\S)', ' ', line)
    line = re.sub(r'(?<=[^\s@])(?=[,.;:!?%)\]](?:[\s,.;:!?%)\]"]|$))', ' ', line)
    line = re.sub(r'(?<=[\w>])(?=(?:\'s|\'re|\'ve|\'ll|\'d|n\'t)(?:\s|$))', ' ', line)
    line = re.sub(r'(?<!\S)"([^"\n]*?)"(?=\s|$)', r'" \1 "', line)
    line = re.sub(r'(?<=\d)([,.])(?=[\d<])', r' @\1@ ', line)
    return re.sub(r'(?<=[\w>])-(?=[\w<])', ' @-@ ', line)


def detokenize(text: str, name: str) -> tuple[str, int]:
    """Returns a text without the tokenization of a test set, and the number of characters in lines that stay.

    A line stays if its ordinary form cannot be turned back. So the change is invertible, and the probability of
    the ordinary text is the probability of the tokenized one (Radford et al. 2019, section 3.1).

    Raises:
        InputError: the name is unknown.
    """
    if name == 'none':
        return text, 0
    if name not in DETOKENIZERS:
        raise InputError(f'detokenizer is {name!r}; {advice_on_name(name, ("none", *DETOKENIZERS))}')
    undo, redo = DETOKENIZERS[name]
    lines, kept = [], 0
    for line in text.split('\n'):
        ordinary = undo(line)
        is_inverse = redo(ordinary) == line
        kept += 0 if is_inverse else len(line)
        lines.append(ordinary if is_inverse else line)
    return '\n'.join(lines), kept


# Name -> a function that makes a line ordinary text, and its inverse. 'none' changes nothing.
DETOKENIZERS: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
    'wikitext': (undo_wikitext, redo_wikitext)
}


def measure_texts(
    scorer: Scorer, files: str, *, detokenizer: str = 'none', stride: int = 0, limit: int = 0
) -> dict[str, Any]:
    """Returns the perplexity of text files, each one document, per token and per word, and bits per character and byte.

    Args:
        scorer: the model.
        files: paths or globs, comma-separated.
        detokenizer: 'none' or one of `DETOKENIZERS`. Words are counted in the files, at white space.
        stride: tokens by which the window moves; 0 = windows do not overlap.
        limit: only this many first characters of each file; 0 = all.

    Raises:
        InputError: a file is missing, empty or not text, or the detokenizer is unknown.
    """
    originals = [read_text(path)[: limit or None] for path in find_files(files)]
    for path, text in zip(find_files(files), originals, strict=True):
        if not text.strip():
            raise InputError(f'{path}: the file has no text')
    texts, left = zip(*(detokenize(text, detokenizer) for text in originals), strict=True)
    found = scorer.score_texts(list(texts), stride=stride)
    nats = -sum(one.log_prob for one in found)
    return {
        'texts': len(texts),
        'tokens': sum(one.tokens for one in found),
        'perplexity': safe_exp(nats / sum(one.tokens for one in found)),
        'word_perplexity': safe_exp(nats / count_words(originals)),
        'bits_per_character': nats / math.log(2) / sum(map(len, originals)),
        'bits_per_byte': nats / math.log(2) / sum(len(text.encode()) for text in originals),
        'unknown_tokens': sum(one.unknown_tokens for one in found),
        'characters_left_tokenized': sum(left) / sum(map(len, originals)),
    }


def count_words(texts: Sequence[str]) -> int:
    """Returns the number of words between white space in all texts."""
    return sum(len(text.split()) for text in texts)


def safe_exp(value: float) -> float:
    """Returns e to the power of a number; infinity instead of an error above the largest float."""
    return math.exp(value) if value < 709 else math.inf
