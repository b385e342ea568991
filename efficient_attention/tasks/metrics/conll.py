"""Entities in sequences of tags, and their F1 as CoNLL's evaluation script (conlleval) counts it."""

import re
from collections.abc import Sequence

Entity = tuple[str, int, int]  # type, first word, the word behind the last
# IOB, IOBES, BILOU and BMEW write the same entities.
BEGIN, INSIDE = ('B', 'S', 'U', 'W'), ('I', 'M', 'E', 'L')
LAST = ('E', 'L', 'S', 'U', 'W')
LETTER = f'(?P<letter>[{"".join(BEGIN + INSIDE)}])'
FIRST = re.compile(f'{LETTER}(?:-(?P<kind>.*))?')  # 'B-person', or 'B' of entities without types
BEHIND = re.compile(f'(?P<kind>.+)-{LETTER}')  # 'person-B'
UNTYPED = '_'  # the type of entities without one


def scheme_of(labels: Sequence[str]) -> re.Pattern[str] | None:
    """The pattern by which these labels mark entities, `FIRST` or `BEHIND`; None if they mark none.

    If a label begins with 'B-' or 'I-', labels of other forms count as O. Otherwise all labels besides O must have one
    form. If some have no types, B or I must be among them; if the letter stands behind, B, S, U or W.
    """
    tags = [label for label in labels if label != 'O']
    if any(tag.startswith(('B-', 'I-')) for tag in tags):
        return FIRST
    if tags and all(map(FIRST.fullmatch, tags)):
        return FIRST if {'B', 'I'} & set(tags) or all('-' in tag for tag in tags) else None
    has_begin = any(tag.endswith(BEGIN) for tag in tags)  # else 'positive-I' and 'negative-I' would be tags
    return BEHIND if has_begin and all(map(BEHIND.fullmatch, tags)) else None


def entities(tags: Sequence[str], scheme: re.Pattern[str] = FIRST) -> list[Entity]:
    """The entities in the tags of one sentence, in order; `scheme` is that of the labels.

    conlleval's rules: B starts one; I goes on with the one before it if that has the same type and has not ended, and
    else starts one itself, after O or another type.
    """
    found: list[Entity] = []
    before, kind_before = 'O', ''
    for place, tag in enumerate(tags):
        match = scheme.fullmatch(tag)
        letter, kind = (match['letter'], match['kind'] or UNTYPED) if match else ('O', '')
        goes_on = letter in INSIDE and before not in ('O', *LAST) and kind == kind_before
        if goes_on:
            found[-1] = (kind, found[-1][1], place + 1)
        elif match:
            found.append((kind, place, place + 1))
        before, kind_before = letter, kind
    return found


def entity_scores(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: re.Pattern[str] = FIRST
) -> dict[str, float]:
    """'f1', 'precision' and 'recall' over the entities of all sentences; right = same type, first and last word.

    `scheme` is that of the labels. Each score is 0 where there is nothing to divide by.
    """
    hits = wanted = guessed = 0
    for right, guess in zip(expected, predicted, strict=True):
        right_ones, guesses = set(entities(right, scheme)), set(entities(guess, scheme))
        hits += len(right_ones & guesses)
        wanted += len(right_ones)
        guessed += len(guesses)
    return {
        'f1': 2 * hits / (wanted + guessed) if hits else 0.0,
        'precision': hits / guessed if hits else 0.0,
        'recall': hits / wanted if hits else 0.0,
    }
