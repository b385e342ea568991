"""Ranks candidate answers to a question by probability, and writes the prediction files that SQuAD's scripts read."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer to a question: a span of the context with logits and probability; text '' = no answer.

    The answer has the characters start:end of the context.
    """

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def logit_sum(self) -> float:
        """Returns the sum of the start logit and the end logit."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class SpanPrediction:
    """The candidate answers to one question, best first; their probabilities sum to 1.

    `null_odds` is the score of no answer minus the score of the best answer, in logits. It is None if every question
    has an answer.
    """

    candidates: tuple[Candidate, ...]
    null_odds: float | None = None

    @property
    def best_answer(self) -> Candidate:
        """Returns the best candidate that is an answer, or an empty candidate if there is none."""
        return next((candidate for candidate in self.candidates if candidate.text), EMPTY)

    def best_or_no_answer(self, threshold: float) -> Candidate:
        """Returns the best answer, or the no-answer candidate if the odds of no answer are above `threshold`."""
        if self.null_odds is None or self.null_odds <= threshold:
            return self.best_answer
        return next((candidate for candidate in self.candidates if not candidate.text), EMPTY)


EMPTY = Candidate('', 0, 0, 0.0, 0.0)


def rank_candidates(candidates: Sequence[Candidate], null: Candidate | None, count: int) -> SpanPrediction:
    """Returns the `count` best candidate answers of all windows, with probabilities; if questions may have no answer,
    also the candidate for no answer.

    Args:
        candidates: answers; of candidates with the same text, the best one counts.
        null: the no-answer candidate, kept even if `count` others are better; None = there must be an answer.
        count: candidates to keep.
    """
    kept_by_text: dict[str, Candidate] = {}
    for candidate in sorted([*candidates, *([null] if null else [])], key=lambda candidate: -candidate.logit_sum):
        kept_by_text.setdefault(candidate.text, candidate)
    kept = list(kept_by_text.values())[:count]
    if null and all(candidate.text for candidate in kept):
        kept.append(null)
    kept = kept or [EMPTY]
    chances = scipy.special.softmax(np.array([candidate.logit_sum for candidate in kept])).tolist()
    found = tuple(dataclasses.replace(one, probability=chance) for one, chance in zip(kept, chances, strict=True))
    prediction = SpanPrediction(found)
    return (
        dataclasses.replace(prediction, null_odds=null.logit_sum - prediction.best_answer.logit_sum)
        if null
        else prediction
    )


def write_answers(
    ids: Sequence[str], predictions: Sequence[SpanPrediction], threshold: float, folder: Path
) -> list[Path]:
    """Writes 'predictions.json', 'nbest_predictions.json' and, if questions may have no answer, 'null_odds.json'.

    The files have the layout of BERT's `run_squad.py`, which the official scripts and servers read: id -> answer, id ->
    list of {'text', 'probability', 'start_logit', 'end_logit'}, id -> null odds.
    """
    pairs = list(zip(ids, predictions, strict=True))
    contents: dict[str, Mapping[str, Any]] = {
        'predictions.json': {id: prediction.best_or_no_answer(threshold).text for id, prediction in pairs},
        'nbest_predictions.json': {
            id: [_nbest_entry(one) for one in prediction.candidates] for id, prediction in pairs
        },
    }
    if any(prediction.null_odds is not None for prediction in predictions):
        contents['null_odds.json'] = {id: prediction.null_odds for id, prediction in pairs}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=4) + '\n', encoding='utf-8')
    return [folder / name for name in contents]


def _nbest_entry(candidate: Candidate) -> dict[str, str | float]:
    names = ('text', 'probability', 'start_logit', 'end_logit')
    return {name: getattr(candidate, name) for name in names}
