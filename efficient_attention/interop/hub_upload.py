"""Uploads an exported folder to the Hugging Face hub."""

from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError, RunError, missing_extra_error, one_line


def open_hub(name: str) -> Any:
    """Returns the client of the Hugging Face hub.

    Call it before the conversion, so that a missing token or an invalid name is reported early.

    Args:
        name: the name of a repository, such as 'user/model'.

    Raises:
        MissingExtraError: huggingface_hub is not installed.
        InputError: the name is invalid, or there is no token.
    """
    try:
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # imported lazily there
    except ModuleNotFoundError as error:
        raise missing_extra_error('--push', 'export', error) from None
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(f'--push {name}: {one_line(error)}') from None
    if not get_token():
        raise InputError('--push needs a token of the Hugging Face hub: run `hf auth login`, or set HF_TOKEN')
    return HfApi()


def push_folder(hub: Any, folder: Path, name: str) -> str:
    """Uploads a folder to a repository of the hub, and returns the address of the repository.

    A new repository is private.

    Args:
        hub: the result of `open_hub`.
        folder: the folder.
        name: the name of the repository, such as 'user/model'.

    Raises:
        RunError: the hub refuses the upload, or cannot be reached; the folder stays.
    """
    try:
        address = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder)
    except Exception as error:  # errors of the connection come from the HTTP library, which depends on the version
        said = one_line(error)[:300]
        line = f'{folder} is written, but not uploaded to {name}: {said}; try again by: hf upload {name} {folder}'
        raise RunError(line) from None
    return str(address)
