"""Tests the comparison of tests/topologies.py on made-up runs. Its real runs take half an hour and are not in the
suite.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import topologies
from tests.topologies import END, MIDDLE, Topology, compared, said_faults, summary

ONE, TWO = Topology(1, 2), Topology(2, 1)
WENT_ON = {(saved, on): f'{saved}-memory-on-{on}' for saved in (ONE, TWO) for on in (ONE, TWO)}


def write_run(workdir: Path, processes: int, steps: range, *, loss: float = 5.0, row: str = 'row') -> None:
    """Writes the files that the comparison reads, for a run with this loss and these rows after the middle step."""
    workdir.mkdir()
    lines = [{'step': step, 'split': 'train', 'loss': loss if step > MIDDLE else 5.0} for step in range(1, END + 1)]
    lines.append({'step': END, 'split': 'held_out', 'causal_lm_loss': 5.5, 'causal_lm_weight': 9.0})
    (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    for number in range(processes):
        share = [0, 1] if processes == 1 else [number]
        rows = [[step, [f'{row} {step} {place}' for place in share]] for step in steps]
        path = workdir / topologies.ROWS.format(number)
        path.write_text(''.join(json.dumps(line) + '\n' for line in rows))


def write_pair(folder: Path, saved: Topology, on: Topology, **made_up: object) -> None:
    """Writes a run that was resumed on another topology, in place of the previous one."""
    shutil.rmtree(folder / WENT_ON[saved, on], ignore_errors=True)
    write_run(folder / WENT_ON[saved, on], on.processes, range(MIDDLE + 1, END + 1), **made_up)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with all runs of two topologies without a fault; the states of their last checkpoints are
    zeros.
    """
    monkeypatch.setattr(topologies, 'last_state', lambda _: {'kernel': np.zeros(2)})
    for topology in (ONE, TWO):
        write_run(tmp_path / f'{topology}-memory', topology.processes, range(1, END + 1))
    for saved, on in WENT_ON:
        write_pair(tmp_path, saved, on)
    return tmp_path


def faults(folder: Path) -> list[str]:
    return summary(compared(folder, 'memory', [ONE, TWO]))['faults']


@pytest.mark.parametrize('saved, on, loss', [(ONE, ONE, 5.0), (ONE, TWO, 5.0000045)])
def test_equal_and_close_runs_have_no_fault(saved: Topology, on: Topology, loss: float, folder: Path):
    write_pair(folder, saved, on, loss=loss)
    assert faults(folder) == []


@pytest.mark.parametrize(
    'saved, on, made_up, fault',
    [
        (ONE, ONE, {'loss': 5.0000001}, '1x2 on 1x2: not bitwise the same'),
        (ONE, TWO, {'loss': 5.00001}, '1x2 on 2x1: a loss differs by 2e-06 of its value'),
        (TWO, ONE, {'loss': float('nan')}, '2x1 on 1x2: a loss differs by nan of its value'),
        (TWO, ONE, {'row': 'another row'}, '2x1 on 1x2: other rows were read'),
    ],
)
def test_each_fault_is_named_with_its_pair(
    saved: Topology, on: Topology, made_up: dict, fault: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    write_pair(folder, saved, on, **made_up)
    assert faults(folder) == [fault]
    assert said_faults({'memory': {'faults': [fault]}, 'chain': {'faults': []}}) == 1
    assert capsys.readouterr().err == f'memory: {fault}\n'


def test_another_state_on_the_same_topology_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch):
    states = {WENT_ON[TWO, TWO]: {'kernel': np.ones(2)}}
    monkeypatch.setattr(topologies, 'last_state', lambda place: states.get(place.name, {'kernel': np.zeros(2)}))
    assert faults(folder) == ['2x1 on 2x1: not bitwise the same']


def test_a_missing_line_is_a_fault(folder: Path):
    path = folder / WENT_ON[ONE, TWO] / 'metrics.jsonl'
    path.write_text(''.join(path.read_text().splitlines(keepends=True)[:-1]))
    assert faults(folder) == ['1x2 on 2x1: a loss differs by inf of its value']


def test_no_fault_is_exit_code_0():
    assert said_faults({'memory': {'faults': []}}) == 0
