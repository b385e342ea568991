"""Turns SQuAD into text-to-text pairs: the source is 'question: ... context: ...', and the target is the answer's text.

Generated answers get the scores of SQuAD 1.1 or 2.0.
"""

import dataclasses
import functools
from collections.abc import Sequence

from efficient_attention.data.examples.example_selection import parse_file_selections
from efficient_attention.data.examples.squad import Question, read_squad
from efficient_attention.data.pairs.pair_datasets import TextPair
from efficient_attention.data.sources.tables import digest_tables
from efficient_attention.errors import InputError
from efficient_attention.tasks.as_text.scored_text_dataset import ScoredTextDataset, remove_whitespace
from efficient_attention.tasks.metrics.squad import squad2_scores, squad_scores

UNANSWERABLE = 'unanswerable'  # target of a question without an answer (SQuAD 2.0)


@dataclasses.dataclass(frozen=True)
class SquadTextDataset(ScoredTextDataset[Question]):
    """SQuAD questions as text-to-text pairs.

    `files` may select a part of a file, see data/examples/example_selection.py.
    """

    @property
    def name(self) -> str:
        """Returns 'squad', the prefix of the dataset's score names."""
        return 'squad'

    @functools.cached_property
    def examples(self) -> Sequence[Question]:
        """Returns the questions in file order; raises InputError if a file is bad or has no labels."""
        return read_squad(self.files, is_labelled=True)

    def digest(self) -> str:
        """Returns a text that identifies the examples: hashes of the files, and the selected parts of the files."""
        selections = [one.partition('#')[2] for one in self.files.split(',')]
        found = parse_file_selections(self.files, has_tables=True)
        digests = [digest_tables([*map(str, paths)]).lstrip() for paths, _ in found]
        return ' '.join(['squad', *digests, *selections])

    def to_text_pair(self, example: Question) -> TextPair:
        """Returns a question as a source text with question and context, and its answer as the target text.

        The context comes last, so truncating a long source only cuts the end of the context.
        """
        answer = example.training_answer
        target = UNANSWERABLE if answer is None else answer.text
        return TextPair(f'question: {example.question} context: {example.context}', target, example.place)

    def scores(self, examples: Sequence[Question], texts: Sequence[str]) -> dict[str, float]:
        """Returns SQuAD 2.0's scores if any question has no answer, otherwise SQuAD 1.1's scores."""
        golds = [tuple(answer.text for answer in example.answers or ()) for example in examples]
        if all(golds):
            return squad_scores(texts, golds)
        return squad2_scores(['' if remove_whitespace(text) == UNANSWERABLE else text for text in texts], golds)


def make_squad_text_dataset(text: str, field: str, rest: str) -> SquadTextDataset:
    """Returns the SQuAD dataset that '<files>' describes; raises InputError if no file is named."""
    if not rest.strip():
        raise InputError(f'{field} has the set {text!r}; it is squad:<files>')
    return SquadTextDataset(text, field, rest)
