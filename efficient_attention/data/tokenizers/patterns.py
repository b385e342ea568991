"""The regular expressions that a tokenizer.json may have: those of published families, which end on any text.

A stranger's regular expression may take for ever, or end the process.
"""

from efficient_attention.data.tokenizers.training import RUNS

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SIGNS = r' ?[^\s\p{L}\p{N}]+[\r\n]*'
SPACES = r'\s*[\r\n]+|\s+(?!\S)|\s+'
CAPITALS, SMALL = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]', r'[\p{Ll}\p{Lm}\p{Lo}\p{M}]'
BEFORE = r'[^\r\n\p{L}\p{N}]?'  # a space or sign that goes with the letters behind it
FAMILIES = {
    'GPT-2': (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ),
    'GPT-4': (
        '|'.join([ENDINGS, BEFORE + r'\p{L}+', r'\p{N}{1,3}', SIGNS, SPACES]),  # Llama 3's as well
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
OWN = (' {2,}', r'\s+', RUNS)  # of tokenizers that are made here, or of SentencePiece models
SAFE_PATTERNS = frozenset({*OWN, *(pattern for patterns in FAMILIES.values() for pattern in patterns)})
