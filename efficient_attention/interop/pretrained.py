"""Opens a trained model from a Hugging Face folder, a compact export, or the workdir of a training run."""

from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, TEXT_TO_TEXT
from efficient_attention.interop.trained_model import Pretrained as Pretrained


def open_pretrained(path: Path, checkpoint: str = '') -> Pretrained:
    """Opens the trained model in a folder or workdir; if the folder has checksums, they are verified.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint: 'last', 'best', a step or 'average-5'; '' = the best if its config names a
            metric, else the last.

    Raises:
        InputError: the folder lacks a readable config.json or safetensors, or differs from its checksums. `params`
            raises InputError if tensors are missing, unexpected or of another shape.
    """
    # Readers of model folders are imported here, so that a run that starts from no checkpoint does not load them.
    from efficient_attention.interop.compact_import import is_compact_folder, read_compact_folder
    from efficient_attention.interop.config_import import read_config_json
    from efficient_attention.interop.export_checksums import verify_export_checksums
    from efficient_attention.interop.huggingface_import import read_folder
    from efficient_attention.interop.safetensors_files import check_tensor_files
    from efficient_attention.interop.workdir_import import read_workdir

    verify_export_checksums(path)
    values = read_config_json(path)
    if 'task' in values:
        return read_workdir(path, checkpoint)
    if checkpoint:
        raise InputError(f'{path} has one set of parameters and no checkpoint {checkpoint!r}: it is no workdir')
    if is_compact_folder(values):
        check_tensor_files(path)
        return read_compact_folder(path, values)
    return read_folder(path, values)


def open_encoder(path: Path, checkpoint: str = '') -> Pretrained:
    """Opens the trained model in a folder, as `open_pretrained` does; raises InputError as `check_encoder` does."""
    pretrained = open_pretrained(path, checkpoint)
    check_encoder(path, pretrained)
    return pretrained


def check_encoder(path: Path, pretrained: Pretrained) -> None:
    """Raises InputError if a model has a decoder; `path` is named in the message."""
    check_no_language_model(path, pretrained)
    if pretrained.problem == TEXT_TO_TEXT:
        raise InputError(f'{path} holds an encoder-decoder; a model with only an encoder is needed')


def check_no_language_model(path: Path, pretrained: Pretrained) -> None:
    """Raises InputError if a model is only a decoder; `path` is named in the message."""
    if pretrained.problem == LANGUAGE_MODELLING:
        raise InputError(
            f'{path} holds a language model, and an encoder or an encoder-decoder is needed; the command `generate` '
            "and the pipeline 'text-generation' generate text with a language model"
        )


def check_convertible(pretrained: Pretrained, how: str) -> None:
    """Raises InputError if a model is only a decoder, because such a model cannot be changed before an export.

    `how` names the change, such as 'quantized'.
    """
    if pretrained.problem == LANGUAGE_MODELLING:
        raise InputError(f'a language model cannot be {how}; only models with an encoder can')


def check_not_quantized(pretrained: Pretrained) -> None:
    """Raises InputError if a model holds int8 codes, because the caller's conversion would lose them."""
    if pretrained.codes is not None and pretrained.model.quantization != 'none':
        raise InputError(
            f'the model holds int8 codes already, with model.quantization {pretrained.model.quantization!r}; use the '
            'model that it was made from'
        )
