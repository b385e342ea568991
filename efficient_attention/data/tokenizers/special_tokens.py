"""Special tokens of tokenizers, found by the names in published vocabularies."""

from tokenizers import AddedToken, Tokenizer, models, processors

ROLES = {  # role -> names of its token in published files; the first one has priority
    'pad': ('[PAD]', '<pad>'),
    'unknown': ('[UNK]', '<unk>'),
    'cls': ('[CLS]', '<cls>', '<s>'),
    'sep': ('[SEP]', '<sep>', '</s>'),
    'mask': ('[MASK]', '<mask>'),
}
END_OF_TEXT = '<|endoftext|>'  # GPT-2's only special token
TEXT_ENDS = (END_OF_TEXT, '<|end_of_text|>', '<eos>')  # of language models: GPT-2 and Qwen, Llama 3, Gemma
TEXT_STARTS = ('<|begin_of_text|>', '<bos>')  # Llama 3, Gemma
SENTINEL = '<extra_id_{}>'  # in T5, stands for a removed span
SENTINELS = 100  # number of T5's sentinels
BERT_SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')


def with_specials(tokenizer: Tokenizer, names: list[str]) -> Tokenizer:
    """Adds special tokens `names` (new names get the next ids) and the template [CLS] text [SEP]; returns the input."""
    is_spaced = not isinstance(tokenizer.model, models.WordPiece)  # otherwise the space in 'a [MASK]' becomes a piece
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=is_spaced and name in ROLES['mask']) for name in names]
    )
    roles = role_names(tokenizer)
    cls, sep = roles.get('cls'), roles.get('sep')
    if cls is not None and sep is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f'{cls} $A {sep}',
            pair=f'{cls} $A {sep} $B:1 {sep}:1',
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in (cls, sep)],
        )
    return tokenizer


def with_sentinels(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """Adds `count` sentinels after the pieces, in T5's order: <extra_id_0> has the last id; returns the tokenizer."""
    names = [SENTINEL.format(number) for number in reversed(range(count))]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False, lstrip=True, rstrip=True) for name in names]
    )
    return tokenizer


def role_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns role -> token, for each role of `ROLES` that the tokenizer has.

    A checkpoint's author may have added a second name, such as '<sep>' to T5, whose texts end with '</s>'. Tokens of
    the tokenizer's template have priority, then names in the original vocabulary, then added names.
    """
    every, own, framing = tokenizer.get_vocab(), tokenizer.get_vocab(with_added_tokens=False), framing_tokens(tokenizer)
    found = {role: [name for name in names if name in every] for role, names in ROLES.items()}
    return {
        role: min(names, key=lambda name: (name not in framing, name not in own))
        for role, names in found.items()
        if names
    }


def framing_tokens(tokenizer: Tokenizer) -> set[str]:
    """Returns the tokens that the tokenizer's template adds around a text or between two texts."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return {*tokenizer.encode('').tokens, *tokenizer.encode('', '').tokens} & added


def structural_tokens(tokenizer: Tokenizer) -> set[str]:
    """Returns the tokens that stand for no text: tokens of roles and of the template, starts and ends of a text.

    If a role has a token, a second name of this role that a checkpoint's author added is not structural.
    """
    every, own = tokenizer.get_vocab(), tokenizer.get_vocab(with_added_tokens=False)
    named = {name for names in ROLES.values() for name in names if name in own}
    roles, framing = role_names(tokenizer), framing_tokens(tokenizer)
    has_end = 'sep' in roles  # then another family's end of text is a token that an author added
    ends = {name for name in (*TEXT_ENDS, *TEXT_STARTS) if name in own or (name in every and not has_end)}
    return {*roles.values(), *framing, *named, *ends}


def author_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns added tokens that are not structural, with their ids; texts never split them."""
    structural = structural_tokens(tokenizer)
    added = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
    return {name: id for name, id in added.items() if name not in structural}
