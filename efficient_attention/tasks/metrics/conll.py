"""Entities in sequences of tags, and their F1 as CoNLL's evaluation script (conlleval) counts it."""

from collections.abc import Sequence

Entity = tuple[str, int, int]  # type, first word, the word behind the last
BEGIN, INSIDE = ('B', 'S', 'U'), ('I', 'E', 'L')  # IOB, IOBES and BILOU write the same entities
LAST = ('E', 'L', 'S', 'U')


def has_entities(labels: Sequence[str]) -> bool:
    """Whether tags such as 'B-person' or 'I-person' are among the labels."""
    return any(label.startswith(('B-', 'I-')) for label in labels)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities in the tags of one sentence, in order.

    conlleval's rules: B starts one; I goes on with the one before it if that has the same type and has not ended, and
    else starts one itself, after O or another type.
    """
    found: list[Entity] = []
    before, kind_before = 'O', ''
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition('-')
        goes_on = prefix in INSIDE and before not in ('O', *LAST) and kind == kind_before
        if goes_on:
            found[-1] = (kind, found[-1][1], place + 1)
        elif prefix in BEGIN + INSIDE:
            found.append((kind, place, place + 1))
        before, kind_before = (prefix, kind) if prefix in BEGIN + INSIDE else ('O', '')
    return found


def entity_scores(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """'f1', 'precision' and 'recall' over the entities of all sentences; right = same type, first and last word.

    Each is 0 where there is nothing to divide by.
    """
    hits = wanted = guessed = 0
    for right, guess in zip(expected, predicted, strict=True):
        right_ones, guesses = set(entities(right)), set(entities(guess))
        hits += len(right_ones & guesses)
        wanted += len(right_ones)
        guessed += len(guesses)
    return {
        'f1': 2 * hits / (wanted + guessed) if hits else 0.0,
        'precision': hits / guessed if hits else 0.0,
        'recall': hits / wanted if hits else 0.0,
    }
