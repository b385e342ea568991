"""How texts are read: added tokens stay whole, and a structural token that a user types is text.

The one rule for encoders, pairs, language models and corpora (docs/checkpoints.md). Long texts are cut at blank lines,
where no sentence and no word goes on.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterator
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.data.tokenizers.special_tokens import structural_tokens

SECTION = 2**17  # characters; a longer document is cut at the next blank line, so that no task or record grows with it
BLANK_LINE = re.compile(r'\n[ \t]*\n')


def reader_of(tokenizer: Tokenizer, symbols: Collection[str] = ()) -> Tokenizer:
    """A copy that encodes texts: '[SEP]' or '</s>' in a text is text, and other added tokens stay whole.

    In the copy the structural tokens have names that no text holds. The library's `encode_special_tokens` would split
    all special tokens, and Unigram and WordLevel models would find '</s>' among their pieces all the same.

    Args:
        tokenizer: any; it is not changed. Ids, offsets and the template are the same in the copy.
        symbols: structural tokens that a user may type, such as the mask that a model fills.
    """
    content = json.loads(tokenizer.to_str())
    model, hidden = content['model'], structural_tokens(tokenizer) - set(symbols)
    mark = secrets.token_hex(16)  # anew for each reader: no text can hold it by intent or by chance
    unknown = model.get('unk_token')  # keeps its name: typed in a text, it gives the unknown id anyway
    names = {name: f'{mark}{name}{mark}' for name in hidden if name != unknown or name not in model['vocab']}
    content['added_tokens'] = [
        token | {'content': names.get(token['content'], token['content'])}
        for token in content['added_tokens']
        if token['content'] in names or token['content'] not in hidden
    ]
    model['vocab'] = _renamed(model['vocab'], names)
    if 'merges' in model:
        model['merges'] = [[left, right] for left, right in model['merges'] if not {left, right, left + right} & hidden]
    return Tokenizer.from_str(json.dumps(content))


def _renamed(vocabulary: Any, names: dict[str, str]) -> Any:
    if isinstance(vocabulary, dict):
        return {names.get(piece, piece): id for piece, id in vocabulary.items()}
    return [[names.get(piece, piece), score] for piece, score in vocabulary]


def cut_at_blank_lines(text: str, section: int = SECTION) -> Iterator[str]:
    """The text in sections of `section` characters or a little more, cut at blank lines; together they are the text."""
    start = 0
    while blank := BLANK_LINE.search(text, start + section):
        yield text[start : blank.end()]
        start = blank.end()
    yield text[start:]
