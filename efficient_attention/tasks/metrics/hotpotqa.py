"""Computes scores of answers and of supporting sentences, with the same results as HotpotQA's official script.

Source: Yang et al. 2018, arXiv 1809.09600.
"""

from collections.abc import Collection, Sequence

from efficient_attention.data.examples.hotpotqa import SentenceId
from efficient_attention.errors import InputError
from efficient_attention.tasks.metrics.squad import normalize_answer, token_overlap_scores

Scores = tuple[float, float, float, float]  # exact match, F1, precision, recall
NAMES = ('em', 'f1', 'prec', 'recall')
WHOLE_ANSWERS = frozenset({'yes', 'no', 'noanswer'})  # answers that get no partial credit for shared words


def answer_scores(prediction: str, golds: Sequence[str]) -> Scores:
    """Returns exact match, F1, precision and recall of an answer, against the gold answer with the best F1."""
    return max((_answer_scores(prediction, gold) for gold in golds), key=lambda scores: (scores[1], scores[0]))


def _answer_scores(prediction: str, gold: str) -> Scores:
    guess, wanted = normalize_answer(prediction), normalize_answer(gold)
    if guess != wanted and WHOLE_ANSWERS & {guess, wanted}:
        return 0.0, 0.0, 0.0, 0.0
    return float(guess == wanted), *token_overlap_scores(guess, wanted)


def support_scores(prediction: Collection[SentenceId], gold: Collection[SentenceId]) -> Scores:
    """Returns exact match, F1, precision and recall of predicted supporting sentences against the gold sentences."""
    chosen, wanted = set(prediction), set(gold)
    common = len(chosen & wanted)
    precision = common / len(chosen) if chosen else 0.0
    recall = common / len(wanted) if wanted else 0.0
    return float(chosen == wanted), harmonic_mean(precision, recall), precision, recall


def joint_scores(answer: Scores, support: Scores) -> Scores:
    """Returns HotpotQA's joint scores of an answer and its supporting sentences.

    Joint precision and joint recall are the products of the two precisions and of the two recalls.
    """
    precision, recall = answer[2] * support[2], answer[3] * support[3]
    return answer[0] * support[0], harmonic_mean(precision, recall), precision, recall


def harmonic_mean(precision: float, recall: float) -> float:
    """Returns 2PR / (P + R) for precision P and recall R; 0 if P and R are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def hotpot_scores(answers: Sequence[Scores], support: Sequence[Scores]) -> dict[str, float]:
    """Returns the mean HotpotQA scores of answers, of supporting sentences (names with 'sp_'), and of answer and
    sentences together ('joint_').

    The names are 'em', 'f1', 'prec' and 'recall', with these prefixes.
    """
    if not answers:
        raise InputError('there is no question to score')
    joint = [joint_scores(*pair) for pair in zip(answers, support, strict=True)]
    return {
        f'{prefix}{name}': sum(scores[place] for scores in group) / len(answers)
        for prefix, group in (('', answers), ('sp_', support), ('joint_', joint))
        for place, name in enumerate(NAMES)
    }
