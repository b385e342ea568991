"""Provides the tokenizer that a config names: loads it from a file, or trains it on the training text."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from efficient_attention.config.data import DataConfig
from efficient_attention.data.preparation.cache_folder import file_sha256
from efficient_attention.data.preparation.held_out_documents import HASHES, document_hash
from efficient_attention.data.tokenizers.added_tokens import added_tokens
from efficient_attention.data.tokenizers.byte_level import PAIR
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.plain_text_tokenizer import cut_at_blank_lines
from efficient_attention.data.tokenizers.special_tokens import ROLES, author_tokens, with_sentinels
from efficient_attention.data.tokenizers.training import TRAINERS, train_tokenizer
from efficient_attention.errors import InputError

# A tokenizer is trained on at most this many characters; more text hardly changes a vocabulary.
TRAINING_CHARACTERS = 2**25


def load_config_tokenizer(config: DataConfig, *, is_text_to_text: bool = False) -> Tokenizer | None:
    """Loads the tokenizer file that a config names, as `load_tokenizer` does; returns None if the config asks to train
    a tokenizer.

    Raises:
        InputError: the kind to train is unknown, or the file is no tokenizer.
    """
    kind, is_trained, name = config.tokenizer.partition('train:')
    if not is_trained or kind:
        return load_tokenizer(config.tokenizer, lowercase=config.lowercase, is_text_to_text=is_text_to_text)
    if name not in TRAINERS:
        known = ', '.join(f'train:{trainer}' for trainer in TRAINERS)
        raise InputError(f'data.tokenizer is {config.tokenizer!r}; known: {known}, or a file')
    return None


def tokenizer_identity(config: DataConfig) -> dict[str, Any]:
    """Returns all facts that, together with the text, determine the tokenizer: its kind or a hash of its file, and
    config fields."""
    is_trained, path = config.tokenizer.startswith('train:'), Path(config.tokenizer)
    identity: dict[str, Any] = {
        'tokenizer': config.tokenizer if is_trained else file_sha256(path),
        'suffix': '' if is_trained else path.suffix,
        'vocab_size': config.vocab_size if is_trained else 0,
        'lowercase': config.lowercase,
    }
    if not is_trained and (whole := unsplit_added_tokens(path)):
        identity['whole'] = whole
    if not is_trained and path.name == PAIR[0]:
        identity['merges'] = file_sha256(path.parent / PAIR[1])
    return identity


def unsplit_added_tokens(path: Path) -> list[str]:
    """Returns the tokens that a tokenizer's files add to its vocabulary; these tokens are never split in a text."""
    if path.suffix == '.json' and path.name != PAIR[0]:
        return list(author_tokens(load_tokenizer(path, lowercase=False)))
    roles = {name for names in ROLES.values() for name in names}
    return [one.token.content for one in added_tokens(path.parent) if one.token.content not in roles]


def train_config_tokenizer(
    config: DataConfig, texts: Callable[[], Iterable[str]], characters: int, sentinels: int = 0
) -> Tokenizer:
    """Trains the tokenizer that a config names, on the given texts.

    Args:
        config: `tokenizer`, `vocab_size` and `lowercase` are read.
        texts: reads the training text; of a long text, only a share selected by hash is used.
        characters: length of the whole text.
        sentinels: number of pieces that are T5's sentinels, with the last ids.

    Raises:
        InputError: as `train_tokenizer`, or the sentinels leave no piece for the text.
    """
    if sentinels >= config.vocab_size:
        raise InputError(f'data.vocab_size is {config.vocab_size}, and {sentinels} of its pieces would be sentinels')
    share = min(1.0, TRAINING_CHARACTERS / max(characters, 1))

    def sections() -> Iterator[str]:
        every = (section for text in texts() for section in cut_at_blank_lines(text))
        return (section for section in every if share == 1 or document_hash(section) < share * HASHES)

    kind = config.tokenizer.removeprefix('train:')
    pieces = config.vocab_size - sentinels
    tokenizer = train_tokenizer(kind, sections, vocab_size=pieces, lowercase=config.lowercase)
    return with_sentinels(tokenizer, sentinels) if sentinels else tokenizer
