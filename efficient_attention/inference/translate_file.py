"""Translates files and streams line by line, in the order of the lines; an interrupted call on a file can be
resumed.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from efficient_attention.atomic_files import flush, write_atomically
from efficient_attention.config.json_parsing import parse_json
from efficient_attention.data.sources.text_files import decode_utf8, digest_files, read_lines
from efficient_attention.errors import InputError, counted, write_stderr_unlocked
from efficient_attention.inference.translator import Translation, Translator
from efficient_attention.processes.signal_thread import current_signal_thread
from efficient_attention.tasks.metrics.translation import translation_scores

OBJECT = '{"best": ['
CHUNK = 4  # number of batches whose lines are sorted by length and written together
UNENDED = 'texts that reached the most tokens (--max_tokens, --ratio, --extra) without an end'
BLANK = 'texts with nothing but spaces, as models write that have trained too little'


def translate_file(
    translator: Translator, source: Path, output: Path, *, form: str = 'text', identity: Mapping[str, Any] | None = None
) -> int:
    """Writes the translation of each line of a file to an output file; returns the number of lines.

    Finished lines are in `<output>.partial` until all lines are done. After an interruption, the same call resumes
    there.

    Args:
        translator: the model's translator.
        source: lines of text, plain or packed; an empty line gives an empty line.
        output: the file to write; it must not exist.
        form: 'text' = the best text per line | 'jsonl' = an object per line with all texts and their scores.
        identity: everything besides the source file that decides the texts; a call resumes only with an equal identity.

    Raises:
        InputError: the source cannot be read, or the output exists or was begun by a different call.
        RunError: the disk is full.
    """
    if output.exists():
        raise InputError(f'{output}: there is a file already; name another one')
    lines = [line for _, line in read_lines(source)]
    partial, note = output.with_name(f'{output.name}.partial'), output.with_name(f'{output.name}.partial.json')
    begun = json.dumps({**(identity or {}), 'form': form, 'source': digest_files([source])}, sort_keys=True)
    done = resume_finished_lines(partial, note, begun)
    if done:
        print(f'{done:,} of {len(lines):,} lines are done; continuing after them', file=sys.stderr, flush=True)
    started, first = time.monotonic(), done
    with partial.open('ab') as file, report_progress_when_stopped(partial):
        for some in chunks(translator, lines[done:]):
            file.write(
                ''.join(format_output_line(one, form) for one in translate_chunk(translator, some, done)).encode()
            )
            file.flush()
            done += len(some)
            rate = (done - first) / max(time.monotonic() - started, 1e-9)
            print(f'{done:,} of {len(lines):,} lines, {rate:.1f} lines/s', file=sys.stderr, flush=True)
    log_truncations(translator)
    flush(partial)
    partial.rename(output)
    note.unlink(missing_ok=True)
    return len(lines)


def translate_lines(translator: Translator, source: Path, output: TextIO, *, form: str = 'text') -> None:
    """Writes the translation of each line of a file to a text stream; raises InputError if the file cannot be read."""
    done = 0
    for some in chunks(translator, [line for _, line in read_lines(source)]):
        output.writelines(format_output_line(one, form) for one in translate_chunk(translator, some, done))
        output.flush()
        done += len(some)
    log_truncations(translator)


def chunks(translator: Translator, lines: list[str]) -> Iterator[list[str]]:
    """Returns an iterator over chunks of lines; the lines of a chunk are translated and written together."""
    size = CHUNK * translator.transducer.batching.rows
    return (lines[first : first + size] for first in range(0, len(lines), size))


@contextlib.contextmanager
def report_progress_when_stopped(partial: Path) -> Iterator[None]:
    """Reports after an interruption by the user (Ctrl-C) how many finished lines are kept in the file `partial`."""
    try:
        yield
    except KeyboardInterrupt:
        done = partial.read_bytes().count(b'\n')
        line = f'stopped; {partial} has {counted(done, "line")}, and the same command continues after them'
        watch = current_signal_thread()
        (watch.print_stop_message_once if watch else write_stderr_unlocked)(line)
        raise


def log_truncations(translator: Translator) -> None:
    """Prints how many sources were cut, which words were unknown, and how many translations are unusual."""
    if translator.cut_sources:
        most = translator.encoder.source.length
        print(f'texts of more than {most} tokens, which were cut: {translator.cut_sources:,}', file=sys.stderr)
    if said := translator.unknown.summarize_and_reset():
        print(said, file=sys.stderr)
    log_unusual_outputs(translator)


def log_unusual_outputs(translator: Translator) -> None:
    """Prints how many translations reached the token limit, and how many are blank."""
    for fault, count in ((UNENDED, translator.unended), (BLANK, translator.blank)):
        if count:
            print(f'{fault}: {count:,}', file=sys.stderr)


def resume_finished_lines(partial: Path, note: Path, begun: str) -> int:
    """Returns the number of complete lines that an interrupted call wrote to the file `partial`; removes an incomplete
    last line.

    `note` is the file that records which call began `partial`; a first call writes it.

    Raises:
        InputError: another call began the file, or no call did.
    """
    if not note.exists() and partial.exists():
        raise InputError(
            f'{partial}: there is a file already, without {note.name}; remove it, or name another --output'
        )
    if not partial.exists():
        write_atomically(note, begun)
        return 0
    if note.read_text(encoding='utf-8') != begun:
        if b'\n' not in partial.read_bytes():  # the file has no complete line, so it can be deleted
            partial.unlink()
            write_atomically(note, begun)
            return 0
        raise InputError(f'{partial} was begun by another model, input or options; remove it, or name another --output')
    whole = partial.read_bytes()
    end = whole.rfind(b'\n') + 1
    with partial.open('r+b') as file:
        file.truncate(end)
    return whole.count(b'\n')


def translate_stream(translator: Translator, source: Iterable[bytes], output: TextIO, *, form: str = 'text') -> None:
    """Writes the translation of each line of a stream as soon as the line arrives; reports cut lines and unknown words.

    At the end, reports the number of unusual translations.

    Raises:
        InputError: a line is not UTF-8.
    """
    cut, offset = translator.cut_sources, 0
    for number, line in enumerate(source, start=1):
        text = decode_utf8(line, 'standard input', offset).rstrip('\r\n')
        offset += len(line)
        for found in translate_chunk(translator, [text], number - 1):
            output.write(format_output_line(found, form))
            output.flush()
        if translator.cut_sources > cut:
            cut = translator.cut_sources
            print(f'line {number} has more than {translator.encoder.source.length} tokens and was cut', file=sys.stderr)
        if said := translator.unknown.summarize_and_reset():
            print(f'line {number}: {said}', file=sys.stderr)
    log_unusual_outputs(translator)


def translate_chunk(translator: Translator, lines: list[str], before: int) -> Iterator[list[Translation]]:
    """Returns the translations of each line, in the order of the lines; [] for an empty line.

    `before` is the number of lines of the file before `lines`.
    """
    numbers = [number for number, line in enumerate(lines) if line.strip()]
    # The numbers are line numbers in the file, so that sampling does not depend on the chunks.
    places = [before + number for number in numbers]
    found = dict(zip(numbers, translator([lines[number] for number in numbers], places=places), strict=True))
    return (found.get(number, []) for number in range(len(lines)))


def format_output_line(found: list[Translation], form: str) -> str:
    """Returns the output line, as text or JSON, for the translations of one input line."""
    if form == 'text':
        return f'{found[0].text if found else ""}\n'
    best = [{'text': one.text, 'score': one.score, 'is_ended': one.is_ended} for one in found]
    return json.dumps({'best': best}, ensure_ascii=False) + '\n'


def score_translated_file(output: Path, references: Path, *, form: str = 'text') -> dict[str, float | str]:
    """Returns the scores of a translated file against a file of references with one reference per line.

    Raises InputError if the files do not match.
    """
    lines = [line for _, line in read_lines(output)]
    if form == 'text' and lines and all(line.startswith(OBJECT) for line in lines):
        raise InputError(f'{output} has a JSON object on each line; add --format jsonl')
    if form == 'jsonl':
        lines = [next((one['text'] for one in parse_json(line)['best']), '') for line in lines]
    right = [line for _, line in read_lines(references)]
    if len(lines) != len(right):
        raise InputError(
            f'{references} has {counted(len(right), "line")}, but {output} has {counted(len(lines), "line")}; '
            'both need the same number'
        )
    return translation_scores(lines, right)
