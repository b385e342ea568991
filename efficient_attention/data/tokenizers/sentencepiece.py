"""Converts SentencePiece models to Hugging Face tokenizers: unigram models (ALBERT, T5) and BPE models (Llama).

Pieces, scores and the precompiled character map are the same, so both libraries give the same pieces. Like
SentencePiece, a reader of the tokenizer (plain_text_tokenizer.py) treats control symbols such as '</s>' in a text as
plain text.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from efficient_attention.data.tokenizers.added_tokens import FLAGS, AddedTokenEntry, with_added
from efficient_attention.data.tokenizers.special_tokens import ROLES, SENTINEL, SENTINELS, with_sentinels, with_specials
from efficient_attention.errors import InputError

UNIGRAM, BPE = 1, 2  # values of `trainer_spec.model_type` in a SentencePiece model
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # piece types
UNMATCHED = '\U000f0000'  # prefix for names of pieces that must never match a text
MODEL_TYPES = {1: 'unigram', 2: 'bpe', 3: 'word', 4: 'char'}


def read_sentencepiece(
    data: bytes,
    name: str,
    *,
    lowercase: bool,
    is_text_to_text: bool = False,
    added: Sequence[AddedTokenEntry] = (),
    sentinels: int = SENTINELS,
) -> Tokenizer:
    """Converts the bytes of a SentencePiece `.model` file to a Hugging Face tokenizer.

    A special token that the model lacks (T5 has no [CLS] and no [MASK]) is added at the end of the vocabulary.

    Args:
        data: the file's bytes.
        name: the file, for messages.
        lowercase: apply ALBERT's steps before the model's own: quotes, NFKD, accents stripped, lower case.
        is_text_to_text: a model with an end token and no begin token gets only T5's sentinels.
        added: tokens whose ids follow the pieces, or T5's sentinels; missing special tokens come last.
        sentinels: number of T5's sentinels.

    Raises:
        InputError: not a SentencePiece model, a model of another type, or a model without an unknown piece.
    """
    model = _parse_sentencepiece_model(data, name)
    unknown = [id for id, piece in enumerate(model.pieces) if piece.type == UNKNOWN]
    if len(unknown) != 1 or model.pieces[unknown[0]].piece not in ROLES['unknown']:
        raise InputError(f'tokenizer {name}: a SentencePiece model must have one unknown piece, {ROLES["unknown"][-1]}')
    has_prefix, removes_spaces = (
        model.normalizer_spec.add_dummy_prefix,
        model.normalizer_spec.remove_extra_whitespaces,
    )
    tokenizer = Tokenizer(_bpe(model, name) if model.trainer_spec.model_type == BPE else _unigram(model, unknown[0]))
    steps = (albert_normalizers() if lowercase else []) + _model_normalizers(model)
    scheme, split = 'always' if has_prefix else 'never', not any('▁' in piece.piece[1:] for piece in model.pieces)
    if removes_spaces:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    else:  # Without this step, Metaspace would take a space at the start of a text for its own mark.
        steps += [normalizers.Prepend('▁')] if has_prefix else []
        steps.append(normalizers.Replace(' ', '▁'))
        if split:
            tokenizer.pre_tokenizer = pre_tokenizers.Split('▁', 'merged_with_next')
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = _decoder(scheme, split=split, has_bytes=model.trainer_spec.byte_fallback)
    known = {piece.piece for piece in model.pieces}
    if is_text_to_text and 'sep' in _find_special_tokens(known) and 'cls' not in _find_special_tokens(known):
        return _with_sentinels(tokenizer, model, _absorb_spaces_before_added(added, model), sentinels)
    return _with_role_tokens(tokenizer, model, _absorb_spaces_before_added(added, model))


def albert_normalizers() -> list[normalizers.Normalizer]:
    """Returns the normalisation steps of ALBERT's code (Lan et al. 2019, arXiv:1909.11942): quotes, accents, lower
    case."""
    return [
        normalizers.Replace('``', '"'),
        normalizers.Replace("''", '"'),
        normalizers.NFKD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
    ]


def _parse_sentencepiece_model(data: bytes, name: str) -> Any:
    # protobuf generates this class
    model: Any = importlib.import_module('sentencepiece.sentencepiece_model_pb2').ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # protobuf raises a DecodeError, whose class is not public
        raise InputError(f'tokenizer {name}: not a SentencePiece model') from None
    if not model.pieces:
        raise InputError(f'tokenizer {name}: not a SentencePiece model (it has no pieces)')
    if model.trainer_spec.model_type not in (UNIGRAM, BPE):
        kind = MODEL_TYPES.get(model.trainer_spec.model_type, 'unknown')
        raise InputError(f'tokenizer {name}: a SentencePiece model of type {kind}; known: unigram, bpe')
    if model.trainer_spec.treat_whitespace_as_suffix or not model.normalizer_spec.escape_whitespaces:
        raise InputError(f'tokenizer {name}: a SentencePiece model that does not mark word starts with ▁')
    return model


def _unigram(model: Any, unknown: int) -> models.Unigram:
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    return models.Unigram(pieces, unknown, model.trainer_spec.byte_fallback)


def _bpe(model: Any, name: str) -> models.BPE:
    """Returns a BPE model that merges any two neighbours that form a piece; the piece with the highest score is merged
    first."""
    if any(piece.type == UNUSED for piece in model.pieces):
        raise InputError(f'tokenizer {name}: a SentencePiece model of type bpe with unused pieces, which are not read')
    ids = {piece.piece: id for id, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type in (NORMAL, USER_DEFINED)}
    merges = [
        (piece[:middle], piece[middle:])
        for piece in sorted(scores, key=lambda piece: -scores[piece])
        for middle in range(1, len(piece))
        if piece[:middle] in scores and piece[middle:] in scores
    ]
    unknown = next(piece.piece for piece in model.pieces if piece.type == UNKNOWN)
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.trainer_spec.byte_fallback)


def _decoder(scheme: str, *, split: bool, has_bytes: bool) -> decoders.Decoder:
    if not has_bytes:
        return decoders.Metaspace(prepend_scheme=scheme, split=split)
    steps: list[decoders.Decoder] = [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(' ', 1, 0)] if scheme == 'always' else []))


def _model_normalizers(model: Any) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap))
    if model.normalizer_spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(' {2,}'), ' ')]
    return steps


def _find_special_tokens(known: set[str]) -> dict[str, str]:
    return {role: next(name for name in ROLES[role] if name in known) for role in ROLES if known & set(ROLES[role])}


def _absorb_spaces_before_added(added: Sequence[AddedTokenEntry], model: Any) -> list[AddedTokenEntry]:
    """Changes added tokens so that a space before such a token does not become a separate piece; returns the changed
    tokens.

    If the model removes spaces, a token includes the space before it. Otherwise tokens are not normalized, because the
    model's mark at the start of a text would become part of a token.
    """
    is_spaced = bool(model.normalizer_spec.remove_extra_whitespaces)
    found = []
    for one in added:
        token = one.token
        flags = {flag: getattr(token, flag) for flag in FLAGS} | {'lstrip': token.lstrip or is_spaced}
        flags['normalized'] &= is_spaced
        found.append(dataclasses.replace(one, token=AddedToken(token.content, **flags)))
    return found


def _with_sentinels(tokenizer: Tokenizer, model: Any, added: list[AddedTokenEntry], sentinels: int) -> Tokenizer:
    """Adds T5's special tokens: sentinels follow the pieces in reverse order, and a text ends with '</s>' but has no
    start token.

    If the added tokens or the pieces (mT5) have sentinels, no others are added.
    """
    control = [piece.piece for piece in model.pieces if piece.type == CONTROL]
    roles = _find_special_tokens({piece.piece for piece in model.pieces})
    with_specials(tokenizer, [*dict.fromkeys([*control, *roles.values()])])
    first = SENTINEL.format(0)
    if not any(first in text for text in (*(one.token.content for one in added), *tokenizer.get_vocab())):
        with_sentinels(tokenizer, sentinels)
    with_added(tokenizer, added)
    end = roles['sep']
    ids = [(end, tokenizer.token_to_id(end))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f'$A {end}', pair=f'$A {end} $B {end}', special_tokens=ids
    )
    return tokenizer


def _with_role_tokens(tokenizer: Tokenizer, model: Any, added: list[AddedTokenEntry]) -> Tokenizer:
    control = [piece.piece for piece in model.pieces if piece.type == CONTROL]
    user_defined = [piece.piece for piece in model.pieces if piece.type == USER_DEFINED]
    own = _find_special_tokens({piece.piece for piece in model.pieces})
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in user_defined if piece not in own.values()])
    with_specials(tokenizer, [*(name for name in control if name not in own.values()), *own.values()])
    found = _find_special_tokens(set(with_added(tokenizer, added).get_vocab())) | own
    return with_specials(tokenizer, [found.get(role, ROLES[role][0]) for role in ROLES])


def piece_splitter(data: bytes, name: str) -> Tokenizer:
    """Returns a tokenizer that splits texts into the pieces of a SentencePiece unigram model, without special tokens.

    Text that no piece covers becomes a token. The ids have no meaning: a separate vocabulary has the ids of the pieces.

    Raises:
        InputError: not a unigram model, or a model that keeps repeated spaces.
    """
    model = _parse_sentencepiece_model(data, name)
    is_unigram, spec = model.trainer_spec.model_type == UNIGRAM, model.normalizer_spec
    if not is_unigram or not spec.remove_extra_whitespaces:
        raise InputError(f'tokenizer {name}: known: unigram models that merge repeated spaces into one')
    unread = (UNKNOWN, CONTROL, UNUSED)  # SentencePiece never finds pieces of these types in a text.
    pieces = [
        (f'{UNMATCHED}{id}' if piece.type in unread else piece.piece, _score(piece, model))
        for id, piece in enumerate(model.pieces)
    ]
    unknown = next((id for id, piece in enumerate(model.pieces) if piece.type == UNKNOWN), None)
    tokenizer = Tokenizer(models.Unigram(pieces, unknown, model.trainer_spec.byte_fallback))
    tokenizer.normalizer = normalizers.Sequence(_model_normalizers(model))
    scheme = 'always' if spec.add_dummy_prefix else 'never'
    split = model.trainer_spec.split_by_whitespace
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    return tokenizer


def _score(piece: Any, model: Any) -> float:
    """Returns a piece's score; a user-defined piece has a higher score than all others, as in SentencePiece's
    unigram_model.cc."""
    if piece.type != USER_DEFINED:
        return piece.score
    highest = max(other.score for other in model.pieces if other.type == NORMAL)
    return len(piece.piece.encode()) * highest - 0.1
