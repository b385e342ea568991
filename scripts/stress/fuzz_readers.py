"""Feeds the readers of files that may come from strangers with texts and bytes that hypothesis draws.

    python scripts/stress/fuzz_readers.py --minutes=10                         # ten minutes for each reader
    python scripts/stress/fuzz_readers.py --minutes=1 --readers=squad,metrics  # some of them

A reader takes what it is given or raises InputError. What else it raises, takes longer than SECONDS for, asks more than
MOST_BYTES of memory for, or runs, is a finding: it is shown with the smallest input that gives it, and the exit code is
1. What is found stays as a case of tests/scripts/stress/test_fuzz_readers.py. A new reader gets a line of READERS.
"""

from efficient_attention.processes.stopping import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # before the imports, which take a while

import dataclasses
import json
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from absl import flags
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from efficient_attention.attention.parsing import parse_mechanism, parse_pattern
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.conll import read_sentences
from efficient_attention.data.examples.hotpotqa import read_hotpotqa
from efficient_attention.data.examples.multiple_choice import read_choices
from efficient_attention.data.examples.squad import read_squad
from efficient_attention.data.sources.array_records import record_documents
from efficient_attention.data.sources.json_files import json_documents
from efficient_attention.data.sources.tables import read_table
from efficient_attention.data.sources.wikipedia_dump import dump_documents
from efficient_attention.data.tokenizers.added_tokens import added_tokens
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.reading import reader_of
from efficient_attention.data.tokenizers.vocabulary import vocabulary_of
from efficient_attention.errors import InputError, RunError
from efficient_attention.interop.config_in import describe, read_values
from efficient_attention.interop.safetensors_files import TensorFolder
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.evaluations import best_of
from efficient_attention.workdir.metrics import read_metrics
from efficient_attention.workdir.report import baselines_of, series_of
from efficient_attention.workdir.seal import damage
from scripts.stress.fuzz_samples import (
    BERT,
    CONLL,
    CONLLU,
    DUMP,
    HEADER,
    HOTPOT,
    LONGFORMER,
    MARIAN,
    METRICS,
    MUSIQUE,
    PATTERN_WORDS,
    PIECES,
    RACE,
    RUN,
    SEAL,
    SQUAD,
    T5,
    TOKENIZER,
    WIKI_WORDS,
    as_bytes,
)

SECONDS = 10  # of the processor, that one input may take; waiting, six times as many
MOST_BYTES = 4 * 2**30  # of address space, beyond what the process has when it begins
EXAMPLES = 500  # of a round; the time is looked at between rounds
# What no reader does (names of Python's audit events).
FORBIDDEN = ('pickle.', 'os.system', 'os.exec', 'os.posix_spawn', 'subprocess.', 'socket.connect', 'ctypes.dlopen')
NASTY = ('', '[' * 100_000, '{"a":' * 50_000, '9' * 5000, '1e999', 'NaN', '\\ud800', '\x00', '\ufeff')
NASTY += (
    '../../etc/passwd',
    '-1',
    '4294967296',
    '18446744073709551616',
    'null',
    '[]',
    '{}',
    '"',
    "'",
    '\r',
    '\u202e',
    '😀',
)
NASTY += ('(a+)+$', '##')
TEXTS = ('the dog', '', ' ', 'a' * 1000, 'é 日本語 😀 שלום\u202e', '[MASK] ## \x00 \ufeff', '\n\t')


class Finding(RunError):
    """A reader did what none may do."""


class Slow(BaseException):
    """A reader took longer than it may; no Exception, lest the reader takes it for one of its own."""


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader, and files that it reads.

    Attributes:
        name: of the file that the input is written to; '' = the input is handed over as it is, as text.
        read: takes the file's path, or the text.
        samples: sound inputs, which are changed at random.
        words: that inputs are also put together from.
    """

    name: str
    read: Callable[[Any], Any]
    samples: tuple[bytes, ...]
    words: tuple[str, ...] = ()


def read_tokenizer(path: Path) -> None:
    """Opens a tokenizer, looks at its pieces and reads texts with it."""
    tokenizer = load_tokenizer(path, lowercase=True)
    vocabulary_of(tokenizer, str(path))
    reader = reader_of(tokenizer)
    for text in TEXTS:
        tokenizer.decode(reader.encode(text).ids)


UNIGRAM = b'\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02'  # a SentencePiece model of one piece
ADDED_TOKENS = {
    'added_tokens_decoder': {'7': {'content': '<hl>', 'lstrip': False, 'special': True}},
    'additional_special_tokens': ['<hl>', {'content': '[E1]'}],
}


def read_tensors(path: Path) -> None:
    """All numbers of a safetensors file."""
    folder = TensorFolder(path.parent)
    for name in folder.shapes:
        folder.read(name)


def read_run_metrics(path: Path) -> None:
    """The lines of a run's metrics, and what a report makes of them."""
    lines = read_metrics(path.parent)
    series_of(lines)
    baselines_of(lines)
    best_of([line for line in lines if line['split'] == 'held_out'], CheckpointConfig(best_metric='loss'))


