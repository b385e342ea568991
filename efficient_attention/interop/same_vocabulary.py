"""Whether the ids of a checkpoint stand for the pieces of a run's tokenizer."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from efficient_attention.data.tokenizers.fixed import fixed_name
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.errors import InputError
from efficient_attention.interop.tokenizer_files import tokenizer_file


def check_same_vocabulary(
    ours: Mapping[str, int] | None,
    tokenizer: Path | None,
    where: Path,
    *,
    is_text_to_text: bool = False,
    is_target: bool = False,
    field: str = 'train.start_from',
) -> None:
    """Refuses a checkpoint whose ids stand for other pieces than the run's, whose rows would go to other tokens.

    Args:
        ours: the run's pieces and their ids, or None.
        tokenizer: the checkpoint's file, or None where it has none.
        where: the checkpoint, for the message.
        is_text_to_text: as `load_tokenizer` takes it.
        is_target: both are of targets.
        field: that names the checkpoint.

    Raises:
        InputError: the ids differ; names the field with which they would not.
    """
    if ours is None or tokenizer is None:
        return
    theirs = load_tokenizer(tokenizer, lowercase=True, is_text_to_text=is_text_to_text).get_vocab()
    same = sum(ours.get(piece) == number for piece, number in theirs.items())
    if same < len(theirs):
        ours_field = 'pairs.target_tokenizer' if is_target else 'data.tokenizer'
        if name := fixed_name(ours):
            advice = f', whose rows are of {name}; start from a model of such rows'
        else:
            advice = f'; add --config.{ours_field}={tokenizer}'
        raise InputError(
            f'{field} {where}: {len(theirs) - same} of its {len(theirs)} ids stand for other pieces in the '
            f'tokenizer of this run{advice}'
        )


def check_combinable(checkpoints: Mapping[Path, str]) -> None:
    """Refuses encoders for one run if no tokenizer fits all of them.

    Args:
        checkpoints: their folders, and the field that names each.

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
