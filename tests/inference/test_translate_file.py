"""Tests of translated files and streams: kept order, resuming after a kill, and scores."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference import translate_file as module
from efficient_attention.inference.seq2seq_generator import SourceBatching
from efficient_attention.inference.translate_file import (
    score_translated_file,
    translate_file,
    translate_lines,
    translate_stream,
)
from efficient_attention.inference.translator import Translation


class Shouting:
    """A stand-in for a translator: answers in capitals, records its inputs, and fails at a given word."""

    class transducer:
        batching = SourceBatching(rows=2)

    cut_sources = named = blank = 0

    def __init__(self, fails_at: str = '') -> None:
        self.asked, self.fails_at, self.unended, self.places = [], fails_at, 0, []
        self.unknown = self

    def summarize_and_reset(self) -> str:
        """Returns a message of unknown words, and counts texts with an f since the last call as unknown."""
        found, self.named = [text for text in self.asked[self.named :] if 'f' in text], len(self.asked)
        return f'{len(found)} unknown' if found else ''

    def __call__(self, texts: list[str], *, places: list[int]) -> list[list[Translation]]:
        if self.fails_at in texts:
            raise KeyboardInterrupt
        self.asked += texts
        self.places += places
        self.unended += sum('ei' in text for text in texts)
        others = [Translation('?', -2.0, (), (), is_ended=False)]
        return [[Translation(text.upper(), -0.5, (), (), is_ended='ei' not in text), *others] for text in texts]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, 'CHUNK', 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / 'in.txt'
    path.write_text('eins\n\nzwei\ndrei\nvier\n', encoding='utf-8')
    return path


def test_what_a_line_is_drawn_from_is_its_number_wherever_a_command_began(source: Path, tmp_path: Path):
    whole, first, second, lines, stream = Shouting(), Shouting('drei'), Shouting(), Shouting(), Shouting()
    translate_file(whole, source, tmp_path / 'whole')
    with pytest.raises(KeyboardInterrupt):
        translate_file(first, source, tmp_path / 'out')
    translate_file(second, source, tmp_path / 'out')
    translate_lines(lines, source, io.StringIO())
    translate_stream(stream, source.read_bytes().splitlines(keepends=True), io.StringIO())
    assert whole.places == first.places + second.places == lines.places == stream.places == [0, 2, 3, 4]


def test_lines_keep_their_places(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    output = tmp_path / 'out.txt'
    assert translate_file(Shouting(), source, output) == 5
    said = capsys.readouterr().err.splitlines()
    # A batch has two lines, and each is written at once.
    assert [line.split(' lines, ')[0] for line in said[:2]] == ['2 of 5', '4 of 5']
    assert said[-1] == f'{module.UNENDED}: 3'  # unended: eins, zwei, drei
    assert output.read_text() == 'EINS\n\nZWEI\nDREI\nVIER\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['in.txt', 'out.txt']


def test_unknown_words_are_said_of_a_file_and_of_each_line_of_a_stream(source: Path, capsys: pytest.CaptureFixture):
    source.write_text('elf\nacht\nzwoelf\n', encoding='utf-8')
    translate_lines(Shouting(), source, io.StringIO())
    assert capsys.readouterr().err.splitlines() == ['2 unknown']
    translate_stream(Shouting(), source.read_bytes().splitlines(keepends=True), io.StringIO())
    assert capsys.readouterr().err.splitlines() == ['line 1: 1 unknown', 'line 3: 1 unknown']


def test_all_texts_with_their_scores(source: Path, tmp_path: Path):
    translate_file(Shouting(), source, tmp_path / 'out.jsonl', form='jsonl')
    lines = [json.loads(line)['best'] for line in (tmp_path / 'out.jsonl').read_text().splitlines()]
    other = {'text': '?', 'score': -2.0, 'is_ended': False}
    assert lines[0] == [{'text': 'EINS', 'score': -0.5, 'is_ended': False}, other] and lines[1] == []
    assert lines[4] == [{'text': 'VIER', 'score': -0.5, 'is_ended': True}, other]


def test_a_killed_command_goes_on_where_it_was(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture):
    output = tmp_path / 'out.txt'
    with pytest.raises(KeyboardInterrupt):
        translate_file(Shouting(fails_at='vier'), source, output, identity={'beams': 5})
    partial = tmp_path / 'out.txt.partial'
    said = f'stopped; {partial} has 4 lines, and the same command continues after them'
    assert capfd.readouterr().err.splitlines()[-1] == said
    with partial.open('a') as file:
        file.write('HALF A LI')  # A kill may leave half a line.
    with pytest.raises(InputError, match='was begun by another model, input or options'):
        translate_file(Shouting(), source, output, identity={'beams': 4})
    rest = Shouting()
    translate_file(rest, source, output, identity={'beams': 5})
    assert rest.asked == ['vier'] and output.read_text() == 'EINS\n\nZWEI\nDREI\nVIER\n'
    assert '4 of 5 lines are done; continuing after them' in capfd.readouterr().err.splitlines()


def test_another_command_begins_anew_where_nothing_was_done(source: Path, tmp_path: Path):
    output = tmp_path / 'out.txt'
    with pytest.raises(KeyboardInterrupt):
        translate_file(Shouting(fails_at='eins'), source, output, identity={'beams': 5})
    assert (tmp_path / 'out.txt.partial').read_bytes() == b''
    assert translate_file(Shouting(), source, output, identity={'beams': 4}) == 5


def test_lines_of_a_file_to_a_stream(source: Path):
    stream = io.StringIO()
    translate_lines(Shouting(), source, stream)
    assert stream.getvalue() == 'EINS\n\nZWEI\nDREI\nVIER\n'


def test_a_file_in_the_place_of_what_is_done_stays(source: Path, tmp_path: Path):
    partial = tmp_path / 'out.txt.partial'
    partial.write_text('of somebody')
    with pytest.raises(InputError, match=f'^{partial}: there is a file already, without out.txt.partial.json'):
        translate_file(Shouting(), source, tmp_path / 'out.txt')
    assert partial.read_text() == 'of somebody' and not (tmp_path / 'out.txt').exists()


def test_a_stream_says_which_line_was_cut(capsys: pytest.CaptureFixture):
    translator = Shouting()
    translator.encoder = SimpleNamespace(source=SimpleNamespace(length=3))

    def lines():
        yield b'eins\n'
        translator.cut_sources += 1  # The next translation would count its cut source.
        yield b'zwei\n'

    translate_stream(translator, lines(), io.StringIO())
    assert capsys.readouterr().err == f'line 2 has more than 3 tokens and was cut\n{module.UNENDED}: 2\n'


def test_blank_translations_are_counted(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    for translate in (
        lambda translator: translate_file(translator, source, tmp_path / 'out'),
        lambda translator: translate_lines(translator, source, io.StringIO()),
        lambda translator: translate_stream(translator, [b'vier\n'], io.StringIO()),
    ):
        translator = Shouting()
        translator.blank = 2
        translate(translator)
        assert capsys.readouterr().err.splitlines()[-1] == f'{module.BLANK}: 2'


def test_an_output_that_is_there_stays(source: Path):
    with pytest.raises(InputError, match=f'^{source}: there is a file already'):
        translate_file(Shouting(), source, source)


def test_a_stream_is_answered_line_by_line():
    output = io.StringIO()
    lines = iter([b'\xef\xbb\xbfeins\r\n', b'\n', b'zwei'])  # The input has a byte order mark and a Windows line end.

    def answered():
        for number, line in enumerate(lines):
            assert output.getvalue().count('\n') == number
            yield line

    translate_stream(Shouting(), answered(), output)
    assert output.getvalue() == 'EINS\n\nZWEI\n'


def test_a_stream_that_is_no_text_ends_in_one_line():
    output = io.StringIO()
    with pytest.raises(InputError, match=r'^standard input: byte 0xff at offset 7 is not UTF-8'):
        translate_stream(Shouting(), iter([b'eins\n', b'zw\xffi\n']), output)
    assert output.getvalue() == 'EINS\n'


@pytest.mark.parametrize('form', ['text', 'jsonl'])
def test_scores_of_a_file(source: Path, tmp_path: Path, form: str):
    translate_file(Shouting(), source, tmp_path / 'out', form=form)
    (tmp_path / 'gold').write_text('EINS\n\nZWEI\nDREI\nfünf\n', encoding='utf-8')
    scores = score_translated_file(tmp_path / 'out', tmp_path / 'gold', form=form)
    assert scores['exact_match'] == 0.8 and 'tok:13a' in scores['bleu_signature']
    (tmp_path / 'short').write_text('EINS\n')
    with pytest.raises(InputError, match=r'short has 1 line, but .*out has 5 lines; both need the same number$'):
        score_translated_file(tmp_path / 'out', tmp_path / 'short', form=form)


def test_scores_of_files_are_those_of_sacrebleus_command(tmp_path: Path):
    """Scores equal sacreBLEU's command, also for empty lines and outer spaces; only we drop a byte order mark."""
    written = 'Two men stand near bushes.\n\n  A man in an orange cap. \nA dog runs over the grass.\n'
    gold = 'Two young men stand near bushes.\nA boy.\nA man in an orange hat.\n A dog runs over the green grass.\n'
    (tmp_path / 'out').write_text(written, encoding='utf-8')
    (tmp_path / 'gold').write_text(gold, encoding='utf-8')
    (tmp_path / 'marked').write_text('\ufeff' + written, encoding='utf-8')
    command = [sys.executable, '-m', 'sacrebleu', 'gold', '-i', 'out', '-m', 'bleu', 'chrf', '-w', '9']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    theirs = [one['score'] for one in json.loads(done.stdout)]
    for name in ('out', 'marked'):
        scores = score_translated_file(tmp_path / name, tmp_path / 'gold')
        assert [scores['bleu'], scores['chrf']] == pytest.approx(theirs, abs=1e-8)
    assert 20 < scores['bleu'] < 80
