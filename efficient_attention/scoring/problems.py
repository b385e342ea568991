"""Scores a model on a problem: minimal pairs, last words, choices, Winograd schemas, exact answers, whole texts.

Where the highest score is shared by several answers, the question counts as
wrong, and 'ties' says how many there were.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from efficient_attention.errors import InputError
from efficient_attention.scoring.masked_scorer import MaskedScorer
from efficient_attention.scoring.pairs import Pair, PairScore, Scorer
from efficient_attention.scoring.prompts import Prompt, PromptForm, build_prompt, draw_examples
from efficient_attention.scoring.questions import (
    CHOICE_FIELDS,
    Question,
    Reader,
    read_choice_questions,
    read_exact_answers,
    read_last_words,
    read_minimal_pairs,
    read_winograd,
)
from efficient_attention.scoring.whole_texts import safe_exp

AT_ONCE = 1024  # questions that are scored together, so that rows of equal length share a batch
ROUNDING = 1e-6  # relative; sums of float32 numbers in another order differ by less
# Ways to compare options of different lengths: by the sum of log-probabilities, by its mean per token, character or
# byte of the option, or by the sum minus that after an empty prompt.
NORMS = ('sum', 'per_token', 'per_character', 'per_byte', 'against_empty')


@dataclasses.dataclass(frozen=True)
class Answered:
    """A scored question.

    Attributes:
        number: number of the question in the files, from 0.
        question: the question.
        prompt: what the model read.
        scores: per measure, one number per answer.
        is_right: per measure, whether the answer is right.
        is_tied: per measure, whether the highest score is shared.
        is_known: whether the vocabulary has every token of prompt and options.
        said: the generated answer; '' = nothing was generated.
    """

    number: int
    question: Question
    prompt: Prompt
    scores: dict[str, list[float]]
    is_right: dict[str, bool]
    is_tied: dict[str, bool]
    is_known: bool = True
    said: str = ''

    def line(self, problem: str, shots: int) -> dict[str, Any]:
        """Returns the question as one JSON object: prompt, options, scores, and the right answer."""
        pairs = self.prompt.pairs
        shared = len({pair.context for pair in pairs}) == 1
        return {
            'problem': problem,
            'shots': shots,
            'number': self.number,
            'where': self.question.where,
            'examples': self.prompt.examples,
            'prompt': pairs[0].context if shared else [pair.context for pair in pairs],
            'options': [pair.continuation for pair in pairs],
            'answer': self.question.answer,
            'scores': self.scores,
            'right': self.is_right,
            'known': self.is_known,
            **({'accepted': self.question.accepted, 'said': self.said} if 'exact' in self.is_right else {}),
        }


@dataclasses.dataclass(frozen=True)
class Problem:
    """A kind of problem: how its files are read, and how a model answers.

    Attributes:
        about: what is measured, in one line.
        read: reads the files.
        answer: scores prompts; one result per question.
        fields: names of the fields that the reader has.
    """

    about: str
    read: Reader
    answer: Callable[[Scorer, Sequence[Question], Sequence[Prompt], str], list[dict[str, Any]]]
    fields: tuple[str, ...] = ()


def compare_options(
    scorer: Scorer, questions: Sequence[Question], prompts: Sequence[Prompt], empty_prompt: str
) -> list[dict[str, Any]]:
    """Returns the scores of each question's options by all of `NORMS`."""
    pairs = [pair for prompt in prompts for pair in prompt.pairs]
    alone = [Pair(empty_prompt, pair.continuation) for pair in pairs]
    found, empty = iter(scorer.score(pairs)), iter(scorer.score(alone))
    return [
        compare(
            {
                name: [normed(name, pair, score, without) for pair, score, without in rows]
                for rows in [[(pair, next(found), next(empty)) for pair in prompt.pairs]]
                for name in NORMS
            },
            question.answer,
        )
        for question, prompt in zip(questions, prompts, strict=True)
    ]


def normed(name: str, pair: Pair, score: PairScore, without: PairScore) -> float:
    """Returns an option's score by one of `NORMS`; characters and bytes are those of the option without its first
    space.
    """
    option = pair.continuation.lstrip()
    sizes = {'per_token': score.tokens, 'per_character': len(option), 'per_byte': len(option.encode())}
    if name == 'against_empty':
        return score.log_prob - without.log_prob
    return score.log_prob / sizes.get(name, 1)


