"""Runs a page's commands and Python blocks in this process, one after another as a reader would, or only parses them.

Few runs are trained (`TRAINED` in tests/documents/tiny.py). The other runs do everything before their first step, which
is traced on its batch but not compiled. A run that a later command reads (`BEGUN`) also saves its initial state.
"""

import contextlib
import dataclasses
import fnmatch
import io
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from absl import flags

from efficient_attention.commands import command_line as command
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.processes import allocator
from efficient_attention.programs.dispatch import COMMAND, PROGRAMS, load_program, main
from efficient_attention.tasks.encoded_examples import EncodedExamples
from efficient_attention.training import loop
from efficient_attention.training.guarded_run import check_best_metric
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import jit_train_step
from tests.documents.pages import ROOT, Block, Command, blocks, commands, read
from tests.documents.tiny import BEFORE, BEGUN, SKIPPED, TRAINED, shrunk, tiny_arguments
from tests.one_device import see_one_device
from tests.test_configs import filled
from tests.training.tiny_run import drawn_workdir

PYTHON = ('.venv/bin/python', '.venv-plan/bin/python', 'python')
INSTALLED = (COMMAND, f'.venv-plan/bin/{COMMAND}')


def reason_to_skip(line: Command) -> str:
    """Returns the reason why a command is not run; '' for a command that is run."""
    return next((reason for pattern, reason in SKIPPED.items() if fnmatch.fnmatchcase(line.installed, pattern)), '')


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a program on both streams."""

    out: io.StringIO = dataclasses.field(default_factory=io.StringIO)
    errors: io.StringIO = dataclasses.field(default_factory=io.StringIO)


class Reader:
    """Runs pages in a folder that has their files, and keeps the output of each command and Python block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: dict[str, str] = {}  # the text of a Python block, or of a command as installed -> its output
        self.pages: set[str] = set()

    def read(self, page: str) -> None:
        """Runs the blocks of a page in their order; if the page continues another one, runs that page first."""
        if page in self.pages:
            return
        if page in BEFORE:
            self.read(BEFORE[page])
        names: dict[str, Any] = {'__name__': '__main__'}
        for block in blocks(page, read(page)):
            if block.language == 'bash':
                self.run_commands([line for line in commands(block) if not reason_to_skip(line)])
            elif block.language == 'python':
                self.save(block)
                with self.as_program(page) as output:
                    run_python(block.text, f'{page}:{block.line}', names)
                self.printed[block.text] = output.out.getvalue()
        self.pages.add(page)

    def save(self, block: Block) -> None:
        """Saves a Python block as a file if its first line is a comment with a file name, `# name.py`."""
        if named := re.match(r'# (\w+\.py)\n', block.text):
            (self.folder / named[1]).write_text(block.text, encoding='utf-8')

    def run_commands(self, lines: list[Command]) -> None:
        """Runs commands at tiny sizes; a command that has already run, on another page too, does not run again."""
        for line in lines:
            if line.installed not in self.printed:
                words = words_of(line)
                with self.as_program(*words, *tiny_arguments(words)) as output, pytest.MonkeyPatch.context() as patch:
                    if line.program == 'train' and workdir_of(words) not in TRAINED:
                        patch.setattr(loop, 'train', trace_first_step)
                    code = exit_code_of(words[0])
                assert code == 0, f'{line.page}:{line.line}: {line.text}\n{output.errors.getvalue()[-3000:]}'
                self.printed[line.installed] = output.out.getvalue()

    @contextlib.contextmanager
    def as_program(self, *arguments: str) -> Iterator[Output]:
        """Imitates a separate process inside the `with` block: its arguments, folder, flags and output."""
        known, output = set(flags.FLAGS), Output()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, 'argv', list(arguments))
            patch.setattr(sys, 'stdout', output.out)
            patch.setattr(sys, 'stderr', output.errors)
            patch.setenv(allocator.SWITCH, 'default')  # this process has already started with its own allocator
            patch.chdir(self.folder)
            see_one_device(patch)
            try:
                yield output
            finally:
                forget_flags(known)


def words_of(line: Command) -> list[str]:
    """Returns the arguments, with the program as the first one, of a command that starts a program of the project."""
    name, *words = line.words
    if name in INSTALLED:
        return [COMMAND, *words]
    assert name in PYTHON and words[0].endswith('.py'), f'{line.page}:{line.line}: nothing runs or skips {line.text!r}'
    return words


