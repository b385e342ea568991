"""Tests the fuzzing of readers: it detects planted faults, all readers accept their samples, and old findings stay
fixed.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from scripts.stress import fuzz_readers
from scripts.stress.fuzz_readers import READERS, FuzzedReader, ReaderTimeout, ReaderViolation, check_fuzzed_input, fuzz
from scripts.stress.fuzz_samples import TOKENIZER, WORD_PIECE, json_bytes

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize('name', READERS)
def test_a_reader_takes_its_samples_and_some_of_what_is_drawn(name: str, tmp_path: Path, monkeypatch):
    for sample in READERS[name].samples:
        check_fuzzed_input(READERS[name], sample, tmp_path)
    monkeypatch.setattr(fuzz_readers, 'EXAMPLES', 20)
    count, finding = fuzz(name, 1e-4, 7)
    assert count >= 20 and not finding


def raises(error: BaseException) -> FuzzedReader:
    def read(_: str) -> None:
        raise error

    return FuzzedReader('', read, (b'a',))


@pytest.mark.parametrize(
    'error', [KeyError('x'), RecursionError(), MemoryError(), ReaderTimeout(), InputError(' ')], ids=repr
)
def test_what_no_reader_may_do_is_a_finding(error: BaseException, tmp_path: Path):
    with pytest.raises(ReaderViolation):
        check_fuzzed_input(raises(error), b'', tmp_path)


def test_an_input_error_is_none(tmp_path: Path):
    check_fuzzed_input(raises(InputError('line 3')), b'', tmp_path)


def test_a_finding_is_shown_with_the_smallest_input(monkeypatch):
    def read(text: str) -> None:
        if '9' in text:
            raise ValueError('nine')

    monkeypatch.setitem(READERS, 'nine', FuzzedReader('', read, (b'19',)))
    _, finding = fuzz('nine', 0.05, 0)
    assert finding.startswith('ValueError: nine (') and re.search(r"with b'.{0,8}9'", finding)


@pytest.mark.slow
def test_the_guard_ends_what_hangs_or_takes_memory_and_refuses_what_runs_code():
    program = (
        'import os, sys, time\nfrom pathlib import Path\nfrom scripts.stress import fuzz_readers as f\n'
        'f.SECONDS = 1\nf.install_fuzz_guards()\n'
        'for read in (lambda t: time.sleep(9), lambda t: bytes(2**34), lambda t: os.system("exit")):\n'
        '    try:\n        f.check_fuzzed_input(f.FuzzedReader("", read, ()), b"", Path("."))\n'
        '    except f.Finding as finding:\n        print(finding)\n'
    )
    started = time.monotonic()
    ended = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = ended.stdout.splitlines()
    assert lines[0] == 'took more than 1 seconds' and lines[1].startswith('MemoryError') and 'os.system' in lines[2]
    assert time.monotonic() - started < 60


# name of a former finding: (reader, input)
FOUND = {
    'unknown piece that there is none of': (
        'tokenizer',
        json_bytes(TOKENIZER | {'model': WORD_PIECE | {'unk_token': '[NONE]'}}),
    ),
    'metric that is a word': ('metrics', b'{"step": 1, "split": "held_out", "loss": "an"}\n'),
}


@pytest.mark.parametrize('name, data', FOUND.values(), ids=FOUND)
def test_what_was_found_stays_found(name: str, data: bytes, tmp_path: Path):
    check_fuzzed_input(READERS[name], data, tmp_path)
