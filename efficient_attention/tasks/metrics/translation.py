"""Scores of generated texts against reference texts: BLEU and chrF by sacreBLEU, and exact match.

Sources: Papineni et al. 2002 (BLEU), Popovic 2015 (chrF), Post 2018, arXiv 1804.08771 (sacreBLEU). Two BLEU scores are
comparable only if their signatures are the same.
"""

from collections.abc import Sequence

from efficient_attention.errors import InputError


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """Returns 'bleu' and 'chrf' (0 to 100) with their sacreBLEU signatures, and 'exact_match' (0 to 1).

    Args:
        hypotheses: detokenised, with their original case.
        references: one per hypothesis.

    Raises:
        InputError: there are no references, or their number differs from the number of hypotheses.
    """
    from sacrebleu.metrics.bleu import BLEU  # imported here, because the import of sacreBLEU's tokenizers is slow
    from sacrebleu.metrics.chrf import CHRF

    if not references or len(hypotheses) != len(references):
        raise InputError(f'there are {len(references)} references for {len(hypotheses)} texts to score')
    scores: dict[str, float | str] = {}
    for name, metric in (('bleu', BLEU()), ('chrf', CHRF())):
        scores[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[f'{name}_signature'] = str(metric.get_signature())
    matches = [ours.strip() == theirs.strip() for ours, theirs in zip(hypotheses, references, strict=True)]
    return scores | {'exact_match': sum(matches) / len(matches)}
