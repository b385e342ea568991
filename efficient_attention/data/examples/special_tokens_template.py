"""Adds a tokenizer's special tokens to one or two texts that are already token ids."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.errors import InputError

NO_TYPE = np.zeros((), np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class SpecialTokensTemplate:
    """The special tokens around one or two texts; builds the same rows as `TextEncoder.row`, but from token ids instead
    of encodings.

    Attributes:
        fixed: for one text the special tokens before and after it; for two, before, between and after them.
        fixed_types: token types of the special tokens.
        text_types: token type of each text.
    """

    fixed: tuple[tuple[int, ...], ...]
    fixed_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @property
    def special_token_count(self) -> int:
        """Returns the number of special tokens in a row."""
        return sum(map(len, self.fixed))

    @property
    def first_text_start(self) -> int:
        """Returns the position in the row of the first text's first token."""
        return len(self.fixed[0])

    def second_text_start(self, first_length: int) -> int:
        """Returns the position in the row of the second text's first token, if the first text has `first_length`
        tokens."""
        return self.first_text_start + first_length + len(self.fixed[1])

    def row(self, *texts: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """Returns the row of one or two texts with special tokens: 'tokens' and 'token_types', each int32 [l].

        Where the template adds nothing to a single array of ids, `tokens` is this array itself.
        """
        if (
            not self.special_token_count
            and isinstance(texts[0], np.ndarray)
            and len(texts) == 1
            and not any(self.text_types)
        ):
            return {'tokens': texts[0], 'token_types': np.broadcast_to(NO_TYPE, texts[0].shape)}
        tokens: list[Sequence[int] | np.ndarray] = [self.fixed[0]]
        types: list[Sequence[int] | np.ndarray] = [self.fixed_types[0]]
        for index, ids in enumerate(texts):
            tokens += [ids, self.fixed[index + 1]]
            types += [np.full(len(ids), self.text_types[index]), self.fixed_types[index + 1]]
        row_l = np.concatenate([np.asarray(part, np.int32) for part in tokens])
        types_l = np.concatenate([np.asarray(part, np.int32) for part in types])
        return {'tokens': row_l, 'token_types': broadcast_zero_token_types(types_l)}


def special_tokens_template_of(encoder: TextEncoder, *, is_pair: bool) -> SpecialTokensTemplate:
    """Finds the special tokens that a tokenizer adds, by encoding one letter or a pair of letters.

    Raises:
        InputError: the tokenizer gives no token for a letter.
    """
    letter = encoder.encode(['a'])[0]
    if not letter.ids:
        raise InputError('the tokenizer has no token for the letter a')
    row = encoder.row(letter, letter) if is_pair else encoder.row(letter)
    fixed: list[list[int]] = [[]]
    fixed_types: list[list[int]] = [[]]
    text_types: list[int] = []
    # `seen` counts the text tokens so far. `sequence_ids` cannot tell texts apart: it is None for a pair's first text.
    seen = 0
    for id, kind, is_special in zip(row.ids, row.type_ids, row.special_tokens_mask, strict=True):
        if is_special:
            fixed[-1].append(id)
            fixed_types[-1].append(kind)
            continue
        if seen % len(letter.ids) == 0:  # The current token is the first token of a text.
            text_types.append(kind)
            fixed.append([])
            fixed_types.append([])
        seen += 1
    return SpecialTokensTemplate(tuple(map(tuple, fixed)), tuple(map(tuple, fixed_types)), tuple(text_types))


def pad_and_stack_choices(rows: Sequence[dict[str, np.ndarray]], pad: int) -> dict[str, np.ndarray]:
    """Stacks the rows of a question's choices to one feature: padded 'tokens' and 'token_types' [choices, tokens], and
    'lengths' [choices]."""
    lengths = np.array([len(row['tokens']) for row in rows], np.int32)
    joined = {'lengths': lengths}
    for name, fill in (('tokens', pad), ('token_types', 0)):
        joined[name] = np.full((len(rows), int(lengths.max())), fill, rows[0][name].dtype)
        for place, row in enumerate(rows):
            joined[name][place, : lengths[place]] = row[name]
    return joined | {'token_types': broadcast_zero_token_types(joined['token_types'])}


def broadcast_zero_token_types(types: Int[np.ndarray, '*B L']) -> Int[np.ndarray, '*B L']:
    """Returns the token types unchanged, or, if all are 0, as a broadcast scalar that takes no memory."""
    return types if types.any() else np.broadcast_to(NO_TYPE, types.shape)
