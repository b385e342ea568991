"""Exact match and F1 of answers, equal to SQuAD's two official scripts, as fractions.

Source: Rajpurkar et al. 2016 (arXiv:1606.05250) and 2018 (arXiv:1806.03822), and the evaluation scripts for versions
1.1 and 2.0. The scripts print percentages; here all scores are in [0, 1].
"""

import collections
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

from efficient_attention.errors import InputError

ARTICLES = re.compile(r'\b(a|an|the)\b')
NO_PUNCTUATION = str.maketrans('', '', string.punctuation)  # ASCII alone: '“', '–' and '…' stay
Overlap = tuple[float, float, float]  # F1, precision, recall


def normalized(text: str) -> str:
    """The text in lower case, then without ASCII punctuation, then without articles, words apart by one space.

    Punctuation goes before the articles, so 'a-b' becomes 'ab' and keeps its a.
    """
    return ' '.join(ARTICLES.sub(' ', text.lower().translate(NO_PUNCTUATION)).split())


def overlap(prediction: str, gold: str) -> Overlap:
    """F1, precision and recall of a normalised prediction's words as a bag; zeros where no word is common."""
    guess, wanted = prediction.split(), gold.split()
    common = sum((collections.Counter(guess) & collections.Counter(wanted)).values())
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(guess), common / len(wanted)
    return 2 * precision * recall / (precision + recall), precision, recall


def exact_and_f1(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """The best exact match and the best F1 over the gold answers, as version 1.1 counts them.

    Raises:
        InputError: there is no gold answer.
    """
    if not golds:
        raise InputError('a question without answers is scored; it needs examples.has_no_answer')
    guess, wanted = normalized(prediction), [normalized(gold) for gold in golds]
    return float(guess in wanted), max(overlap(guess, gold)[0] for gold in wanted)


def exact_and_f1_or_none(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """The same as version 2.0 counts: golds of which nothing is left do not count; without any, '' is right.

    Nothing left of both prediction and gold is an F1 of 1 here, of 0 in version 1.1.
    """
    guess, wanted = normalized(prediction), [text for text in map(normalized, golds) if text] or ['']
    return float(guess in wanted), max(
        overlap(guess, gold)[0] if guess and gold else float(guess == gold) for gold in wanted
    )


def squad_scores(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """'exact_match' and 'f1' as version 1.1's script; golds[i] are the gold answers of predictions[i]."""
    exact, f1 = _means(_score_pairs(exact_and_f1, predictions, golds))
    return {'exact_match': exact, 'f1': f1}


def squad2_scores(
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
    null_odds: Sequence[float] | None = None,
    *,
    threshold: float = 1.0,
) -> dict[str, float]:
    """What version 2.0's script prints.

    'exact', 'f1' and 'total'; the same of questions with an answer (HasAns_*) and without (NoAns_*), where there are
    any; with null odds also the best threshold's scores, 'best_exact' and 'best_f1', and 'best_exact_thresh' and
    'best_f1_thresh'.

    Args:
        predictions: answers, '' = none.
        golds: gold answers of each question, none = it has no answer.
        null_odds: the higher, the less likely there is an answer (--na-prob-file); without them all are 0.
        threshold: a prediction with higher null odds counts as '' (--na-prob-thresh).
    """
    scores_Q2 = _score_pairs(exact_and_f1_or_none, predictions, golds)
    has_answer_Q = np.array([bool(answers) for answers in golds], bool)
    odds_Q = np.zeros(len(predictions)) if null_odds is None else np.asarray(null_odds, np.float64)
    without_Q2 = np.repeat(~has_answer_Q[:, None], 2, axis=1).astype(np.float64)
    final_Q2 = np.where((odds_Q > threshold)[:, None], without_Q2, scores_Q2)
    report = _named_means(final_Q2, '')
    for prefix, rows_Q in (('HasAns_', has_answer_Q), ('NoAns_', ~has_answer_Q)):
        report |= _named_means(final_Q2[rows_Q], prefix) if rows_Q.any() else {}
    if null_odds is not None:
        is_given_Q = np.array([bool(text) for text in predictions], bool)
        for column, name in enumerate(('exact', 'f1')):
            best, at = best_threshold(scores_Q2[:, column], has_answer_Q, is_given_Q, odds_Q)
            report |= {f'best_{name}': best, f'best_{name}_thresh': at}
    return report


def best_threshold(
    scores_Q: np.ndarray, has_answer_Q: np.ndarray, is_given_Q: np.ndarray, null_odds_Q: np.ndarray
) -> tuple[float, float]:
    """The best mean score that a threshold on the null odds gives, and that threshold, as the official script says.

    It is 0 where answering nothing is best, and it may lie among questions of equal odds: see `chosen_threshold`.

    Args:
        scores_Q: of the predictions when they are given.
        has_answer_Q: whether the question has an answer.
        is_given_Q: whether the prediction is not empty.
        null_odds_Q: see `squad2_scores`.
    """
    order, totals = _running_totals(scores_Q, has_answer_Q, is_given_Q, null_odds_Q)
    best = int(totals.argmax())
    return float(totals[best] / len(scores_Q)), float(null_odds_Q[order[best - 1]]) if best else 0.0


def chosen_threshold(predictions: Sequence[str], golds: Sequence[Sequence[str]], null_odds: Sequence[float]) -> float:
    """The lowest threshold on the null odds with the best F1 that any threshold gives; arguments as `squad2_scores`.

    It lies below all odds where it is best to answer nothing.
    """
    f1_Q = _score_pairs(exact_and_f1_or_none, predictions, golds)[:, 1]
    has_answer_Q, is_given_Q = (np.array([bool(one) for one in ones], bool) for ones in (golds, predictions))
    odds_Q = np.asarray(null_odds, np.float64)
    order, totals = _running_totals(f1_Q, has_answer_Q, is_given_Q, odds_Q)
    rising = odds_Q[order]
    is_possible = np.concatenate([[True], rising[1:] > rising[:-1], [True]])
    best = int(np.where(is_possible, totals, -np.inf).argmax())
    return float(rising[best - 1]) if best else float(rising[0]) - 1.0


def _running_totals(
    scores_Q: np.ndarray, has_answer_Q: np.ndarray, is_given_Q: np.ndarray, null_odds_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The questions in the order of their null odds; the sum of scores when the first 0, 1, 2, ... are answered.

    At first those without answer are right. A question with an answer then adds its score, one without loses its point
    unless the prediction is empty.
    """
    order = np.argsort(null_odds_Q, kind='stable')
    gains = np.where(has_answer_Q, scores_Q, -is_given_Q.astype(np.float64))[order]
    return order, np.cumsum(np.concatenate([[float((~has_answer_Q).sum())], gains]))


def _score_pairs(
    score: Callable[[str, Sequence[str]], tuple[float, float]],
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
) -> np.ndarray:
    pairs = [score(text, answers) for text, answers in zip(predictions, golds, strict=True)]
    return np.array(pairs, np.float64).reshape(-1, 2)


def _means(scores_Q2: np.ndarray) -> tuple[float, float]:
    if not len(scores_Q2):
        raise InputError('there is no question to score')
    exact, f1 = scores_Q2.mean(axis=0).tolist()
    return exact, f1


def _named_means(scores_Q2: np.ndarray, prefix: str) -> dict[str, float]:
    exact, f1 = _means(scores_Q2)
    return {f'{prefix}exact': exact, f'{prefix}f1': f1, f'{prefix}total': float(len(scores_Q2))}