def compare_pairs(
    scorer: Scorer, questions: Sequence[Question], prompts: Sequence[Prompt], _: str
) -> list[dict[str, Any]]:
    """Returns the summed log-probability of each answer; for Winograd schemas, of one ending after each prompt."""
    found = iter(scorer.score([pair for prompt in prompts for pair in prompt.pairs]))
    results = []
    for question, prompt in zip(questions, prompts, strict=True):
        results.append(compare({'sum': [next(found).log_prob for _ in prompt.pairs]}, question.answer))
    return results


def compare_winograd(
    scorer: Scorer, questions: Sequence[Question], prompts: Sequence[Prompt], empty_prompt: str
) -> list[dict[str, Any]]:
    """Returns the scores of Winograd schemas: a language model scores the ending, an encoder that fills masks the
    candidates in the gap.
    """
    if not isinstance(scorer, MaskedScorer):
        return compare_pairs(scorer, questions, prompts, empty_prompt)
    gaps = [gap for question in questions for gap in gaps_of(scorer, question)]
    scores = iter(scorer.score_gaps(gaps))
    return [
        compare({'in_gap': [next(scores) for _ in prompt.pairs]}, question.answer)
        for question, prompt in zip(questions, prompts, strict=True)
    ]


def gaps_of(scorer: MaskedScorer, question: Question) -> list[tuple[str, str, str]]:
    """Returns each candidate of a Winograd schema between the texts around it; raises InputError if a row is too
    long.
    """
    assert question.gap is not None  # `whole_texts` has checked it
    before, after, candidates = question.gap
    gaps = [(before, one, after) for one in candidates]
    try:
        for gap in gaps:
            scorer.gap_row(*gap)
    except InputError as error:
        raise InputError(f'{question.where}: {error}') from None
    return gaps


def whole_texts(question: Question) -> Prompt:
    """Returns a Winograd schema as whole texts, one per candidate, as an encoder reads it; raises InputError if the
    question has no gap.
    """
    if question.gap is None:
        raise InputError(f'{question.where}: an encoder needs the form with [MASK], which this file does not have')
    before, after, candidates = question.gap
    return Prompt(tuple(Pair('', f'{before}{one}{after}') for one in candidates), 0)


def predict_last_words(
    scorer: Scorer, _: Sequence[Question], prompts: Sequence[Prompt], __: str
) -> list[dict[str, Any]]:
    """Returns the log-probability of each last word, and whether greedy decoding gives it."""
    scores = scorer.score([prompt.pairs[0] for prompt in prompts])
    return [{'scores': {'sum': [one.log_prob]}, 'is_right': {'greedy': one.is_greedy}, 'is_tied': {}} for one in scores]


def generate_answers(
    scorer: Scorer, questions: Sequence[Question], prompts: Sequence[Prompt], _: str
) -> list[dict[str, Any]]:
    """Returns the greedily generated text up to the end of the line, and whether it is one of the right answers."""
    answers = [question.answers for question in questions]
    contexts = [prompt.pairs[0].context for prompt in prompts]
    # A few tokens more show whether the text goes on after the answer.
    most = [
        max(len(scorer.encode(Pair(context, one)).continuation) for one in several) + 4
        for context, several in zip(contexts, answers, strict=True)
    ]
    texts = scorer.generate(contexts, most)
    return [
        {
            'scores': {},
            'is_right': {'exact': text.strip() in {one.strip() for one in several}},
            'is_tied': {},
            'said': text,
        }
        for text, several in zip(texts, answers, strict=True)
    ]


def compare(scores: Mapping[str, list[float]], answer: int) -> dict[str, Any]:
    """Returns scores with, per measure, whether the highest score is shared, and whether only the answer has it.

    Scores that differ by less than float32's rounding are equal.
    """
    best = {
        name: [math.isclose(one, max(values), rel_tol=ROUNDING) for one in values] for name, values in scores.items()
    }
    tied = {name: sum(is_best) > 1 for name, is_best in best.items()}
    right = {name: is_best[answer] and not tied[name] for name, is_best in best.items()}
    return {'scores': dict(scores), 'is_right': right, 'is_tied': tied}


