"""Runs a mutation test: breaks the code at one place at a time, and checks whether any test fails.

python scripts/stress/kill_mutants.py [--tree CHECKOUT]
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_integers, define_path
from efficient_attention.processes.child_process import command_tied_to_parent

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = 'efficient_attention'
COPIED = (
    PACKAGE,
    'configs',
    'scripts',
    'tests',
    'docs',
    'pyproject.toml',
    'setup.py',
    'train.py',
    'eval.py',
    'README.md',
    'Makefile',
)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One deliberate error in the code: a text that occurs once in a file, and the broken text that replaces it."""

    path: str
    text: str
    broken: str

    def find_file(self, package: Path) -> str:
        """Returns the path of the file that contains the text: `path`, or the file to which the text has moved.

        The result is '' if no file, or no single file, has the text.

        Args:
            package: the folder of the package.
        """
        own = [package / self.path] if (package / self.path).exists() else []
        for paths in (own, package.rglob('*.py')):
            found = [path for path in paths if self.text in path.read_text(encoding='utf-8')]
            if len(found) == 1 and found[0].read_text(encoding='utf-8').count(self.text) == 1:
                return str(found[0].relative_to(package))
        return ''


def nearest_tests(path: str, tree: Path) -> str:
    """Returns the path of the tests of a source file: the test file of its name, or the test folder of its package."""
    folder, name = Path('tests') / Path(path).parent, f'test_{Path(path).name}'
    return str(folder / name if (tree / folder / name).is_file() else folder)


MUTANTS = (
    Mutant('attention/logits/definition.py', '1.0 / math.sqrt(width)', '1.0 / math.sqrt(width + 1)'),
    Mutant(
        'attention/dense_attention.py',
        'return (query_B1L1 == key_B11M) & (key_B11M != 0)',
        'return query_B1L1 == key_B11M',
    ),
    Mutant('attention/dense_attention.py', 'weights_BHLM / (1.0 - rate)', 'weights_BHLM'),
    Mutant('attention/partial_softmax.py', 'maximum_1BHL[0] + jnp.log(total_BHL)', 'maximum_1BHL[0]'),
    Mutant('attention/patterns/bands.py', 'near = distance <= self.radius', 'near = distance < self.radius'),
    Mutant(
        'attention/patterns/strided.py',
        'self.block >= self.block - self.width',
        'self.block > self.block - self.width',
    ),
    Mutant('attention/relative.py', 'queries - 1\n    table_cHK', 'queries\n    table_cHK'),
    Mutant('attention/softmax/tile_chunk_softmax.py', '(query == key) & (key != 0)', 'query == key'),
    Mutant('attention/favor/random_features.py', 'x.shape[-1] ** -0.25', 'x.shape[-1] ** -0.5'),
    Mutant('attention/favor/random_features.py', '- 0.5 * jnp.square(x)', '- 0.25 * jnp.square(x)'),
    Mutant('attention/lsh/definition.py', 'SELF_LOGIT = -1e5', 'SELF_LOGIT = -1.0'),
    Mutant('attention/lsh/hashing.py', 'numbers_BHTbL + count,', 'numbers_BHTbL,'),
    Mutant('models/position_bias.py', 'below) for h in range(1, below + 1)', 'below) for h in range(0, below)'),
    Mutant('models/position_bias.py', 'where(differences > 0, buckets, 0)', 'where(differences >= 0, buckets, 0)'),
    Mutant(
        'models/segment_memory.py',
        "jax.lax.stop_gradient(shard_activations(states[:, :, start:], 'BNMD'))",
        "shard_activations(states[:, :, start:], 'BNMD')",
    ),
    Mutant('models/reversible.py', 'd_second = d_second, d_first + d_input', 'd_second = d_second, d_first'),
    Mutant('models/embeddings.py', 'positions_BL + self.config.position_offset', 'positions_BL'),
    Mutant('objectives/objective.py', 'jnp.where(weight > 0.0, weight, 1.0)', 'jnp.maximum(weight, 2.0)'),
    Mutant('objectives/fine_tuning.py', "(batch['labels'] >= 0)", "(batch['labels'] > 0)"),
    Mutant('objectives/adaptive_softmax_loss.py', 'words + cluster_BL - 1', 'words + cluster_BL - 2'),
    Mutant('training/step.py', 'state.key), state.step)', 'state.key), 0)'),
    Mutant('training/step.py', '(state.skipped_in_row + skip) * skip', 'state.skipped_in_row + skip'),
    Mutant('training/optimizer.py', 'config.layer_decay ** (layers + 1)', 'config.layer_decay**layers'),
    Mutant('training/schedules.py', 'max(total_steps - config.warmup_steps, 1)', 'max(total_steps, 1)'),
    Mutant(
        'attention/linformer/definition.py',
        "of_keys_HRM if is_tied else request.learned_operand('values')[..., :keys]",
        'of_keys_HRM',
    ),
    Mutant(
        'attention/induced/definition.py',
        "request.learned_operand('points') * scale",
        "request.learned_operand('points')",
    ),
    Mutant(
        'attention/synthesizer/definition.py',
        'jax.nn.relu(request.query.astype(jnp.float32))',
        'request.query.astype(jnp.float32)',
    ),
    Mutant(
        'attention/routing/centroids.py',
        'centroid_statistics(queries) + centroid_statistics(keys)',
        'centroid_statistics(queries)',
    ),
    Mutant(
        'experiments/grid.py',
        "known.get('seeds', {}).keys() >= set(grid.seeds)",
        "known.get('seeds', {})",
    ),
    Mutant('experiments/grid_configs.py', "PLACE.sub('', rows.text)", 'rows.text'),
    Mutant(
        'pruning/largest_entries.py',
        'above = [x > threshold for x in arrays]',
        'above = [x >= threshold for x in arrays]',
    ),
    Mutant('pruning/pruner.py', 'jnp.clip(share, 0.0, 1.0)) ** 3', 'jnp.clip(share, 0.0, 1.0)) ** 2'),
    Mutant(
        'inference/beam_search.py',
        '(reach_B > beams.finished.scores_Bn.min(axis=1))',
        '(reach_B > beams.finished.scores_Bn.max(axis=1))',
    ),
    Mutant('objectives/distillation.py', 'temperature**2 * optax.kl_divergence', 'temperature * optax.kl_divergence'),
)