def read_tags(path: Path) -> None:
    """The sentences of a CoNLL file."""
    config = ExamplesConfig(problem='token_classification', format='conll', test=str(path), train=str(path))
    list(read_sentences(config, 'test'))
    list(read_sentences(config, 'train'))


def read_race(path: Path) -> None:
    """The questions of a file of RACE's."""
    list(read_choices(ExamplesConfig(problem='multiple_choice', format='race', test=str(path)), 'test'))


READERS = {
    'safetensors': Reader('model.safetensors', read_tensors, (struct.pack('<Q', len(HEADER)) + HEADER + bytes(20),)),
    'hugging_face': Reader(
        'config.json',
        lambda path: describe(read_values(path.parent)),
        tuple(map(as_bytes, (BERT, LONGFORMER, T5, MARIAN))),
    ),
    'vocabulary': Reader('vocab.txt', read_tokenizer, ('\n'.join(PIECES).encode(),), (*PIECES, '\n', '\r\n')),
    'tokenizer': Reader('tokenizer.json', read_tokenizer, (as_bytes(TOKENIZER),)),
    'sentencepiece': Reader('spiece.model', read_tokenizer, (UNIGRAM, UNIGRAM + b'\x12\x02\x18\x02')),  # the second BPE
    'added_tokens': Reader('tokenizer_config.json', lambda path: added_tokens(path.parent), (as_bytes(ADDED_TOKENS),)),
    'json_lines': Reader(
        'rows.jsonl', lambda path: list(json_documents([path], 'text')), (b'{"text": "A dog."}\n\n{"text": "B"}\n',)
    ),
    'dump': Reader('dump.xml', lambda path: list(dump_documents([path])), (DUMP,), WIKI_WORDS),
    'records': Reader('rows.array_record', lambda path: list(record_documents([path])), (bytes(70_000),)),
    'csv': Reader('rows.csv', lambda path: list(read_table(str(path))), (b'text,label\n"A, ""dog""",1\nB,0\n',)),
    'tsv': Reader('rows.tsv', lambda path: list(read_table(str(path))), (b'text\tlabel\nA "dog\t1\n',)),
    'packed': Reader('rows.jsonl.gz', lambda path: list(read_table(str(path))), (b'\x1f\x8b\x08' + bytes(20),)),
    'conll': Reader('rows.txt', read_tags, (CONLL,), ('-DOCSTART-', 'The', '\t', ' ', '\n', 'DT')),
    'conllu': Reader('rows.conllu', read_tags, (CONLLU,), ('1', '1-2', '1.1', '\t', '\n', '_', '#')),
    'squad': Reader(
        'rows.json',
        lambda path: read_squad(str(path), is_labelled=True),
        (as_bytes({'data': [{'title': 't', 'paragraphs': [{'context': 'The dog.', 'qas': [SQUAD]}]}]}),),
    ),
    'squad_lines': Reader(
        'rows.jsonl', lambda path: read_squad(str(path), is_labelled=False), (as_bytes(SQUAD | {'context': 'The dog'}),)
    ),
    'hotpotqa': Reader(
        'rows.json',
        lambda path: read_hotpotqa(str(path), is_labelled=False),
        (as_bytes([HOTPOT]), as_bytes(MUSIQUE), as_bytes([MUSIQUE, HOTPOT])),
    ),
    'race': Reader('rows.json', read_race, (as_bytes(RACE),)),
    'pattern': Reader('', parse_pattern, (b'causal & (window(8, 2) | global_tokens(2))',), PATTERN_WORDS),
    'mechanism': Reader('', parse_mechanism, (b'lsh(bucket_size=64, rounds=4)', b'bigbird(64, 3)'), PATTERN_WORDS),
    'metrics': Reader('metrics.jsonl', read_run_metrics, (METRICS,)),
    'run_config': Reader('config.json', lambda path: read_config(path.parent), (as_bytes(RUN),)),
    'seal': Reader('seal-0-of-1.sha256', lambda path: damage(path.parent, 'step 1'), (SEAL,)),
}


def inputs(reader: Reader) -> st.SearchStrategy[bytes]:
    """Inputs of a reader: any bytes, words put together, and its samples changed as bytes and as JSON."""
    words = st.sampled_from([word.encode('utf-8', 'surrogatepass') for word in (*reader.words, *NASTY)])
    together = st.lists(words | st.binary(max_size=8), max_size=12).map(b''.join)
    changed = st.builds(changed_bytes, st.sampled_from(reader.samples), st.randoms(use_true_random=False))
    kinds = [changed, together, st.binary(max_size=200)]
    values = [value for sample in reader.samples if isinstance(value := value_of(sample), dict | list)]
    if values:
        kinds.insert(0, st.builds(changed_json, st.sampled_from(values), st.randoms(use_true_random=False)))
    if reader.name.endswith('.safetensors'):
        header = st.builds(changed_json, st.just(json.loads(HEADER)), st.randoms(use_true_random=False))
        kinds.insert(0, header.map(lambda text: struct.pack('<Q', len(text)) + text + bytes(20)))
    return st.one_of(kinds)


