"""Tests that regular expressions of published tokenizers cut texts as their authors intend, in linear time."""

import time
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from efficient_attention.data.tokenizers.loading import FAMILIES, SAFE_PATTERNS

TEXT = "It's 12345 DON'T\n\n  HelloWorld!!\n"
CUT = {  # The matches of the regex package, which GPT's authors use.
    'GPT-2': ['It', "'s", ' 12345', ' DON', "'", 'T', '\n\n ', ' HelloWorld', '!!', '\n'],
    'GPT-4': ['It', "'s", ' ', '123', '45', ' DON', "'T", '\n\n', ' ', ' HelloWorld', '!!\n'],
    'GPT-4o': ["It's", ' ', '123', '45', " DON'T", '\n\n', ' ', ' Hello', 'World', '!!\n'],
    'Qwen': ['It', "'s", ' ', *'12345', ' DON', "'T", '\n\n', ' ', ' HelloWorld', '!!\n'],
}
LONG = 20_000
HARD = [' ' * LONG, ' ' * LONG + 'x', '\n' * LONG, ' \n' * LONG, 'a' * LONG, 'A' * LONG, '漢' * LONG, '1' * LONG]
HARD += ['!' * LONG, '\u0301' * LONG, "'" * LONG, '\t' * LONG + '\n', ('A' * 50 + '漢' * 50) * 200, "'S" * LONG]


def cut(pattern: str, text: str) -> list[str]:
    splitter: Any = pre_tokenizers.Split(Regex(pattern), 'isolated')
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize('family', CUT)
def test_texts_are_cut_as_the_family_does(family: str):
    for pattern in FAMILIES[family]:
        assert cut(pattern, TEXT) == CUT[family]


def test_every_pattern_ends_soon_and_loses_nothing():
    for pattern in SAFE_PATTERNS:
        for text in HARD:
            start = time.perf_counter()
            assert ''.join(cut(pattern, text)) == text
            assert time.perf_counter() - start < 5, pattern  # Linear time is 0.1 s; quadratic time would take hours.
