"""Tests uploads to the hub with a stand-in of its interface; nothing is sent."""

from pathlib import Path

import pytest

from efficient_attention.errors import InputError, RunError
from efficient_attention.interop.hub_upload import open_hub, push_folder


class Hub:
    """A stand-in of `HfApi` that records its calls; `fails` raises at the upload."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.calls = fails, []

    def create_repo(self, repo_id: str, **options: object) -> str:
        self.calls.append(('create_repo', repo_id, options))
        return f'https://hub/{repo_id}'

    def upload_folder(self, **options: object) -> None:
        if self.fails:
            raise ConnectionError('the network\nis unreachable')
        self.calls.append(('upload_folder', options))


def test_a_folder_is_uploaded_to_a_private_repository(tmp_path: Path):
    hub = Hub()
    assert push_folder(hub, tmp_path, 'me/mine') == 'https://hub/me/mine'
    assert hub.calls == [
        ('create_repo', 'me/mine', {'private': True, 'exist_ok': True}),
        ('upload_folder', {'repo_id': 'me/mine', 'folder_path': tmp_path}),
    ]


def test_a_missing_network_gives_one_line_and_the_command_to_try_again(tmp_path: Path):
    with pytest.raises(RunError) as error:
        push_folder(Hub(fails=True), tmp_path, 'me/mine')
    assert str(error.value) == (
        f'{tmp_path} is written, but not uploaded to me/mine: the network is unreachable; '
        f'try again by: hf upload me/mine {tmp_path}'
    )


def test_a_bad_name_or_a_missing_token_is_found_before_any_work(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match='--push a/b/c: '):
        open_hub('a/b/c')
    monkeypatch.setattr('huggingface_hub.get_token', lambda: None)
    with pytest.raises(InputError, match='--push needs a token of the Hugging Face hub'):
        open_hub('me/mine')
