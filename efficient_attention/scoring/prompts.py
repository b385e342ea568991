"""Builds prompts of solved examples and a question, and leaves out examples that do not fit into the model."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from efficient_attention.errors import InputError
from efficient_attention.scoring.pairs import Pair, Scorer
from efficient_attention.scoring.questions import Question


@dataclasses.dataclass(frozen=True)
class PromptForm:
    """The text around a question.

    Attributes:
        description: what comes first, such as the task in words; '' = nothing.
        delimiter: what stands after the description and after each example.
        shots: number of solved examples before each question.
        seed: chooses the examples, together with the number of the question.
        empty_prompt: the prompt of the measure 'against_empty'; '' = the document separator.
    """

    description: str = ''
    delimiter: str = '\n\n'
    shots: int = 0
    seed: int = 0
    empty_prompt: str = ''

    def text(self, examples: Sequence[str], prompt: str) -> str:
        """Returns description, examples and prompt as one text."""
        head = [self.description] if self.description else []
        return ''.join(f'{part}{self.delimiter}' for part in (*head, *examples)) + prompt


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A question as the model reads it: one pair per answer, and how many examples are in it."""

    pairs: tuple[Pair, ...]
    examples: int


def draw_examples(pool: Sequence[Question], question: Question, number: int, form: PromptForm) -> list[str]:
    """Returns `form.shots` solved examples from the training questions, by the seed (`form.seed`, `number`).

    The question itself is never among them, even if the training file has it.

    Raises:
        InputError: there are fewer training questions than examples.
    """
    count = form.shots
    if not count:
        return []
    drawn: list[str] = []
    for place in np.random.default_rng((form.seed, number)).permutation(len(pool)):
        if len(drawn) < count and pool[place].solved != question.solved:
            drawn.append(pool[place].solved)
        if len(drawn) == count:
            return drawn
    raise InputError(
        f'{count} examples per question are asked for (--shots); the training files have {len(drawn)} other questions'
    )


def build_prompt(scorer: Scorer, question: Question, examples: Sequence[str], form: PromptForm) -> Prompt:
    """Returns the prompt with as many examples as fit; those farthest from the question are left out first.

    Raises:
        InputError: the question does not fit without any example; the message names file and line.
    """
    for first in range(len(examples) + 1):
        kept = examples[first:]
        pairs = tuple(
            Pair(form.text(kept, question.prompt(number)), question.option(number))
            for number in range(question.choices)
        )
        other = [Pair(pairs[0].context, f' {one}') for one in question.accepted]
        try:
            rows = [scorer.encode(pair) for pair in (*pairs, *other)]
        except InputError as error:
            raise InputError(f'{question.where}: {error}') from None
        if all(map(scorer.fits, rows)):
            return Prompt(pairs, len(kept))
    longest = max(rows, key=lambda row: row.positions)
    raise InputError(f'{question.where}: the question is too long: {scorer.sizes(longest)}')
