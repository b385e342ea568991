"""Writes small CoNLL-U files, and builds sentences whose attention is known, for the tests of inspection."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from efficient_attention.inspection.dependencies import ReadSentence, Sentence

OLD_DOG = Sentence(('the', 'old', 'dog', 'sleeps'), (2, 2, 3, -1), ('det', 'amod', 'nsubj', 'root'))
KING = Sentence(('a', 'king', 'runs'), (1, 2, -1), ('det', 'nsubj', 'root'))


def write_conllu(path: Path, sentences: Sequence[Sentence]) -> Path:
    """Writes the sentences with a comment, a range of two words and an empty node each; returns the path."""
    lines = []
    for sentence in sentences:
        lines += ['# a comment', '1-2\tfused' + '\t_' * 8]
        for number, (word, head, relation) in enumerate(zip(*sentence, strict=True), 1):
            lines.append('\t'.join([str(number), word, *'____', str(head + 1), relation, *'__']))
        lines += ['1.1\tempty' + '\t_' * 8, '']
    path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
    return path


def random_sentence(rng: np.random.Generator, words: int, heads: int, planted: int) -> ReadSentence:
    """Returns a sentence with random weights; only head number `planted` attends most to each word's syntactic head."""
    order = rng.permutation(words)  # word order[n] depends on word order[m], m < n
    of_word = np.full(words, -1)
    for number in range(1, words):
        of_word[order[number]] = order[rng.integers(number)]
    weights_NWW = rng.dirichlet(np.ones(words), (heads, words)).astype(np.float32)
    is_dependent = of_word >= 0
    weights_NWW[planted, is_dependent] = 0.5 * weights_NWW[planted, is_dependent]
    weights_NWW[planted, np.flatnonzero(is_dependent), of_word[is_dependent]] += 0.5
    names = tuple('root' if head < 0 else 'dep' for head in of_word)
    return ReadSentence(Sentence(('word',) * words, tuple(of_word.tolist()), names), weights_NWW)