PROBLEMS = {
    'blimp': Problem('the acceptable sentence of a pair is more probable', read_minimal_pairs, compare_pairs),
    'lambada': Problem('greedy decoding gives the last word of a passage', read_last_words, predict_last_words),
    'choice': Problem('the right option has the highest score', read_choice_questions, compare_options, CHOICE_FIELDS),
    'winograd': Problem('the right candidate makes the text more probable', read_winograd, compare_winograd),
    'exact': Problem('the generated line is the answer', read_exact_answers, generate_answers, ('template', 'answer')),
}


def answer_questions(
    scorer: Scorer,
    problem: Problem,
    questions: Mapping[int, Question],
    *,
    pool: Sequence[Question] = (),
    form: PromptForm | None = None,
    on_answers: Callable[[int], None] = lambda _: None,
) -> Iterator[Answered]:
    """Yields each question with its scores, in their order.

    Args:
        scorer: the model.
        problem: one of `PROBLEMS`.
        questions: from the problem's reader, by number.
        pool: the questions from which examples are drawn.
        form: the text around the question; None = no example.
        on_answers: called with the number of questions answered so far, after every 1,024.

    Raises:
        InputError: a question does not fit, or there are fewer examples than asked for.
    """
    form = form or PromptForm()
    if isinstance(scorer, MaskedScorer) and (form.shots or form.description):
        raise InputError(f'{scorer.name} is an encoder, which reads neither examples nor a description')
    numbers = list(questions)
    for start in range(0, len(questions), AT_ONCE):
        counted = numbers[start : start + AT_ONCE]
        some = [questions[number] for number in counted]
        if isinstance(scorer, MaskedScorer) and problem.answer is compare_winograd:
            prompts = [whole_texts(question) for question in some]
        else:
            prompts = [
                build_prompt(scorer, question, draw_examples(pool, question, number, form), form)
                for number, question in zip(counted, some, strict=True)
            ]
        results = problem.answer(scorer, some, prompts, form.empty_prompt)
        for number, question, prompt, result in zip(counted, some, prompts, results, strict=True):
            is_known = all(scorer.is_known(pair.context + pair.continuation) for pair in prompt.pairs)
            yield Answered(number, question, prompt, **result, is_known=is_known)
        on_answers(start + len(some))


def summarize(answered: Sequence[Answered]) -> dict[str, Any]:
    """Returns accuracy, its standard error, and ties per measure; perplexity of single answers; accuracy per group; the
    mean number of examples that fitted; how many questions have unknown tokens, and the accuracy without them.
    """
    measures = [name for name in dict.fromkeys(name for one in answered for name in one.is_right)]
    found: dict[str, Any] = {'questions': len(answered)}
    for name in measures:
        right = [one.is_right[name] for one in answered if name in one.is_right]
        ties = sum(one.is_tied.get(name, False) for one in answered)
        found[name] = accuracy_of(right) | ({'ties': ties} if any(one.is_tied for one in answered) else {})
    known = [one for one in answered if one.is_known]
    found['with_unknown_tokens'] = len(answered) - len(known)
    if known and len(known) < len(answered):
        found['known_words'] = accuracy_of([one.is_right[measures[0]] for one in known])
    if all(one.question.choices == 1 and one.scores for one in answered):
        found['perplexity'] = perplexity_of(answered)
        if known and len(known) < len(answered):
            found['perplexity_known_words'] = perplexity_of(known)
    chances = [1 / one.question.choices for one in answered if one.question.choices > 1]
    if chances:
        found['chance'] = sum(chances) / len(chances)
    examples = [one.prompt.examples for one in answered]
    found['examples'] = sum(examples) / len(examples)
    groups: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for one in answered:
        for kind, name in one.question.groups:
            groups[kind][name].append(one.is_right[measures[0]])
    for kind, members in groups.items():
        found[f'by_{kind}'] = {name: accuracy_of(right)['accuracy'] for name, right in members.items()}
    return found


def perplexity_of(answered: Sequence[Answered]) -> float:
    """Returns the perplexity of single answers."""
    return safe_exp(-sum(one.scores['sum'][0] for one in answered) / len(answered))


def accuracy_of(right: Sequence[bool]) -> dict[str, float | None]:
    """Returns the share of right answers, and its standard error: the sample deviation over the root of the count, None
    for one question.
    """
    accuracy = float(np.mean(right))
    error = math.sqrt(accuracy * (1 - accuracy) / (len(right) - 1)) if len(right) > 1 else None
    return {'accuracy': accuracy, 'standard_error': error, 'questions': len(right)}
