"""Finds and copies the tokenizer files of model folders, and checks that these tokenizers and a run give tokens the
same ids.
"""

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.data.tokenizers.added_tokens import ADDED, SETTINGS, SPECIAL_MAP, read_tokenizer_settings
from efficient_attention.data.tokenizers.byte_level import PAIR
from efficient_attention.data.tokenizers.fixed_vocabulary import fixed_vocabulary_name
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.marian import FILES as MARIAN
from efficient_attention.data.tokenizers.marian import is_marian, marian_vocabulary
from efficient_attention.data.tokenizers.special_tokens import tokens_by_role
from efficient_attention.errors import InputError

# The first of these files that exists is the tokenizer. If none exists, the tokenizer is a SentencePiece model.
MAIN = ('tokenizer.json', 'vocab.txt')
CARRIED = (*MAIN, *PAIR, *MARIAN[:2], SETTINGS, SPECIAL_MAP, ADDED)
PIECES = '*.model'
CASED = ('big_bird', 't5', 'mt5')  # The SentencePiece models of these families are case-sensitive.
RENUMBERED = ('marian', 'pegasus')  # The token ids of these families differ from the ids in their SentencePiece models.
THEIR_ROLES = {'pad': 'pad_token', 'unknown': 'unk_token', 'cls': 'cls_token', 'sep': 'sep_token', 'mask': 'mask_token'}


def tokenizer_file(folder: Path) -> Path | None:
    """Returns a folder's tokenizer file: the first of tokenizer.json, vocab.txt, Marian's source.spm, `*.model` and
    vocab.json; None if there is none.

    source.spm counts only with Marian's other files, vocab.json only with merges.txt.
    """
    names = [folder / name for name in MAIN]
    if all((folder / name).is_file() for name in MARIAN):
        names.append(folder / MARIAN[0])
    names += sorted(folder.glob(PIECES))
    if all((folder / name).is_file() for name in PAIR):
        names.append(folder / PAIR[0])
    return next((path for path in names if path.is_file()), None)


def is_lowercase(folder: Path, model_type: str = '') -> bool:
    """Returns whether a model folder's tokenizer lower-cases text, as its tokenizer_config.json says. The default is
    True, except for `CASED` families.
    """
    file = tokenizer_file(folder)
    is_cased = model_type in CASED and file is not None and file.suffix == '.model'
    return bool(read_tokenizer_settings(folder).get('do_lower_case', not is_cased))


def check_piece_ids(family: str, tokenizer: Path) -> None:
    """Raises InputError if models of this family use other token ids than their SentencePiece file."""
    if family in RENUMBERED and tokenizer.suffix == PIECES[1:]:
        released = f', or the released {", ".join(MARIAN)}' if family == 'marian' else ''
        raise InputError(
            f'tokenizer {tokenizer}: {family} models use other ids than this file; give a {MAIN[0]}, as '
            f'transformers writes it{released}'
        )


def load_piece_tokenizer(tokenizer: Path, *, lowercase: bool) -> Tokenizer:
    """Returns an encoder-decoder's tokenizer, with the token ids that its models use; raises InputError as
    `load_tokenizer` does.
    """
    if is_marian(tokenizer):
        return marian_vocabulary(tokenizer.parent)
    return load_tokenizer(tokenizer, lowercase=lowercase, is_text_to_text=True)


def copy_tokenizer(
    source: Path | None, folder: Path, longest: int, *, has_types: bool = True, written: str = ''
) -> None:
    """Copies a tokenizer and its related files to a folder. If there is no settings file, writes the settings that
    transformers needs.

    Args:
        source: a file found by `tokenizer_file`; None = no tokenizer.
        folder: the destination.
        longest: most tokens per row.
        has_types: the model reads token types, so transformers' tokenizer must return them.
        written: text of a tokenizer.json that replaces the source's; '' = copy the source.
    """
    if source is None:
        return
    for path in (source, source.parent / MAIN[0], source.parent / SETTINGS):
        # The files are checked before they are copied, so that an error names the original file.
        check_tokenizer_json(path)
    names = [source.parent / name for name in CARRIED] + list(source.parent.glob(PIECES))
    for path in names:
        if path.is_file() and path.parent != folder:
            shutil.copyfile(path, folder / path.name)
    if not (folder / source.name).is_file():  # A user's tokenizer file without a standard name is copied here.
        shutil.copyfile(source, folder / {'.txt': MAIN[1], '.json': MAIN[0]}.get(source.suffix, source.name))
    if source.name == PAIR[0] and not (folder / MAIN[0]).is_file():
        written = written or load_tokenizer(source, lowercase=False).to_str(pretty=True)
    if written:
        (folder / MAIN[0]).write_text(written, encoding='utf-8')
    settings = read_tokenizer_settings(folder)
    if not settings and (folder / MAIN[0]).is_file():
        inputs = ['input_ids', *(['token_type_ids'] if has_types else []), 'attention_mask']
        settings = {'tokenizer_class': 'PreTrainedTokenizerFast', 'model_input_names': inputs}
        settings |= special_names(main_tokenizer_json(source) or folder / MAIN[0])
    if settings:
        settings['model_max_length'] = longest
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')


