"""Finds entities in tag sequences, and computes entity F1 as CoNLL's evaluation script (conlleval)."""

import re
from collections.abc import Sequence

Entity = tuple[str, int, int]  # entity type, first word, word after the last word
# IOB, IOBES, BILOU and BMEW describe the same entities with different letters.
BEGIN, INSIDE = ('B', 'S', 'U', 'W'), ('I', 'M', 'E', 'L')
LAST = ('E', 'L', 'S', 'U', 'W')
LETTER = f'(?P<letter>[{"".join(BEGIN + INSIDE)}])'
FIRST = re.compile(f'{LETTER}(?:-(?P<kind>.*))?')  # a tag such as 'B-person', or 'B' for entities without types
BEHIND = re.compile(f'(?P<kind>.+)-{LETTER}')  # a tag such as 'person-B'
UNTYPED = '_'  # entity type if a tag names no type


def detect_tag_scheme(labels: Sequence[str]) -> re.Pattern[str] | None:
    """Returns the pattern of entity tags among these labels; None if the labels mark no entities.

    The pattern is `FIRST` ('B-person') or `BEHIND` ('person-B').

    If a label begins with 'B-' or 'I-', labels of other forms count as O. Otherwise all labels except O must have the
    same form. Untyped labels must include B or I. If the letter comes last ('person-B'), a label with B, S, U or W is
    required.
    """
    tags = [label for label in labels if label != 'O']
    if any(tag.startswith(('B-', 'I-')) for tag in tags):
        return FIRST
    if tags and all(map(FIRST.fullmatch, tags)):
        return FIRST if {'B', 'I'} & set(tags) or all('-' in tag for tag in tags) else None
    # Without this check, labels such as 'positive-I' and 'negative-I' would count as entity tags.
    has_begin = any(tag.endswith(BEGIN) for tag in tags)
    return BEHIND if has_begin and all(map(BEHIND.fullmatch, tags)) else None


def entities(tags: Sequence[str], scheme: re.Pattern[str] = FIRST) -> list[Entity]:
    """Returns the entities of one tagged sentence, in order.

    `scheme` is the pattern from `detect_tag_scheme`.

    The rules of conlleval: B starts an entity. I continues the previous entity if that entity has the same type and has
    not ended. Otherwise I starts a new entity.
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
    """Returns entity 'f1', 'precision' and 'recall' over all sentences.

    An entity is right if type, first word and last word match. `scheme` is the pattern from `detect_tag_scheme`. A
    score whose denominator is 0 is 0.
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
