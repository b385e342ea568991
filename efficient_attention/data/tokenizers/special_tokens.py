"""Finds a tokenizer's special tokens, such as padding or mask, by their names in published vocabularies, and adds
missing ones."""

from tokenizers import AddedToken, Tokenizer, models, processors

ROLES = {  # role -> names of its token in published files; earlier names have priority
    'pad': ('[PAD]', '<pad>'),
    'unknown': ('[UNK]', '<unk>'),
    'cls': ('[CLS]', '<cls>', '<s>'),
    'sep': ('[SEP]', '<sep>', '</s>'),
    'mask': ('[MASK]', '<mask>'),
}
END_OF_TEXT = '<|endoftext|>'  # the only special token of GPT-2
# end-of-text tokens of language models: GPT-2 and Qwen, Llama 3, Gemma
TEXT_ENDS = (END_OF_TEXT, '<|end_of_text|>', '<eos>')
TEXT_STARTS = ('<|begin_of_text|>', '<bos>')  # start-of-text tokens of Llama 3 and Gemma
SENTINEL = '<extra_id_{}>'  # T5's token that replaces a removed span of text
SENTINELS = 100  # number of sentinels in T5's vocabulary
BERT_SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')


def with_special_tokens(tokenizer: Tokenizer, names: list[str]) -> Tokenizer:
    """Adds special tokens to a tokenizer; new names get the next ids, and rows become [CLS] text [SEP]. Returns the
    tokenizer."""
    # Except in WordPiece, the space in 'a [MASK]' would become a piece.
    is_spaced = not isinstance(tokenizer.model, models.WordPiece)
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=is_spaced and name in ROLES['mask']) for name in names]
    )
    roles = tokens_by_role(tokenizer)
    cls, sep = roles.get('cls'), roles.get('sep')
    if cls is not None and sep is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f'{cls} $A {sep}',
            pair=f'{cls} $A {sep} $B:1 {sep}:1',
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in (cls, sep)],
        )
    return tokenizer


def with_sentinels(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """Adds `count` sentinels after a tokenizer's pieces, in T5's order: <extra_id_0> has the last id. Returns the
    tokenizer."""
    names = [SENTINEL.format(number) for number in reversed(range(count))]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=True, rstrip=True) for name in names]
    )
    return tokenizer


def tokens_by_role(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns role ('pad', 'mask', ...) -> token, for each role of `ROLES` for which the tokenizer has a token.

    A checkpoint's author may have added a second name, such as '<sep>' to T5, whose texts end with '</s>'. Tokens of
    the tokenizer's template have priority, then names in the original vocabulary, then added names.
    """
    every, own, framing = (
        tokenizer.get_vocab(),
        tokenizer.get_vocab(with_added_tokens=False),
        template_tokens(tokenizer),
    )
    found = {role: [name for name in names if name in every] for role, names in ROLES.items()}
    return {
        role: min(names, key=lambda name: (name not in framing, name not in own))
        for role, names in found.items()
        if names
    }


def template_tokens(tokenizer: Tokenizer) -> set[str]:
    """Returns the tokens that the tokenizer's template adds around a text or between two texts."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return {*tokenizer.encode('').tokens, *tokenizer.encode('', '').tokens} & added


def structural_tokens(tokenizer: Tokenizer) -> set[str]:
    """Returns the tokens that represent no text: tokens with a role such as padding, tokens of the template, starts and
    ends of a text.

    If a role has a token, a second name of this role that a checkpoint's author added is not structural.
    """
    every, own = tokenizer.get_vocab(), tokenizer.get_vocab(with_added_tokens=False)
    named = {name for names in ROLES.values() for name in names if name in own}
    roles, framing = tokens_by_role(tokenizer), template_tokens(tokenizer)
    # If the tokenizer has its own end token, an added end-of-text token of another model family is an ordinary token.
    has_end = 'sep' in roles
    ends = {name for name in (*TEXT_ENDS, *TEXT_STARTS) if name in own or (name in every and not has_end)}
    return {*roles.values(), *framing, *named, *ends}


def author_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns token -> id for the tokens that a checkpoint's author added, without structural tokens such as [SEP]; a
    text is never split inside them."""
    structural = structural_tokens(tokenizer)
    added = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
    return {name: id for name, id in added.items() if name not in structural}
