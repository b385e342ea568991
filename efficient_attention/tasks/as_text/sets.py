"""From a config's text to its sets of pairs, those of labelled tasks among them, and the scores of what was written."""

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
    """The sets of a config's text, which `field` names in messages; raises InputError where one is of no known form."""
    return [parse_any_set(part.strip(), field) for part in text.split(';') if part.strip()]


def parse_any_set(text: str, field: str) -> AnySet:
    """The set that a text such as 'glue:sst2:dev.tsv' means; raises InputError as `parse_any_sets`."""
    kind, _, rest = text.partition(':')
    return MAKERS[kind](text, field, rest) if kind in MAKERS else parse_set(text, field, FORMS)


def written_scores(
    sets: Sequence[AnySet], pairs: Sequence[Sequence[TextPair]], written: Sequence[Mapping[int, str]]
) -> dict[str, float | str]:
    """The scores of what was written, by the official metrics of each task, and BLEU and the like of all other sets.

    Sets of one task are scored together. The names of a task's scores begin with its own.

    Args:
        sets: of a split.
        pairs: of each set.
        written: for each set what was written, by the number of the pair; the other pairs are not scored.
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
