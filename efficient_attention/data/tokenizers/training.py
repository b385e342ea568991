"""Trains WordPiece, Unigram and byte-level BPE vocabularies; the same texts produce the same file, bit for bit.

Hugging Face's trainers count words in hash maps whose order changes from run to run. This order affects the ids of
WordPiece's '##' characters and the last digits of Unigram's scores, so this file sorts both.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from efficient_attention.data.tokenizers.sentencepiece import albert_normalizers
from efficient_attention.data.tokenizers.special_tokens import BERT_SPECIALS, with_special_tokens
from efficient_attention.data.tokenizers.wordpiece import bert_normalizer, wordpiece_tokenizer
from efficient_attention.errors import InputError

UNIGRAM_SPECIALS = ('<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]')
# share of the texts' characters that get a piece; rarer characters are unknown, as in SentencePiece
CHARACTER_COVERAGE = 0.9999
# At most 1 in 3 pieces is a single character. WordPiece has most characters twice, with and without '##'.
CHARACTER_SHARE = 3
# No piece mixes letters, digits and signs, as in SentencePiece.
RUNS = r'▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^▁\p{L}\p{M}\p{N}]+|▁'
SCORE_DIGITS = 3  # number of decimals to which log probabilities are rounded; they differ by about 1e-10 between runs
UNUSED = re.compile(r'\[unused\d+\]')
# The Unigram trainer adds single characters at the end; their scores differ by this step from one to the next.
LADDER = 1e-4


def train_tokenizer(kind: str, texts: Callable[[], Iterable[str]], *, vocab_size: int, lowercase: bool) -> Tokenizer:
    """Trains a tokenizer with exactly `vocab_size` pieces, of which ids 0 to 4 are special tokens.

    If the corpus is too small, '[unused0]', '[unused1]', ... fill the vocabulary, as in BERT's.

    Args:
        kind: 'wordpiece' (BERT), 'unigram' (ALBERT) or 'bpe' (byte level, as GPT-2).
        texts: called twice; yields the training texts, best in parts of a few thousand characters.
        vocab_size: pieces, special ones included.
        lowercase: lower-case and strip accents first.

    Raises:
        InputError: unknown kind, or a vocabulary too small for the special tokens and the characters.
    """
    if kind not in TRAINERS:
        raise InputError(f'data.tokenizer is train:{kind}; known: {", ".join(f"train:{name}" for name in TRAINERS)}')
    tokenizer = TRAINERS[kind](texts, vocab_size, lowercase)
    if tokenizer.get_vocab_size() != vocab_size:
        raise InputError(f'data.vocab_size is {vocab_size}; {tokenizer.get_vocab_size()} is the least for this corpus')
    return tokenizer


def _train_wordpiece(texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool) -> Tokenizer:
    normalizer, splitter = bert_normalizer(lowercase), pre_tokenizers.BertPreTokenizer()
    kept, rare = _alphabet(texts(), normalizer, vocab_size)
    # Punctuation never continues a word.
    continuing = [f'##{c}' for c in kept if len(splitter.pre_tokenize_str(f'a{c}')) == 1]
    tokenizer = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        # The trainer fixes only the ids of this list. So the list includes `continuing`, whose pieces are not special.
        special_tokens=[*BERT_SPECIALS, *continuing],
    )
    tokenizer.train_from_iterator(_remove_rare_characters(rare, texts()), trainer)
    return wordpiece_tokenizer(_fill_vocabulary(tokenizer.get_vocab(), vocab_size), lowercase=lowercase)


def _train_bpe(texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(albert_normalizers()[2:] if lowercase else [normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=list(BERT_SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts(), trainer)
    missing = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in _unused_pieces(missing)])
    return with_special_tokens(tokenizer, list(BERT_SPECIALS))


def _train_unigram(texts: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool) -> Tokenizer:
    steps = albert_normalizers() if lowercase else [*albert_normalizers()[:2], normalizers.NFKC()]
    normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(r'\s+'), ' '), normalizers.Strip()])
    _, rare = _alphabet(texts(), normalizer, vocab_size)
    learner = Tokenizer(models.Unigram())
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(RUNS), 'isolated')])
    learner.normalizer, learner.pre_tokenizer = normalizer, splitter
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=list(UNIGRAM_SPECIALS), unk_token='<unk>'
    )
    learner.train_from_iterator(_remove_rare_characters(rare, texts()), trainer)
    pieces = _canonical_pieces(json.loads(learner.to_str())['model']['vocab'], vocab_size)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=UNIGRAM_SPECIALS.index('<unk>')))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.Metaspace()
    return with_special_tokens(tokenizer, list(UNIGRAM_SPECIALS))


TRAINERS: dict[str, Callable[[Callable[[], Iterable[str]], int, bool], Tokenizer]] = {
    'wordpiece': _train_wordpiece,
    'unigram': _train_unigram,
    'bpe': _train_bpe,
}


def _alphabet(
    texts: Iterable[str], normalizer: normalizers.Normalizer, vocab_size: int
) -> tuple[list[str], re.Pattern[str] | None]:
    """Returns the sorted normalised characters that get a piece, and a regular expression for the raw characters that
    get none."""
    raw = _count_characters(texts)
    results = {character: normalizer.normalize_str(f'0{character}0')[1:-1].replace(' ', '') for character in raw}
    counts: dict[str, int] = {}
    for character, result in results.items():
        for piece in result:
            counts[piece] = counts.get(piece, 0) + raw[character]
    kept = _most_frequent(counts, vocab_size // CHARACTER_SHARE)
    rare = ''.join(re.escape(character) for character, result in results.items() if not kept.issuperset(result))
    return sorted(kept), re.compile(f'[{rare}]') if rare else None


def _count_characters(texts: Iterable[str]) -> dict[str, int]:
    counts = np.zeros(0x110000, np.int64)
    for text in texts:
        points, times = np.unique(np.frombuffer(text.encode('utf-32-le'), np.uint32), return_counts=True)
        counts[points] += times
    return {chr(point): int(counts[point]) for point in np.flatnonzero(counts)}


def _most_frequent(counts: dict[str, int], limit: int) -> set[str]:
    total, covered, kept = sum(counts.values()), 0, set()
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]:
        if covered >= CHARACTER_COVERAGE * total:
            break
        kept.add(character)
        covered += count
    return kept


def _remove_rare_characters(rare: re.Pattern[str] | None, texts: Iterable[str]) -> Iterator[str]:
    return (rare.sub(' ', text) if rare else text for text in texts)


def _fill_vocabulary(vocabulary: dict[str, int], vocab_size: int) -> dict[str, int]:
    return vocabulary | {
        name: len(vocabulary) + i for i, name in enumerate(_unused_pieces(vocab_size - len(vocabulary)))
    }


def _unused_pieces(count: int) -> list[str]:
    return [f'[unused{index}]' for index in range(count)]


def unused_ids(pieces: dict[str, int]) -> list[int]:
    """Returns the ids of the pieces '[unused0]', '[unused1]', ..., which only fill a vocabulary and occur in no
    text."""
    return [id for piece, id in pieces.items() if UNUSED.fullmatch(piece)]


def _canonical_pieces(pieces: Sequence[Sequence], vocab_size: int) -> list[tuple[str, float]]:
    """Returns the trained pieces in a reproducible order, special pieces first, with rounded scores."""
    scores = {piece: float(score) for piece, score in pieces[len(UNIGRAM_SPECIALS) :]}
    lowest = min(scores.values(), default=0.0)
    singles = [piece for piece in scores if len(piece) == 1]
    ladder = sorted(piece for piece in singles if scores[piece] < lowest + LADDER * (len(singles) + 1))
    # The trainer scores single characters in the order of a hash map, which changes from run to run.
    steps = sorted(scores[piece] for piece in ladder)
    scores |= dict(zip(ladder, steps, strict=True))
    rounded = sorted((-round(score, SCORE_DIGITS), piece) for piece, score in scores.items())
    special = [(name, 0.0) for name in UNIGRAM_SPECIALS]
    unused = [(name, round(lowest, SCORE_DIGITS) - 1) for name in _unused_pieces(vocab_size - len(pieces))]
    return special + [(piece, -cost) for cost, piece in rounded] + unused
