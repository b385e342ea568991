"""Tests that all processes of a run must have the same config and the same profile."""

import sys
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.processes.rendezvous import facts_to_compare
from efficient_attention.programs import train

ROOT = Path(__file__).resolve().parents[2]


class Compared(Exception):
    """Raised instead of the comparison of the facts."""


@pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module
def test_processes_of_a_run_compare_their_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def compare(facts: dict[str, Any], _: object) -> None:
        raise Compared(facts_to_compare(facts))

    monkeypatch.setattr(train, 'multi_host_run_from_flags', compare)
    monkeypatch.setattr(train, 'tune_allocator', lambda: None)
    words = ['train', f'--config={ROOT}/configs/quickstart.py', f'--workdir={tmp_path}/run']
    found = []
    for more in ([], ['--profile=2:3'], ['--profile=2:4']):
        monkeypatch.setattr(sys, 'argv', [*words, *more])
        with pytest.raises(Compared) as error:
            train.main()
        found.append(error.value.args[0])
    assert [facts['--profile'] for facts in found] == [None, [2, 3], [2, 4]]
    assert found[0]['config.train.steps'] == found[1]['config.train.steps']
