"""Scores of generated texts against references: BLEU and chrF as sacreBLEU counts them, and exact matches.

Sources: Papineni et al. 2002 (BLEU), Popovic 2015 (chrF), Post 2018, arXiv 1804.08771 (sacreBLEU). A BLEU compares with
another only where both have the same signature.
"""

from collections.abc import Sequence

from efficient_attention.errors import InputError


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """'bleu' and 'chrf', 0 to 100, 'exact_match', 0 to 1, and the signatures of the first two.

    Args:
        hypotheses: detokenised, in their own case.
        references: one for each.

    Raises:
        InputError: there is no reference, or not one for each hypothesis.
    """
    from sacrebleu.metrics.bleu import BLEU  # here: its tokenizers take a while to import
    from sacrebleu.metrics.chrf import CHRF

    if not references or len(hypotheses) != len(references):
        raise InputError(f'there are {len(references)} references for {len(hypotheses)} texts to score')
    scores: dict[str, float | str] = {}
    for name, metric in (('bleu', BLEU()), ('chrf', CHRF())):
        scores[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[f'{name}_signature'] = str(metric.get_signature())
    matches = [ours.strip() == theirs.strip() for ours, theirs in zip(hypotheses, references, strict=True)]
    return scores | {'exact_match': sum(matches) / len(matches)}