def main() -> None:
    """Reads the flags, tests each mutant, and prints a line per mutant and one JSON object.

    The exit code is 0 if tests noticed every mutant.
    """
    options = define_flags()
    parse_flags(sys.argv, options=options)
    numbers = options.only or range(1, len(MUTANTS) + 1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        copy_checkout(options.tree, Path(folder))
        for number in numbers:
            mutant, start = MUTANTS[number - 1], time.monotonic()
            found[number], test = run_tests_on_mutant(mutant, Path(folder), is_own_alone=options.alone)
            print(f'{number:2} {mutant.path}: {found[number]} ({time.monotonic() - start:.0f} s) {test}', flush=True)
    print(json.dumps(summary(found)))
    sys.exit(int('nobody' in found.values()))


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this script, and returns them."""
    options = flags.FlagValues()
    define_path('tree', 'Checkout with the code and the tests.', ROOT, options)
    define_integers('only', None, 'Numbers of the mutants to test, from 1; all by default', options)
    flags.DEFINE_bool('alone', False, 'Run only the tests nearest to the file.', flag_values=options)
    return options


def summary(found: dict[int, str]) -> dict[str, int]:
    """Returns how many mutants were noticed by the nearest tests, by other tests of the package, and by no test."""
    kinds = ('file', 'package', 'nobody', 'absent')
    return {'mutants': len(found)} | {who: list(found.values()).count(who) for who in kinds}


def copy_checkout(tree: Path, folder: Path) -> None:
    """Copies code and tests into a folder, so that the checkout itself is never broken."""
    for name in COPIED:
        copy = shutil.copytree if (tree / name).is_dir() else shutil.copyfile
        copy(tree / name, folder / name)


def run_tests_on_mutant(mutant: Mutant, folder: Path, *, is_own_alone: bool = False) -> tuple[str, str]:
    """Breaks the code as a mutant says, runs the tests, and returns which tests notice it, and the first failing test.

    'file' = the nearest tests, 'package' = another test of its package, 'nobody' = no test, 'absent' = the tree does
    not have the line.

    Raises:
        RuntimeError: the nearest tests fail without the mutant, too.
    """
    name = mutant.find_file(folder / PACKAGE)
    if not name:
        return 'absent', ''
    path, nearest = folder / PACKAGE / name, nearest_tests(name, folder)
    if failed := first_failing_test(folder, nearest):
        raise RuntimeError(f'{failed} fails without any mutant')
    whole = path.read_text(encoding='utf-8')
    path.write_text(whole.replace(mutant.text, mutant.broken), encoding='utf-8')
    try:
        for who, tests in (('file', nearest), ('package', f'tests/{Path(name).parts[0]}')):
            if who == 'file' or not is_own_alone:
                if failed := first_failing_test(folder, tests):
                    return who, failed
        return 'nobody', ''
    finally:
        path.write_text(whole, encoding='utf-8')


def first_failing_test(folder: Path, tests: str) -> str:
    """Runs tests with pytest; returns the name of the first test that fails, '' if all pass.

    Raises:
        RuntimeError: the tests could not be run.
    """
    command = [sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider', tests]
    environment = os.environ | {'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
    done = subprocess.run(
        command_tied_to_parent(command), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f'pytest {tests} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}')
    failed = re.search(r'^(?:FAILED|ERROR) (\S+)', done.stdout, re.MULTILINE)
    return (failed[1] if failed else tests) if done.returncode else ''


if __name__ == '__main__':
    run_command(main)
