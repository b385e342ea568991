"""Opens a trained model: a Hugging Face folder, one of a small model, or a workdir."""

from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.interop.config_fields import TEXT_TO_TEXT
from efficient_attention.interop.trained_model import Pretrained as Pretrained


def open_pretrained(path: Path, checkpoint: str = '') -> Pretrained:
    """The checkpoint of a Hugging Face folder or of a workdir; compares a folder that has a seal with it.

    Args:
        path: the folder.
        checkpoint: of a workdir: 'last', 'best', a step or 'average-5'; '' = best where its config names a metric.

    Raises:
        InputError: the folder has no config.json, or one that we do not follow, or no safetensors, or differs from its
            seal; `params` raises it where tensors are missing, left over or wrong-sized.
    """
    # Here and not at the top of the file: a run that starts from no checkpoint loads none of the readers.
    from efficient_attention.interop.config_in import read_values
    from efficient_attention.interop.export_seal import check_export
    from efficient_attention.interop.folder_in import read_folder
    from efficient_attention.interop.from_workdir import read_workdir
    from efficient_attention.interop.safetensors_files import check_tensor_files
    from efficient_attention.interop.small_folder import is_small, read_small_folder

    check_export(path)
    values = read_values(path)
    if 'task' in values:
        return read_workdir(path, checkpoint)
    if checkpoint:
        raise InputError(f'{path} has one set of parameters and no checkpoint {checkpoint!r}: it is no workdir')
    if is_small(values):
        check_tensor_files(path)
        return read_small_folder(path, values)
    return read_folder(path, values)


def open_encoder(path: Path, checkpoint: str = '') -> Pretrained:
    """As `open_pretrained`, of what has no decoder; raises InputError for an encoder-decoder too."""
    pretrained = open_pretrained(path, checkpoint)
    check_encoder(path, pretrained)
    return pretrained


def check_encoder(path: Path, pretrained: Pretrained) -> None:
    """Raises InputError for an encoder-decoder; `path` is for the message."""
    if pretrained.problem == TEXT_TO_TEXT:
        raise InputError(f'{path} holds an encoder-decoder, and an encoder alone is needed')


def check_no_codes(pretrained: Pretrained) -> None:
    """Raises InputError where a model's numbers are codes, which another form of it would undo."""
    if pretrained.codes is not None and pretrained.model.quantization != 'none':
        raise InputError(
            f'it holds codes already, with model.quantization {pretrained.model.quantization!r}; take the model that '
            'it was made of'
        )
