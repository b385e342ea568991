"""A scorer whose log-probabilities are written down, so that a test knows every score."""

from collections.abc import Mapping, Sequence

from efficient_attention.data.text.text_units import ByteUnits
from efficient_attention.scoring.decoder_scorer import encode_with_units
from efficient_attention.scoring.pairs import Pair, PairTokens, Scorer

BYTES = ByteUnits()


class FixedScorer(Scorer):
    """Gives a continuation the log-probability of the last key of `log_probs` that its text ends with, else -100; a
    pair is greedy above -1. Generates the texts of `says`.
    """

    name = 'fixed'
    reads_windows = True

    def __init__(self, log_probs: Mapping[str, float], *, longest: int | None = None, says: Sequence[str] = ()) -> None:
        self.log_probs, self.longest, self.says = log_probs, longest, says
        self.seen: list[str] = []

    def encode(self, pair: Pair) -> PairTokens:
        return encode_with_units(BYTES, pair)

    def is_known(self, text: str) -> bool:
        return 'zzz' not in text

    def score_tokens(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        texts = [bytes([*row.context, *row.continuation]).decode() for row in rows]
        self.seen += texts
        found = [next((self.log_probs[end] for end in self.log_probs if text.endswith(end)), -100.0) for text in texts]
        return [(value, value > -1) for value in found]

    def generate(self, prompts: Sequence[str], most_tokens: Sequence[int]) -> list[str]:
        self.seen += prompts
        self.most = list(most_tokens)
        return list(self.says)[: len(prompts)]