def workdir_of(words: list[str]) -> str:
    """Returns the workdir that a command names; '' where it names none."""
    return words[words.index('--workdir') + 1] if '--workdir' in words else ''


def trace_first_step(
    config: RunConfig,
    workdir: str,
    *,
    examples: EncodedExamples | None = None,
    pretrained: Pretrained | None = None,
    profile: tuple[int, int] | None = None,
) -> None:
    """Replaces `loop.train`: makes data and model, traces a step and an evaluation, and saves a state that is read
    later.

    Parameters are zeros unless they come from a checkpoint.
    """
    del profile
    run, start = build_run(config, examples=examples), InitialParams(config, pretrained)
    check_best_metric(run)
    run.task.prepare_training()
    batch = run.put_batch_on_devices(next(run.task.training_batches(0, config.train.steps, 0, 1)))
    jax.eval_shape(jit_train_step(run), run.abstract_state, batch)
    if config.has_evaluation_data:
        trace_evaluation(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, 'init_random_state', zero_state)  # zeros need no compiled program
        state = start.make_initial_state(run)
    if str(workdir) in BEGUN:
        drawn_workdir(run, Path(workdir), state)


def trace_evaluation(run: Run) -> None:
    """Traces the first batch of an evaluation."""
    evaluation = run.evaluation
    rows = next(iter(evaluation.task.evaluation_batches(0, 1)))
    carry = evaluation.initial_carry()
    of_carry = () if carry is None else (carry,)
    read = jax.eval_shape(run.evaluation_params_fn, run.abstract_state)
    jax.eval_shape(evaluation.step(), read, evaluation.put_batch_on_devices(rows), *of_carry)


def zero_state(run: Run) -> TrainState:
    """Returns a run's state at step 0 with zeros in all its arrays."""
    return jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), run.abstract_state
    )


def exit_code_of(program: str) -> int:
    """Runs the installed command, or a script, with the arguments in `sys.argv`; returns its exit code."""
    try:
        start_program(program)
    except SystemExit as exited:
        return int(exited.code or 0)
    return 0


def start_program(program: str) -> None:
    """Runs the installed command, or a script as a program."""
    if program == COMMAND:
        main()
    else:
        runpy.run_path(str(ROOT / program), run_name='__main__')


def run_python(text: str, name: str, names: dict[str, Any]) -> None:
    """Runs a Python block with its numbers made small; `names` holds the variables of the page."""
    exec(compile(shrunk(text)[0], name, 'exec'), names)


def forget_flags(known: set[str]) -> None:
    """Removes the flags of the last program, because the next one defines its own flags of the same names."""
    for name in set(flags.FLAGS) - known:
        delattr(flags.FLAGS, name)


# ---- parsing only ----


class Parsed(BaseException):
    """Raised after a script has read its arguments, in place of its work."""


def parse(line: Command, patch: pytest.MonkeyPatch) -> None:
    """Reads a command's arguments and its config file with every field that is set, and stops before the command's
    work.
    """
    name, *words = line.words
    if name not in (*PYTHON, *INSTALLED) or words[:2] == ['-m', 'pip']:
        return
    if words[:2] == ['-m', 'pytest']:
        assert all((ROOT / word).exists() for word in words if word.startswith('tests')), line.text
        return
    words = [COMMAND, *words] if name in INSTALLED else words
    if words[0] != COMMAND and not (ROOT / words[0]).exists():
        assert '/' not in words[0], f'{words[0]} does not exist'
        return  # a script of another project
    known = set(flags.FLAGS)
    patch.setattr(sys, 'argv', words)
    stopping = then_stop(command.parse_flags, check_config)
    for module in (command, *map(load_program, PROGRAMS)):
        patch.setattr(module, 'parse_flags', stopping)
    patch.chdir(ROOT)
    try:
        with pytest.raises(Parsed):
            start_program(words[0])
    finally:
        forget_flags(known)


def then_stop(function: Any, check: Any = None) -> Any:
    """Returns a function that calls `function` and then `check`, and ends the program by raising `Parsed`."""

    def stopping(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        if check:
            check(options.get('options', flags.FLAGS))
        raise Parsed

    return stopping


def check_config(options: flags.FlagValues) -> None:
    """Checks that the config on the command line can be read as the config of a run."""
    if 'config' in options:
        from_dict(filled(options['config'].value.to_dict()), RunConfig)
