"""Tests the two kinds of errors that the entry points turn into one line and an exit code."""

import importlib
import sys

import numpy as np
import pytest

from efficient_attention.errors import (
    InputError,
    MissingExtraError,
    PeerError,
    RunError,
    RunStopped,
    advice_on_name,
    counted,
    exit_code,
    is_number,
    is_whole_number,
    missing_extra_error,
    nearest,
    one_line,
    require,
    require_at_least,
    require_truth_values,
    write_stderr_unlocked,
)


def test_bad_input_is_a_value_error_and_a_failed_run_is_none():
    assert issubclass(InputError, ValueError)
    assert issubclass(RunError, RuntimeError) and not issubclass(RunError, ValueError)


def test_a_missing_extra_is_bad_input_and_a_failed_import():
    line = "ea.load needs: pip install 'efficient-attention[train]'"
    found = missing_extra_error('ea.load', 'train', ModuleNotFoundError("No module named 'PIL'", name='PIL'))
    assert (str(found), found.name) == (f"{line} (No module named 'PIL')", 'PIL')
    assert isinstance(found, ImportError) and isinstance(found, InputError) and exit_code(found) == 2
    assert str(missing_extra_error('ea.load', 'train')) == line


@pytest.mark.parametrize(
    'place, arguments, package, who, extra',
    [
        ('interop.hub_upload.open_hub', ('me/mine',), 'huggingface_hub', '--push', 'export'),
        ('inference.onnx_export.import_onnx', (), 'jax2onnx', '--format onnx', 'export'),
        ('experiments.sweep.import_optuna', (), 'optuna', '--sampler tpe', 'sweep'),
    ],
)
def test_options_name_their_missing_extra(
    monkeypatch, place: str, arguments: tuple, package: str, who: str, extra: str
):
    module, _, function = f'efficient_attention.{place}'.rpartition('.')
    call = getattr(importlib.import_module(module), function)
    monkeypatch.setitem(sys.modules, package, None)  # so that an import fails
    with pytest.raises(MissingExtraError) as caught:
        call(*arguments)
    assert str(caught.value).startswith(f"{who} needs: pip install 'efficient-attention[{extra}]' (")
    assert caught.value.name == package


def test_the_nearest_names_have_similar_letters():
    known = ['model.layers', 'model.width', 'distill.layers']
    assert nearest('model.layer', known) == ['model.layers'] and nearest('zzz', known) == []
    assert nearest('model.layer', known, most=2) == ['model.layers', 'distill.layers']
    assert advice_on_name('model.widht', known) == 'did you mean model.width?'
    assert advice_on_name('zzz', known) == 'known: model.layers, model.width, distill.layers'


@pytest.mark.parametrize('kind', [InputError, RunError])
def test_the_message_is_what_was_said(kind: type[Exception]):
    assert str(kind('data.length is 3')) == 'data.length is 3'


def test_a_wrapped_error_is_one_line_with_what_was_wrong_inside():
    assert one_line(ValueError(KeyError('no field\n  x'))) == 'no field x'


def test_a_line_holds_nothing_that_a_terminal_obeys_and_has_an_end():
    assert one_line(InputError('no tensor \x1b[31mred\x07')) == r'no tensor \x1b[31mred\x07'
    assert one_line(InputError('שלום 日本語 😀')) == 'שלום 日本語 😀'
    line = one_line(InputError(f'begin {"x" * 10**6} end'))
    assert line.startswith('begin xx') and line.endswith('x end') and len(line) < 5000


def test_whole_numbers_are_those_of_python_and_numpy():
    assert all(map(is_whole_number, (0, -3, np.int32(5), np.uint8(1))))
    assert not any(map(is_whole_number, (True, np.bool_(True), 1.0, np.float32(2), '1', None)))


def test_numbers_are_whole_or_have_a_point():
    assert all(map(is_number, (0, -0.5, np.int32(5), np.float32(2), float('inf'))))
    assert not any(map(is_number, (True, np.bool_(True), 1j, '1', None)))


def test_a_requirement_names_the_argument_its_value_and_what_is_allowed():
    require(True, 'model.heads', 0, 'at least 1')
    with pytest.raises(InputError, match='^model.heads is 0; it must be at least 1$'):
        require(False, 'model.heads', 0, 'at least 1')


@pytest.mark.parametrize('value, allowed', [(2.0, 'a whole number'), (True, 'a whole number'), (1, 'at least 2')])
def test_a_number_below_the_least_or_not_whole_is_named(value: object, allowed: str):
    require_at_least(2, 'favor chunk', np.int32(2))
    with pytest.raises(InputError, match=f'^favor chunk is {value}; it must be {allowed}$'):
        require_at_least(2, 'favor chunk', value)


@pytest.mark.parametrize('value', ['no', 1, None])
def test_what_is_true_or_false_is_no_other_value(value: object):
    require_truth_values('lsh', causal=True, sequential=False)
    with pytest.raises(InputError, match=rf'^lsh causal is {value!r}; it must be True or False$'):
        require_truth_values('lsh', causal=value)


@pytest.mark.parametrize(
    'error, code',
    [
        (InputError(), 2),
        (NotImplementedError(), 2),
        (RunError(), 1),
        (PeerError(), 4),
        (RunStopped(), 3),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 1),
        (SystemExit(7), 7),
        (SystemExit(), 0),
        (SystemExit('why'), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int):
    assert exit_code(error) == code


def test_a_line_is_written_at_once_past_the_stream_of_python(monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setattr('sys.stderr', None)
    write_stderr_unlocked('error: größer')
    assert capfd.readouterr().err == 'error: größer\n'


def test_one_thing_has_no_plural():
    assert [counted(count, 'line') for count in (0, 1, 2, 1200)] == ['0 lines', '1 line', '2 lines', '1,200 lines']