def main_tokenizer_json(source: Path) -> Path | None:
    """Returns the path of the tokenizer.json that is copied, which may have another file name; None for other kinds of
    tokenizer.
    """
    beside = source.parent / MAIN[0]
    if beside.is_file():
        return beside
    return source if source.suffix == '.json' and source.name != PAIR[0] else None


def check_tokenizer_json(path: Path) -> None:
    """Raises InputError if a tokenizer's JSON file is truncated or not JSON."""
    if path.suffix == '.json' and path.is_file():
        try:
            read_json_file(path)
        except ValueError as error:
            raise InputError(f'tokenizer {path}: not JSON ({error})') from None


def special_names(path: Path) -> dict[str, str]:
    """Returns the special tokens of a tokenizer.json, under the keys that tokenizer_config.json uses, such as
    'pad_token'.
    """
    found = tokens_by_role(load_tokenizer(path, lowercase=False))
    return {theirs: found[role] for role, theirs in THEIR_ROLES.items() if role in found}


def padding_id(path: Path) -> int | None:
    """Returns the id of the padding token in a tokenizer.json or vocab.json; None if there is no padding token."""
    tokenizer = load_tokenizer(path, lowercase=False)
    name = tokens_by_role(tokenizer).get('pad')
    return None if name is None else tokenizer.token_to_id(name)


def check_same_vocabulary(
    ours: Mapping[str, int] | None,
    tokenizer: Path | None,
    where: Path,
    *,
    is_text_to_text: bool = False,
    is_target: bool = False,
    field: str = 'train.start_from',
) -> None:
    """Raises InputError if a checkpoint and the run use the same token ids for different tokens.

    Otherwise the checkpoint's embedding rows would go to the wrong tokens.

    Args:
        ours: the run's pieces and their ids, or None.
        tokenizer: the checkpoint's tokenizer file, or None.
        where: the checkpoint, for the message.
        is_text_to_text: as in `load_tokenizer`.
        is_target: both tokenizers are of targets.
        field: the config field that names the checkpoint.

    Raises:
        InputError: the ids differ; the message names the field that would make them equal.
    """
    if ours is None or tokenizer is None:
        return
    theirs = load_tokenizer(tokenizer, lowercase=True, is_text_to_text=is_text_to_text).get_vocab()
    same = sum(ours.get(piece) == number for piece, number in theirs.items())
    if same < len(theirs):
        ours_field = 'pairs.target_tokenizer' if is_target else 'data.tokenizer'
        if name := fixed_vocabulary_name(ours):
            advice = f' ({name}); start from a model with that tokenizer'
        else:
            advice = f'; add --config.{ours_field}={tokenizer}'
        raise InputError(
            f'{field} {where}: {len(theirs) - same} of its {len(theirs)} ids stand for other pieces in the '
            f'tokenizer of this run{advice}'
        )


def check_combinable(checkpoints: Mapping[Path, str]) -> None:
    """Raises InputError if encoders of one run have different tokens for the same ids, so no tokenizer fits all.

    Args:
        checkpoints: the encoders' folders, and the config field that names each.

    Raises:
        InputError: two of them have different pieces for the same ids, so no tokenizer of the run fits both.
    """
    files = {where: tokenizer_file(where) for where in checkpoints}
    pieces = {where: load_tokenizer(file, lowercase=True).get_vocab() for where, file in files.items() if file}
    for (first, ours), (second, theirs) in itertools.combinations(pieces.items(), 2):
        same = len(ours.items() & theirs.items())
        if same < min(len(ours), len(theirs)):
            raise InputError(
                f'{checkpoints[second]} {second} and {checkpoints[first]} {first} cannot be combined: '
                f'{len(theirs) - same} of the {len(theirs)} ids of the former stand for other pieces in the latter'
            )
