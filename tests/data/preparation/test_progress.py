"""Tests that progress is a bar on a terminal, plain lines elsewhere, and silent if unwanted."""

import rich.console

from efficient_attention.data.preparation import progress as module
from efficient_attention.data.preparation.progress import Progress


def use(is_shown):
    with Progress('preparing [x]', is_shown=is_shown) as progress:
        progress.start('reading')
        progress.advance(5)
        progress.start('tokenising', total=10)
        progress.advance(10)
        progress.print_line('done: /a/folder')


def test_plain_lines_without_a_terminal(capsys):
    use(is_shown=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f'preparing [x]: {step}' for step in ('reading', 'tokenising', 'done: /a/folder')]


def test_long_steps_say_how_far_they_are_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(module, 'PERIOD', 0.0)
    use(is_shown=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:4:2] == ['preparing [x]: reading: 5', 'preparing [x]: tokenising: 10 of 10']


def test_silent_when_not_wanted(capsys):
    use(is_shown=False)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ''


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    terminal = rich.console.Console(stderr=True, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(module, 'Console', lambda **_options: terminal)
    use(is_shown=True)
    shown = capsys.readouterr().err
    assert 'preparing [x]: tokenising' in shown and '10/10' in shown and '━' in shown
    assert 'done: /a/folder' in shown