def value_of(sample: bytes) -> Any:
    """What a sample holds as JSON; None where it is none."""
    try:
        return json.loads(sample)
    except ValueError:
        return None


def changed_bytes(sample: bytes, rng: random.Random) -> bytes:
    """A sample with some bytes changed, removed, doubled or put in."""
    data = bytearray(sample)
    for _ in range(rng.randint(1, 4)):
        start, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 8, 64))
        piece = data[start : start + length]
        put = (bytes(rng.randrange(256) for _ in piece), b'', piece * 2, rng.choice(NASTY).encode('utf-8'))
        data[start : start + length] = rng.choice(put)
    return bytes(data)


def changed_json(value: Any, rng: random.Random) -> bytes:
    """A JSON value with some of its inner values replaced by others, removed, or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        places = list(inner_places(value))
        if not places:
            break
        parent, key = rng.choice(places)
        if isinstance(parent, dict) and rng.random() < 0.2:
            parent[rng.choice(NASTY)[:50]] = parent.pop(key)
        elif rng.random() < 0.1:
            del parent[key]
        else:
            parent[key] = other_value(parent[key], rng)
    return as_bytes(value)


def inner_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(dict or list, key) of every value inside a JSON value."""
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for key, inner in pairs:
        yield value, key
        if isinstance(inner, dict | list):
            yield from inner_places(inner)


def other_value(value: Any, rng: random.Random) -> Any:
    """Another JSON value, of the same type or of another one."""
    plain = [None, True, False, 0, 1, -1, 2**31, 2**40, 10**30, 0.5, -1.5, 1e308, float('nan'), float('inf'), '', []]
    plain += [*(text[:2000] for text in NASTY), {}, [[]], [value], {'a': value}, [value, value], [1, 'a'], {'5': 3}]
    return rng.choice(plain)


def check(reader: Reader, data: bytes, folder: Path) -> None:
    """Reads one input; raises Finding where the reader did something else than to take it or to raise InputError."""
    target: Any = data.decode('utf-8', 'replace')
    if reader.name:
        target = folder / reader.name
        target.write_bytes(data)
    set_timers(SECONDS)
    try:
        reader.read(target)
    except InputError as error:
        if not str(error).strip():
            raise Finding('an InputError that says nothing') from None
    except Slow:
        raise Finding(f'took more than {SECONDS} seconds') from None
    except BaseException as error:  # the Rust libraries' panics are no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise Finding(f'{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})') from error
    finally:
        set_timers(0)


def set_timers(seconds: float) -> None:
    """Has a signal sent after so many seconds of the processor, or six times as many by the clock; 0 = none."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)


def fuzz(name: str, minutes: float, first_seed: int) -> tuple[int, str]:
    """How many inputs a reader got within the time, and the finding that ended it before; '' = none."""
    reader, count, deadline = READERS[name], 0, time.process_time() + 60 * minutes
    smallest = b''
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter('ignore', HypothesisWarning)  # about the length of what it would show

        def one(data: bytes) -> None:
            nonlocal count, smallest
            count, smallest = count + 1, data
            check(reader, data, Path(folder))

        number = first_seed
        while time.process_time() < deadline:
            number += 1
            checks = list(HealthCheck)
            rules = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=checks)
            try:
                seed(number)(rules(given(inputs(reader))(one)))()
            except Finding as finding:
                shown = repr(smallest) if len(smallest) < 2000 else f'{smallest[:1000]!r} ... {len(smallest)} bytes'
                return count, f'{finding}\n  with {shown}\n  in round {number}'
    return count, ''


def guard() -> None:
    """Ends what takes too long or too much memory with an exception, and refuses what runs code."""

    def late(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise Slow

    def audit(event: str, arguments: tuple) -> None:
        if event.startswith(FORBIDDEN):
            raise Finding(f'{event} {arguments!r:.200}')

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    sys.addaudithook(audit)
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> None:
    """Reads the flags and fuzzes the readers one after another."""
    options = flags.FlagValues()
    flags.DEFINE_float('minutes', 10.0, 'Time of the processor for each reader.', flag_values=options)
    flags.DEFINE_integer('seed', 0, 'Another one draws other inputs.', flag_values=options)
    flags.DEFINE_list('readers', list(READERS), 'Names of readers.', flag_values=options)
    parse_flags(sys.argv, options=options)
    names = options.readers
    unknown = [name for name in names if name not in READERS]
    if unknown:
        raise InputError(f'{unknown[0]!r} is no reader; known: {", ".join(READERS)}')
    guard()
    findings = 0
    for name in names:
        count, finding = fuzz(name, options.minutes, options.seed)
        print(f'{name}: {count:,} inputs, {finding or "nothing found"}', flush=True)
        findings += bool(finding)
    if findings:
        raise Finding(f'{findings} of {len(names)} readers did what none may do')


if __name__ == '__main__':
    run_command(main)
