"""Shares one compiled step among all runs of a config in a test file; the runs differ only in their workdirs.

A test file uses it with the mark `pytest.mark.usefixtures('shared_programs')` and an import of the fixture.
tests/scripts/stress/test_soak.py and tests/processes/test_join_hosts.py test runs that resume in a separate process
with separately compiled programs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import pytest

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.training import guarded_run, loop
from efficient_attention.training.run import Run, make_state


class Programs:
    """The compiled programs of runs, kept by config, data and mesh."""

    def __init__(self) -> None:
        self.made: dict[Any, Any] = {}
        self.build_run, self.jit_train_step = guarded_run.build_run, loop.jit_train_step

    def once(self, kind: str, run: Run, make: Any) -> Any:
        """Returns the result of `make` for the first run with this config."""
        key = kind, repr(compiled_fields(run.config, kind)), str(run.fingerprint), run.mesh, run.graph
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def run_of(self, *arguments: Any, **options: Any) -> Run:
        """Replaces `build_run`: the run shares programs for first state, teacher and evaluation with earlier runs of
        its config.
        """
        run = self.build_run(*arguments, **options)
        evaluation_step = run.evaluation.step
        shared = {'init_random_state': lambda: self.once('state', run, lambda: jitted_state(run))()}
        if run.pruner is not None:
            shared |= {name: self.once(name, run, lambda name=name: getattr(run, name)) for name in OF_PRUNING}
        for name, value in shared.items():
            object.__setattr__(run, name, value)
        object.__setattr__(run.evaluation, 'step', lambda: self.once('evaluation', run, evaluation_step))
        if run.teacher is not None:
            object.__setattr__(run.teacher, 'program', self.once('teacher', run, lambda: run.teacher.jitted_outputs))
        return run

    def train_step(self, run: Run) -> Any:
        """Replaces `jit_train_step`: returns the compiled step of the first run with this config."""
        return self.once('step', run, lambda: self.jit_train_step(run))


OF_PRUNING = ('evaluation_params_fn', 'kept_weight_share_fn')
# Fields by group, () = all, that no program reads: the times of saves and evaluations, and the names of files.
# The fingerprint covers the content of these files.
HOST_ONLY = {
    'checkpoint': (),
    'data': ('source', 'cache', 'tokenizer'),
    'examples': ('train', 'dev', 'test'),
    'train': ('early_stop', 'log_every_steps', 'max_skipped_in_row', 'trackers'),
    'eval': ('every_steps',),
}


def compiled_fields(config: RunConfig, kind: str) -> dict[str, Any]:
    """Returns the config's fields without those of `HOST_ONLY`.

    Only the program of the first state reads the seed, and only the program of the step reads the learning rate.
    """
    fields = to_dict(config)
    for group, names in HOST_ONLY.items():
        for name in names or list(fields[group]):
            del fields[group][name]
    if kind != 'state':
        del fields['train']['seed']
    if kind != 'step':
        del fields['optimizer']['learning_rate']
    return fields


def jitted_state(run: Run) -> Any:
    """Returns the jitted program of `Run.init_random_state`."""
    return jax.jit(lambda: make_state(run.task, run.config, run.objective, run.pruner), out_shardings=run.shardings)


@pytest.fixture(scope='module')
def shared_programs() -> Iterator[None]:
    """Makes the train loop take each config's programs from its first run while the tests of a file run."""
    programs = Programs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded_run, 'build_run', programs.run_of)
        patch.setattr(loop, 'jit_train_step', programs.train_step)
        yield
