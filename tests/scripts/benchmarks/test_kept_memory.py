"""Tests that three allocator settings are measured in turn, each in a separate process, and that medians are
printed.
"""

import json

import pytest

from efficient_attention.processes.allocator import SWITCH
from scripts.benchmarks import kept_memory as script


def test_ways_take_turns_and_their_medians_are_shown(monkeypatch: pytest.MonkeyPatch, capsys):
    asked = []

    def figures_of(way: str, shape: dict) -> dict:
        asked.append(way)
        assert (shape['rows'], shape['length'], shape['masked']) == (2, 64, 10)
        seconds = {'default': 4.0, 'unlimited': 3.0, 'limited': 3.5}[way] + len(asked) // 4
        return {'seconds': [seconds, 9.0, 0.0], 'peak_bytes': 5e9, 'resident_bytes': 2e9}

    monkeypatch.setattr(script, 'run_measurement_process', figures_of)
    monkeypatch.setattr('sys.argv', ['script', '--rows', '2', '--length', '64', '--rounds', '2'])
    script.main()
    assert asked == [*sorted(script.WAYS), *sorted(script.WAYS, reverse=True)]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])['ways']
    assert found['default'] == {'step_seconds': 4.5, 'peak_gb': 5.0, 'resident_gb': 2.0}
    assert found['limited']['step_seconds'] == 4.0


def test_a_process_gets_its_way_and_its_failure_is_said(monkeypatch: pytest.MonkeyPatch):
    program = 'import json, os, sys; print(json.dumps([os.environ[{!r}], sys.argv[1]])); sys.exit({})'
    monkeypatch.setattr(script, 'PROGRAM', program.format(SWITCH, 0))
    assert script.run_measurement_process('limited', {'rows': 3}) == ['limited', '{"rows": 3}']
    monkeypatch.setattr(script, 'PROGRAM', 'raise SystemExit("no memory")')
    with pytest.raises(script.RunError, match='^default: no memory'):
        script.run_measurement_process('default', {})
