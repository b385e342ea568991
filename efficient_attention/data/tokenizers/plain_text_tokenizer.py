"""Makes tokenizers that read user texts safely: a typed '[SEP]' is plain text, and tokens that a checkpoint's author
added stay whole.

Encoders, pairs, language models and corpora all follow this rule (docs/checkpoints.md). Long texts are cut at blank
lines, where no sentence and no word continues.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterator
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.data.tokenizers.special_tokens import structural_tokens

# Documents with more characters are cut at the next blank line, so that worker tasks and stored records stay small.
SECTION = 2**17
BLANK_LINE = re.compile(r'\n[ \t]*\n')


def make_plain_text_tokenizer(tokenizer: Tokenizer, symbols: Collection[str] = ()) -> Tokenizer:
    """Returns a copy of a tokenizer for user texts: a typed '[SEP]' or '</s>' is plain text, and other added tokens
    stay whole.

    In the copy, structural tokens have names that no text contains. The library's `encode_special_tokens` would split
    all special tokens, and Unigram and WordLevel models would still find '</s>' among their pieces.

    Args:
        tokenizer: any tokenizer; it is not changed. The copy has the same ids, offsets and template.
        symbols: structural tokens that a user may type, such as the mask that a model fills.
    """
    content = json.loads(tokenizer.to_str())
    model, hidden = content['model'], structural_tokens(tokenizer) - set(symbols)
    mark = secrets.token_hex(16)  # Random characters around a token's name ensure that no text contains the name.
    # The unknown token keeps its name, because in a text it gives the unknown id anyway.
    unknown = model.get('unk_token')
    names = {name: f'{mark}{name}{mark}' for name in hidden if name != unknown or name not in model['vocab']}
    content['added_tokens'] = [
        token | {'content': names.get(token['content'], token['content'])}
        for token in content['added_tokens']
        if token['content'] in names or token['content'] not in hidden
    ]
    model['vocab'] = _rename_pieces(model['vocab'], names)
    if 'merges' in model:
        model['merges'] = [[left, right] for left, right in model['merges'] if not {left, right, left + right} & hidden]
    return Tokenizer.from_str(json.dumps(content))


def _rename_pieces(vocabulary: Any, names: dict[str, str]) -> Any:
    if isinstance(vocabulary, dict):
        return {names.get(piece, piece): id for piece, id in vocabulary.items()}
    return [[names.get(piece, piece), score] for piece, score in vocabulary]


def cut_at_blank_lines(text: str, section: int = SECTION) -> Iterator[str]:
    """Yields sections of at least `section` characters, cut at blank lines; joined, the sections are the text."""
    start = 0
    while blank := BLANK_LINE.search(text, start + section):
        yield text[start : blank.end()]
        start = blank.end()
    yield text[start:]
