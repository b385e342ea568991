"""Computes exact match and F1 of answers as fractions, with the same results as the two official SQuAD scripts.

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
NO_PUNCTUATION = str.maketrans('', '', string.punctuation)  # removes only ASCII punctuation: '“', '–' and '…' stay
Overlap = tuple[float, float, float]  # F1, precision, recall


def normalize_answer(text: str) -> str:
    """Returns the text in lower case without ASCII punctuation and articles, with single spaces between words.

    Punctuation is removed before articles, so 'a-b' becomes 'ab' and keeps its a.
    """
    return ' '.join(ARTICLES.sub(' ', text.lower().translate(NO_PUNCTUATION)).split())


def token_overlap_scores(prediction: str, gold: str) -> Overlap:
    """Returns F1, precision and recall of the shared words of a prediction and a gold answer, as bags of words.

    The answers are normalised. The scores are zeros if no word is shared.
    """
    guess, wanted = prediction.split(), gold.split()
    common = sum((collections.Counter(guess) & collections.Counter(wanted)).values())
    if not common:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(guess), common / len(wanted)
    return 2 * precision * recall / (precision + recall), precision, recall


def exact_and_f1(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Returns the best exact match and the best F1 of an answer over the gold answers, as in SQuAD 1.1.

    Raises:
        InputError: there is no gold answer.
    """
    if not golds:
        raise InputError('a question without answers is scored; it needs examples.has_no_answer')
    guess, wanted = normalize_answer(prediction), [normalize_answer(gold) for gold in golds]
    return float(guess in wanted), max(token_overlap_scores(guess, gold)[0] for gold in wanted)


def exact_and_f1_with_no_answer(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Returns exact match and F1 of an answer as in SQuAD 2.0, where a question may have no answer.

    Gold answers that normalise to '' are ignored. If none is left, the right answer is ''. If prediction and gold both
    normalise to '', F1 is 1 here but 0 in version 1.1.
    """
    guess, wanted = normalize_answer(prediction), [text for text in map(normalize_answer, golds) if text] or ['']
    return float(guess in wanted), max(
        token_overlap_scores(guess, gold)[0] if guess and gold else float(guess == gold) for gold in wanted
    )


def squad_scores(predictions: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns the mean 'exact_match' and 'f1' of all predictions, as in SQuAD 1.1's script.

    golds[i] are the gold answers of predictions[i].
    """
    exact, f1 = _means(_exact_and_f1_array(exact_and_f1, predictions, golds))
    return {'exact_match': exact, 'f1': f1}


def squad2_scores(
    predictions: Sequence[str],
    golds: Sequence[Sequence[str]],
    null_odds: Sequence[float] | None = None,
    *,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Returns the mean scores of all predictions, as SQuAD 2.0's script prints them.

    The scores are 'exact', 'f1' and 'total'. They are repeated for questions with an answer (HasAns_*) and without
    (NoAns_*), if there are any. With null odds there are also the best scores over all thresholds, 'best_exact' and
    'best_f1', and their thresholds, 'best_exact_thresh' and 'best_f1_thresh'.

    Args:
        predictions: answers, '' = none.
        golds: gold answers of each question; empty = the question has no answer.
        null_odds: higher = an answer is less likely (--na-prob-file); None = all are 0.
        threshold: a prediction with higher null odds counts as '' (--na-prob-thresh).
    """
    scores_Q2 = _exact_and_f1_array(exact_and_f1_with_no_answer, predictions, golds)
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
    """Returns the best mean score over all thresholds on the odds of no answer, and the best threshold.

    The result is the same as in the official script.

    If it is best to answer nothing, the threshold is 0. The threshold may separate questions with equal odds, which no
    real threshold can do; see `choose_null_threshold`.

    Args:
        scores_Q: the score of each question if its prediction is given.
        has_answer_Q: whether the question has an answer.
        is_given_Q: whether the prediction is not empty.
        null_odds_Q: see `squad2_scores`.
    """
    order, totals = _cumulative_scores(scores_Q, has_answer_Q, is_given_Q, null_odds_Q)
    best = int(totals.argmax())
    return float(totals[best] / len(scores_Q)), float(null_odds_Q[order[best - 1]]) if best else 0.0


def choose_null_threshold(
    predictions: Sequence[str], golds: Sequence[Sequence[str]], null_odds: Sequence[float]
) -> float:
    """Returns the lowest threshold on the odds of no answer (null odds) that gives the best F1.

    The arguments are the same as in `squad2_scores`.

    If it is best to answer nothing, the threshold is below all odds.
    """
    f1_Q = _exact_and_f1_array(exact_and_f1_with_no_answer, predictions, golds)[:, 1]
    has_answer_Q, is_given_Q = (np.array([bool(one) for one in ones], bool) for ones in (golds, predictions))
    odds_Q = np.asarray(null_odds, np.float64)
    order, totals = _cumulative_scores(f1_Q, has_answer_Q, is_given_Q, odds_Q)
    rising = odds_Q[order]
    is_possible = np.concatenate([[True], rising[1:] > rising[:-1], [True]])
    best = int(np.where(is_possible, totals, -np.inf).argmax())
    return float(rising[best - 1]) if best else float(rising[0]) - 1.0


def _cumulative_scores(
    scores_Q: np.ndarray, has_answer_Q: np.ndarray, is_given_Q: np.ndarray, null_odds_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sorts the questions by their odds of no answer. Returns this order and, for each n, the total score if only the
    first n questions are answered.

    There is one total score for each n = 0, 1, 2, and so on.

    With no question answered, all questions without an answer are right. Answering a question that has an answer adds
    its score. Answering one without an answer loses its point, unless the prediction is empty.
    """
    order = np.argsort(null_odds_Q, kind='stable')
    gains = np.where(has_answer_Q, scores_Q, -is_given_Q.astype(np.float64))[order]
    return order, np.cumsum(np.concatenate([[float((~has_answer_Q).sum())], gains]))


def _exact_and_f1_array(
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
