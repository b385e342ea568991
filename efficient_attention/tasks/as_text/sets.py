"""Parses text-to-text datasets from config text, and scores generated texts by the metrics of their datasets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from efficient_attention.data.pairs.pair_sets import PairSet, TextPair, parse_set
from efficient_attention.tasks.as_text.choice_set import make_choice_set
from efficient_attention.tasks.as_text.glue_set import make_glue_set
from efficient_attention.tasks.as_text.scored_set import ScoredSet
from efficient_attention.tasks.as_text.squad_set import make_squad_set
from efficient_attention.tasks.metrics.translation import translation_scores

AnySet = PairSet | ScoredSet[Any]
MAKERS: dict[str, Callable[[str, str, str], ScoredSet[Any]]] = {
    'glue': make_glue_set,
    'squad': make_squad_set,
    'choices': make_choice_set,
}
FORMS = ('glue:<task>:<files>', 'squad:<files>', 'choices:<swag|race|table>:<files>')


def parse_any_sets(text: str, field: str) -> list[AnySet]:
    """Returns the datasets of a config text, separated by ';'; raises InputError if a form is unknown.

    `field` is the config field, for messages.
    """
    return [parse_any_set(part.strip(), field) for part in text.split(';') if part.strip()]


def parse_any_set(text: str, field: str) -> AnySet:
    """Returns the dataset that a text such as 'glue:sst2:dev.tsv' describes; raises InputError for unknown forms."""
    kind, _, rest = text.partition(':')
    return MAKERS[kind](text, field, rest) if kind in MAKERS else parse_set(text, field, FORMS)


def written_scores(
    sets: Sequence[AnySet], pairs: Sequence[Sequence[TextPair]], written: Sequence[Mapping[int, str]]
) -> dict[str, float | str]:
    """Returns the scores of generated texts: official metrics of labelled tasks, translation scores of all other pairs.

    Datasets of one task are scored together, and the task's name is the prefix of its score names. Pairs without a task
    get BLEU, chrF and exact match, all together.

    Args:
        sets: the datasets of a split.
        pairs: the pairs of each dataset.
        written: for each dataset the generated text by pair index; pairs without a generated text are not scored.
    """
    tasks: dict[str, tuple[ScoredSet[Any], list[Any], list[str]]] = {}
    plain: list[tuple[str, str]] = []
    for one, in_order, texts in zip(sets, pairs, written, strict=True):
        if isinstance(one, ScoredSet):
            _, examples, answers = tasks.setdefault(one.name, (one, [], []))
            examples += [one.examples[number] for number in texts]
            answers += texts.values()
        else:
            plain += [(text, in_order[number].target) for number, text in texts.items()]
    scores: dict[str, float | str] = {}
    for name, (one, examples, answers) in tasks.items():
        scores |= {f'{name}_{metric}': value for metric, value in one.scores(examples, answers).items()}
    return scores | (translation_scores(*zip(*plain, strict=True)) if plain else {})
