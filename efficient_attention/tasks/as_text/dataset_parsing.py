"""Parses text-to-text datasets from config text, and scores generated texts by the metrics of their datasets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from efficient_attention.data.pairs.pair_datasets import PairDataset, TextPair, parse_pair_dataset
from efficient_attention.tasks.as_text.choice_text_dataset import make_choice_text_dataset
from efficient_attention.tasks.as_text.glue_text_dataset import make_glue_text_dataset
from efficient_attention.tasks.as_text.scored_text_dataset import ScoredTextDataset
from efficient_attention.tasks.as_text.squad_text_dataset import make_squad_text_dataset
from efficient_attention.tasks.metrics.translation import translation_scores

AnySet = PairDataset | ScoredTextDataset[Any]
MAKERS: dict[str, Callable[[str, str, str], ScoredTextDataset[Any]]] = {
    'glue': make_glue_text_dataset,
    'squad': make_squad_text_dataset,
    'choices': make_choice_text_dataset,
}
FORMS = ('glue:<task>:<files>', 'squad:<files>', 'choices:<swag|race|table>:<files>')


def parse_text_datasets(text: str, field: str) -> list[AnySet]:
    """Returns the text-to-text datasets that a config text lists, separated by ';'.

    It raises InputError if the form of a dataset is unknown.

    `field` is the config field, for messages.
    """
    return [parse_text_dataset(part.strip(), field) for part in text.split(';') if part.strip()]


def parse_text_dataset(text: str, field: str) -> AnySet:
    """Returns the dataset that a text such as 'glue:sst2:dev.tsv' describes; raises InputError for unknown forms."""
    kind, _, rest = text.partition(':')
    return MAKERS[kind](text, field, rest) if kind in MAKERS else parse_pair_dataset(text, field, FORMS)


def score_generated_texts(
    sets: Sequence[AnySet], pairs: Sequence[Sequence[TextPair]], written: Sequence[Mapping[int, str]]
) -> dict[str, float | str]:
    """Returns the scores of generated texts: official metrics for labelled tasks, translation scores for other pairs.

    Datasets of one task are scored together, and the task's name is the prefix of its score names. Pairs without a task
    get BLEU, chrF and exact match, all together.

    Args:
        sets: the datasets of a split.
        pairs: the pairs of each dataset.
        written: for each dataset the generated text by pair index; pairs without a generated text are not scored.
    """
    tasks: dict[str, tuple[ScoredTextDataset[Any], list[Any], list[str]]] = {}
    plain: list[tuple[str, str]] = []
    for one, in_order, texts in zip(sets, pairs, written, strict=True):
        if isinstance(one, ScoredTextDataset):
            _, examples, answers = tasks.setdefault(one.name, (one, [], []))
            examples += [one.examples[number] for number in texts]
            answers += texts.values()
        else:
            plain += [(text, in_order[number].target) for number, text in texts.items()]
    scores: dict[str, float | str] = {}
    for name, (one, examples, answers) in tasks.items():
        scores |= {f'{name}_{metric}': value for metric, value in one.scores(examples, answers).items()}
    return scores | (translation_scores(*zip(*plain, strict=True)) if plain else {})
