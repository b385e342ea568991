"""Scores texts with an n-gram model: a baseline that a trained model must beat on the same problem."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.data.text.text_units import TextUnits
from efficient_attention.errors import InputError
from efficient_attention.inference.ngram_language_model import (
    NgramCounts,
    count_ngrams,
    next_token_probabilities,
    token_bits,
)
from efficient_attention.interop.config_import import read_config_json
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING
from efficient_attention.scoring.decoder_scorer import UnitsScorer, encode_with_units, first_line
from efficient_attention.scoring.pairs import Pair, PairTokens, TextScore, number_unique, text_sizes
from efficient_attention.workdir.config_file import read_config


class NgramScorer(UnitsScorer):
    """Scores texts with an interpolated n-gram model (inference/ngram_language_model.py).

    Args:
        orders: the counts of all 1-grams to n-grams.
        units: the text units of the counts.
        name: names the model in reports.
    """

    def __init__(self, orders: list[NgramCounts], units: TextUnits, name: str = '') -> None:
        self.orders, self.units, self.name = orders, units, name or f'{len(orders)}-gram'
        self.unknown = units.unknown

    def score_tokens(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        """Returns each row's log-probability and whether its tokens are the most probable ones."""
        unique, places = number_unique(rows)
        found = [self._score_row(row) for row in unique]
        return [found[place] for place in places]

    def _score_row(self, row: PairTokens) -> tuple[float, bool]:
        ids, total, is_greedy = [*row.context, *row.continuation], 0.0, True
        for place in range(len(row.context), len(ids)):
            before = ids[max(0, place - len(self.orders) + 1) : place]
            probabilities_V = next_token_probabilities(self.orders, before, self.units.size)
            total += float(np.log(probabilities_V[ids[place]]))
            is_greedy &= int(probabilities_V.argmax()) == ids[place]
        return total, is_greedy

    def score_texts(self, texts: Sequence[str], *, context: int = 0, stride: int = 0) -> list[TextScore]:
        """Returns the score of each whole text; windows have no effect, because an n-gram sees n - 1 tokens."""
        del context, stride
        found = []
        for text in texts:
            row = self.encode(Pair('', text))
            ids = np.array([*row.context, *row.continuation])
            bits = token_bits(self.orders, ids, self.units.size)[len(row.context) - 1 :]
            unknown = row.continuation.count(self.unknown)
            found.append(TextScore(float(-bits.sum() * np.log(2)), len(bits), *text_sizes(text), unknown))
        return found

    def generate(self, prompts: Sequence[str], most_tokens: Sequence[int]) -> list[str]:
        """Returns what greedy decoding adds to each prompt, up to the end of the line or the prompt's most tokens."""
        stops, found = set(self.line_ends), []
        for prompt, max_tokens in zip(prompts, most_tokens, strict=True):
            ids, added = list(encode_with_units(self.units, Pair('', prompt)).continuation), 0
            while added < max_tokens and (not added or ids[-1] not in stops):
                before = ids[max(0, len(ids) - len(self.orders) + 1) :]
                ids.append(int(next_token_probabilities(self.orders, before, self.units.size).argmax()))
                added += 1
            found.append(first_line(self.units, ids[len(ids) - added :]))
        return found


def ngram_scorer_of_run(workdir: Path, order: int) -> NgramScorer:
    """Returns the n-gram model of a language-modelling run's training text, in the run's units.

    Raises:
        InputError: the folder has no run of a text language model, or its text has changed or is missing.
    """
    if 'task' not in read_config_json(workdir):
        raise InputError(f'{workdir}: --ngram needs the workdir of a training run, which names its training text')
    config = read_config(workdir)
    if config.task != LANGUAGE_MODELLING or config.data.units == 'pixels':
        raise InputError(f'{workdir}: n-grams are counted in the training text of a language model; this run has none')
    try:
        text = prepare_text(config.data)
    except InputError as error:
        where = 'call the command where the run was trained, if its paths are relative'
        raise InputError(f'--ngram reads the training text of {workdir} again: {error}; {where}') from None
    return NgramScorer(count_ngrams(text.splits['train'], text.units.size, order), text.units)
