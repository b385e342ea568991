"""Measures this project on a GPU, most valuable parts first, and writes the results at once.

    python scripts/measure_gpu.py --minutes 9 --output runs/gpu
    python scripts/measure_gpu.py --parts attention,decoding    # only these parts
    python scripts/measure_gpu.py --dry_run --output runs/dry   # tiny sizes, also on a CPU
    python scripts/measure_gpu.py --commit 0123abcd             # for a copy of the repository without git

The benchmark has five parts. A call measures the first cases of each part, then the others, in this order:

`numerics`: errors of every backend of softmax attention against float64, forward and gradients.
`attention`: the backends `cudnn`, `mosaic` and `blocked` against attention of JAX and PyTorch, at 4k, 16k and 64k
positions.
`training_step`: training steps of GPT-2 124M, BERT-base and -large, Longformer and BigBird.
`tile_sizes`: the backends `blocked` and `mosaic` at several tile and step sizes.
`decoding`: generation of single tokens with a cache.

Each part has one JSON file in the folder `--output`, which is rewritten after every case. If a case fails, the file
contains the reason. No case starts after `--minutes`. The next call with the same output runs only the missing cases.
It refuses the files of other code or another device. The script needs only this repository, jax and flax, no
environment of the project. Without git, it also needs `--commit`. The script measures PyTorch if it is installed.

To publish the results, copy the files to docs/results/data/gpu/, run scripts/make_results.py and commit the files and
the page.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # A borrowed machine has no environment that knows this repository.

from efficient_attention.processes.signal_thread import catch_stop_signals  # noqa: E402  after the path

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import importlib  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402
from typing import Any  # noqa: E402

from absl import flags  # noqa: E402  Flax requires Optax, and Optax requires absl-py, so that absl is installed

from efficient_attention.commands.command_line import parse_flags, run_command  # noqa: E402
from efficient_attention.commands.flags import define_choices, define_output  # noqa: E402
from efficient_attention.errors import InputError  # noqa: E402

PARTS = ('numerics', 'attention', 'training_step', 'tile_sizes', 'decoding')  # files of scripts/benchmarks/gpu


def main() -> None:
    """Runs the missing cases of all parts within the time budget."""
    start = time.monotonic()
    options = define_flags()
    parse_flags(sys.argv, options=options)
    if options.minutes <= 0:
        raise InputError(f'--minutes {options.minutes}: it must be above 0')
    # JAX would otherwise reserve most of the device's memory, which PyTorch needs, too.
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    replace_missing_jaxtyping()
    # These imports are late, because loading JAX would slow down --help.
    from scripts.benchmarks.gpu.cases import (
        DRY,
        FULL,
        code_digest,
        current_commit,
        describe_machine,
        make_head,
        run_parts,
    )

    settings = DRY if options.dry_run else FULL
    commit, machine = options.commit or current_commit(ROOT), describe_machine()
    print(f'{machine["count"]} {machine["device"]}, jax {machine["jax"]}, commit {commit}', flush=True)
    code = code_digest(ROOT)
    parts = {
        options.output / f'{part}.json': (
            make_head(part, machine, commit, code, settings),
            importlib.import_module(f'scripts.benchmarks.gpu.{part}').list_cases(settings),
        )
        for part in options.parts
    }
    left = run_parts(parts, start + 60.0 * options.minutes)
    print(f'{left} cases are left for the next call' if left else 'all cases are measured', flush=True)


class ArrayOnly:
    """A type of jaxtyping without its shape: `ArrayOnly[Array, 'B L']` is `Array`."""

    def __class_getitem__(cls, array_and_shape: tuple[Any, str]) -> Any:
        """Returns the type of the array."""
        return array_and_shape[0]


class WithoutShapes(types.ModuleType):
    """A module whose public names are all `ArrayOnly`."""

    def __getattr__(self, name: str) -> type[ArrayOnly]:
        """Returns `ArrayOnly` for a public name that the module lacks."""
        if name.startswith('_'):
            raise AttributeError(name)
        return ArrayOnly


def replace_missing_jaxtyping() -> None:
    """Installs a stand-in for jaxtyping if a machine lacks it; the attention code uses it only in annotations."""
    try:
        importlib.import_module('jaxtyping')
    except ModuleNotFoundError:
        sys.modules['jaxtyping'] = WithoutShapes('jaxtyping')


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags, and returns them."""
    options = flags.FlagValues()
    flags.DEFINE_float('minutes', 9.0, 'No case starts later than this.', flag_values=options)
    define_output('Folder for a JSON file per part.', Path('runs/gpu'), options)
    define_choices('parts', PARTS, 'Parts to measure', options)
    flags.DEFINE_bool('dry_run', False, 'Take tiny sizes, to test the script.', flag_values=options)
    flags.DEFINE_string('commit', '', 'Commit of the code, for a copy without git.', flag_values=options)
    return options


if __name__ == '__main__':
    run_command(main)
