"""Tests rules about the whole repository: the direction of imports, and which files and names there may be."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from efficient_attention.attention.registry import NAMES
from efficient_attention.data.arena.dataset_registry import GENERATED, READ
from efficient_attention.programs.dispatch import PROGRAMS
from efficient_attention.tasks.problems.registry import PROBLEMS
from efficient_attention.tasks.registry import DENOISING, MASKED_ROWS, TASKS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = 'efficient_attention'
# A package may import itself and those before it. `data` imports only FOR_DATA; KNOWS_NO_DATA never import `data`.
ORDER = (
    'errors',
    'atomic_files',
    'host_memory',
    'attention',
    'recurrence',
    'testing',
    'config',
    'processes',
    'commands',
    'data',
    'modules',
    'models',
    'pruning',
    'objectives',
    'tasks',
    'workdir',
    'interop',
    'inference',
    'inspection',
    'scoring',
    'distillation',
    'training',
    'planning',
    'experiments',
    'programs',
    '__main__',
)
NO_PART = ('__init__.py', '__init__.pyi', '__pycache__', 'py.typed')  # what else the package's folder has
RANK = {package: rank for rank, package in enumerate(ORDER)}
KNOWS_NO_DATA = ('modules', 'models', 'objectives')
FOR_DATA = ('errors', 'atomic_files', 'config')
# The packages that a user of the mechanisms has to install, by folder.
THIRD_PARTY = {
    'attention': {'jax', 'jaxtyping', 'numpy'},
    'config': {'jax'},
    'recurrence': {'jax'},
    'testing': {'jax', 'numpy'},
    'modules': {'flax', 'jax', 'jaxtyping', 'numpy'},
}
HEAVY = ('array_record', 'grain', 'matplotlib', 'optax', 'orbax', 'rich', 'safetensors', 'sentencepiece')
HEAVY += ('tensorboardX', 'tensorflow', 'tensorflow_datasets', 'tokenizers')
# The modules, classes and functions that each registry loads by name.
REGISTRIES = {
    f'{PACKAGE}.attention.registry': [f'{PACKAGE}.attention.{name}' for name in NAMES],
    f'{PACKAGE}.programs.dispatch': [f'{PACKAGE}.programs.{name.replace("-", "_")}.main' for name in PROGRAMS],
    f'{PACKAGE}.tasks.registry': [*TASKS.values(), MASKED_ROWS, DENOISING],
    f'{PACKAGE}.tasks.problems.registry': [*PROBLEMS.values()],
    f'{PACKAGE}.data.arena.dataset_registry': [
        f'{PACKAGE}.data.arena.{one}' for one in (*GENERATED.values(), *READ.values())
    ],
}
UNSAFE_MODULES = {'cloudpickle', 'dill', 'joblib', 'marshal', 'pickle', 'pickletools', 'shelve', 'torch', 'yaml'}
UNSAFE_CALLS = {'__import__', 'compile', 'eval', 'exec', 'execfile', 'os.popen', 'os.system', 'runpy.run_path'}
UNSAFE_CALLS |= {'pd.read_pickle', 'torch.load', 'yaml.full_load', 'yaml.load', 'yaml.unsafe_load'}
UNSAFE_OPTIONS = ('allow_pickle', 'shell', 'trust_remote_code')  # keyword arguments that must be False

SOURCES = sorted((ROOT / PACKAGE).rglob('*.py'))
CONFIGS = sorted((ROOT / 'configs').rglob('*.py'))
ENTRY_POINTS = sorted([*ROOT.glob('*.py'), *(ROOT / 'scripts').rglob('*.py')])


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imported(path: Path, tree: ast.AST) -> Iterator[str]:
    """Yields the dotted names that a file imports anywhere in it; `from a import b` yields a and a.b."""
    package = module_name(path).split('.') if path.name == '__init__.py' else module_name(path).split('.')[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = '.'.join([*above, *filter(None, [node.module])])
            yield base
            yield from (f'{base}.{alias.name}' for alias in node.names)


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding='utf-8'), str(path))


def depends_on(path: Path) -> set[str]:
    """Returns the dotted names that a file imports; if it is a registry, also those that it loads by name."""
    by_name = REGISTRIES.get(module_name(path), [])
    return {*imported(path, parse(path)), *by_name, *(name.rpartition('.')[0] for name in by_name)}


def arrow_points_back(source: str, target: str) -> bool:
    """Returns whether the package `source` must not import the package `target`."""
    if source == target:
        return False
    if source == 'data' and target not in FOR_DATA:
        return True
    return RANK[target] > RANK[source] or (target == 'data' and source in KNOWS_NO_DATA)


def part_of(module: str) -> str | None:
    """Returns 'data' for 'efficient_attention.data.sources.x'; None outside the package and for the package itself."""
    parts = module.split('.')
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def assert_in_none(paths: list[Path], found_in: Callable[[Path], Iterable[str]]) -> None:
    """Checks that `found_in` returns nothing for any of the files; the failure names the modules and the findings."""
    assert paths
    found = {module_name(path): sorted(found_in(path)) for path in paths}
    bad = [f'{name}: {", ".join(what)}' for name, what in found.items() if what]
    assert not bad, '\n'.join(bad)


@pytest.mark.parametrize(
    'source, target, back',
    [
        ('modules', 'attention', False),
        ('attention', 'modules', True),
        ('data', 'models', True),
        ('models', 'data', True),
        ('tasks', 'data', False),
        ('objectives', 'training', True),
        ('inference', 'training', True),
        ('training', 'inference', False),
        ('training', 'planning', True),
        ('training', 'experiments', True),
        ('distillation', 'training', True),
        ('processes', 'commands', True),
        ('config', 'attention', False),
        ('data', 'attention', True),
        ('data', 'errors', False),
    ],
)
def test_the_order_of_the_parts(source, target, back):
    assert arrow_points_back(source, target) is back


def pointing_back(path: Path) -> list[str]:
    """Returns the packages that a file imports although it must not."""
    source = part_of(module_name(path))
    targets = {part for name in depends_on(path) if (part := part_of(name)) in RANK}
    if source is None:  # the package itself shows only the mechanisms and the models built on them, and imports fast
        return sorted(targets - {'attention', 'modules', 'models', 'errors'})
    assert source in RANK, f'{source} has no place in ORDER'
    return [target for target in sorted(targets) if arrow_points_back(source, target)]


def test_imports_point_one_way():
    assert_in_none(SOURCES, pointing_back)


def test_no_two_packages_import_one_another():
    arrows = {
        (source, target)
        for path in SOURCES
        if (source := part_of(module_name(path))) is not None
        for target in map(part_of, depends_on(path))
        if target in RANK and source != target
    }
    assert len(ORDER) == len(set(ORDER)) and not {(target, source) for source, target in arrows} & arrows
    packages = {path.name for path in (ROOT / PACKAGE).iterdir() if path.name not in NO_PART}
    assert {name.removesuffix('.py') for name in packages} == set(ORDER)


def test_kinds_of_rows_share_only_what_lies_above_them():
    """A kind of data in data/ imports only its own folder and the folders that all kinds share. These import no kind.

    One exception: examples/ imports arena/, because labelled examples may also be long-range ones.
    """
    folders = {f'{PACKAGE}.data.{kind}' for kind in ('corpus', 'text', 'examples', 'pairs', 'arena')}

    def others(path: Path) -> set[str]:
        this_folder = '.'.join(module_name(path).split('.')[:3])
        targets = {'.'.join(name.split('.')[:3]) for name in imported(path, parse(path))}
        also_read = {f'{PACKAGE}.data.arena'} if this_folder == f'{PACKAGE}.data.examples' else set()
        return targets & folders - {this_folder} - also_read

    assert_in_none(sorted((ROOT / PACKAGE / 'data').rglob('*.py')), others)


@pytest.mark.parametrize('name', NAMES)
def test_an_attention_folder_imports_no_other_attention_folder(name: str):
    """Code that mechanisms share is outside their folders: at the top of attention/, or in folders such as features/
    and patterns/.
    """
    folders = {f'{PACKAGE}.attention.{other}' for other in NAMES if other != name}
    for path in (ROOT / PACKAGE / 'attention' / name).glob('*.py'):
        targets = {'.'.join(target.split('.')[:3]) for target in imported(path, parse(path))}
        assert not targets & folders, path


def test_what_attention_folders_share_imports_none_of_them():
    shared = [
        path
        for folder in ('distributions', 'features', 'logits', 'patterns')
        for path in (ROOT / PACKAGE / 'attention' / folder).glob('*.py')
    ]
    folders = {f'{PACKAGE}.attention.{name}' for name in NAMES}
    for path in shared:
        assert not {'.'.join(target.split('.')[:3]) for target in imported(path, parse(path))} & folders, path


def test_no_file_imports_itself_through_others():
    modules = {module_name(path): path for path in SOURCES}
    graph = {name: depends_on(path) & set(modules) - {name} for name, path in modules.items()}
    for name, path in modules.items():
        # of a package and its files, only the package's own imports count as dependencies
        if path.name == '__init__.py':
            graph = {key: value - {name} if key.startswith(name + '.') else value for key, value in graph.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def loads_by_name(tree: ast.AST) -> bool:
    """Returns whether a file imports modules whose names it computes."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    imports = [one for one in calls if ast.unparse(one.func).split('.')[-1] == 'import_module']
    return any(not isinstance(one.args[0], ast.Constant) for one in imports)


def test_every_module_that_loads_others_by_name_is_a_known_registry():
    """The package's own __init__.py loads its public names by name too, and is no registry."""
    assert {module_name(path) for path in SOURCES if loads_by_name(parse(path))} == {*REGISTRIES, PACKAGE}
    modules = set(map(module_name, SOURCES))
    assert all({name, name.rpartition('.')[0]} & modules for names in REGISTRIES.values() for name in names)


def test_mechanisms_need_few_packages():
    def needed(path: Path) -> set[str]:
        names = {name.split('.')[0] for name in imported(path, parse(path))}
        return names - set(sys.stdlib_module_names) - {PACKAGE} - THIRD_PARTY[str(part_of(module_name(path)))]

    assert_in_none([path for path in SOURCES if part_of(module_name(path)) in THIRD_PARTY], needed)


FINE_TUNE = ('arena', 'distill', 'prune')  # configs outside finetune/ whose runs fine-tune


def test_configs_import_only_their_common_file():
    """A config imports only the `common.py` of all configs, the `common.py` of its folder, and the papers' model sizes.

    Configs that fine-tune also import configs/finetune/common.py. Only a `common.py` imports the fields' dataclasses.
    """

    def others(path: Path) -> list[str]:
        kind = path.relative_to(ROOT / 'configs').with_suffix('').parts[0]
        kinds = f'{kind}|finetune' if kind in FINE_TUNE else kind
        allowed = rf'configs(\.({kinds}))?\.common(\.\w+)?|ml_collections(\.\w+)?'
        allowed += rf'|{PACKAGE}\.models\.(\w+_)?sizes(\.\w+)?'
        if path.name == 'common.py':
            allowed += rf'|typing(\.\w+)?|{PACKAGE}\.config\.(run|dict_conversion)(\.\w+)?'
        return [name for name in sorted(imported(path, parse(path))) if not re.fullmatch(allowed, name)]

    assert_in_none(CONFIGS, others)


def test_nothing_imports_the_entry_points():
    entries = {path.stem for path in ROOT.glob('*.py')} | {'configs', 'scripts', 'tests'}
    for path in SOURCES:
        assert not {name.split('.')[0] for name in imported(path, parse(path))} & entries, path


def test_every_folder_of_the_package_has_tests_in_a_folder_of_its_name():
    """tests/ mirrors the folders of the package. Folders of mechanisms need none: tests/attention/test_registry.py runs
    every mechanism.
    """
    tabled = {ROOT / PACKAGE / 'attention' / name for name in NAMES}
    folders = {path.parent for path in SOURCES if path.name != '__init__.py'} - tabled
    tests = [ROOT / 'tests' / folder.relative_to(ROOT / PACKAGE) for folder in folders]
    assert not [str(folder.relative_to(ROOT)) for folder in tests if not [*folder.glob('test_*.py')]]


def test_the_files_that_start_first_exist():
    assigned = [node for node in parse(ROOT / 'tests' / 'conftest.py').body if isinstance(node, ast.Assign)]
    (longest,) = [node.value for node in assigned if ast.unparse(node.targets[0]) == 'LONGEST']
    there = {path.name for path in (ROOT / 'tests').rglob('test_*.py')}
    names = ast.literal_eval(longest)
    assert names and not set(names) - there


def test_the_files_of_the_second_python_exist():
    script = (ROOT / '.ci' / 'run').read_text(encoding='utf-8')
    core = re.findall(r'^CORE\+?=\((.*)\)$', script, re.MULTILINE)
    command = ['bash', '-c', f'echo {" ".join(core)}']
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert core and not [name for name in listed.stdout.split() if not (ROOT / name).exists()]


def test_make_test_fast_names_every_file_with_fast_tests():
    """`make test-fast` gives pytest only the files in which grep finds the mark as it is usually written."""
    marked = {path for path in (ROOT / 'tests').rglob('*.py') if re.search(r'\bmark\.fast\b', path.read_text('utf-8'))}
    named = {path for path in marked if path.match('test_*.py') and f'pytest.{"mark"}.fast' in path.read_text('utf-8')}
    assert marked and named == marked


def test_the_tests_that_need_compilers_of_absent_devices_run_in_make_test_plan():
    wanted = re.compile(r"find_spec\('(libtpu|jax_cuda13_plugin)'\)|needs \{package\}: make plan")
    files = [path for path in (ROOT / 'tests').rglob('test_*.py') if wanted.search(path.read_text(encoding='utf-8'))]
    makefile = (ROOT / 'Makefile').read_text(encoding='utf-8').replace('\\\n', ' ')
    (named,) = re.findall(r'^PLAN_TESTS = (.*)$', makefile, re.MULTILINE)
    folders = [ROOT / name for name in named.split()]
    assert len(files) > 3 and all(folder.exists() for folder in folders)
    assert not [path for path in files if not any(path.is_relative_to(folder) for folder in folders)]


def test_nothing_runs_code_out_of_a_file():
    assert_in_none([*SOURCES, *CONFIGS, *ENTRY_POINTS], lambda path: unsafe(path, parse(path)))


def unsafe(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yields the imports, calls and options of a file that may run code out of another file or out of a text."""
    modules = UNSAFE_MODULES - ({'torch'} if {'peers', 'make_fixtures'} & {*path.parts} else set())
    yield from {name.split('.')[0] for name in imported(path, tree)} & modules
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield from [f'{name} in line {node.lineno}'] if name in UNSAFE_CALLS else []
            options = [option for option in node.keywords if option.arg in UNSAFE_OPTIONS]
            yield from (f'{one.arg} in line {node.lineno}' for one in options if ast.unparse(one.value) != 'False')


@pytest.mark.parametrize(
    'line',
    ['import pickle', 'from yaml import load', 'eval(text)', 'numpy.load(path, allow_pickle=True)']
    + ['torch.load(path)', 'subprocess.run(text, shell=is_shell)', '__import__(name)', 'def f():\n    import torch'],
)
def test_what_may_run_code_is_noticed(line: str):
    assert list(unsafe(ROOT / PACKAGE / 'x.py', ast.parse(line)))


@pytest.mark.parametrize('module', [PACKAGE, f'{PACKAGE}.config.run'])
def test_the_package_and_its_configs_are_light(module: str):
    program = f'import sys, {module}; print(*sorted({{name.split(".")[0] for name in sys.modules}}))'
    loaded = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(loaded.stdout.split()) & {*HEAVY, *(['flax'] if module != PACKAGE else [])}


def test_every_script_has_its_flags_from_one_library():
    scripts = [path for path in ROOT.glob('scripts/**/*.py') if 'import argparse' in path.read_text(encoding='utf-8')]
    # These three scripts use argparse: the environment of the peer libraries has no absl.
    assert sorted(path.name for path in scripts) == [
        'encoder_decoders.py',
        'encoders.py',
        'search_cases.py',
    ]


# Users call `attend`, and name its options one by one.
MANY_PARAMETERS = {f'{PACKAGE}.attention.attend.attend'}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Returns the names of a function's parameters without `self` and `cls`."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
    return [one.arg for one in named if one.arg not in ('self', 'cls')]


def with_many_parameters(path: Path) -> set[str]:
    """Returns the functions of a file that have more than seven parameters and are not in `MANY_PARAMETERS`."""
    functions = [node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    many = {f'{module_name(path)}.{node.name}' for node in functions if len(parameters(node)) > 7}
    return many - MANY_PARAMETERS


def test_a_function_has_at_most_seven_parameters():
    """More are hard to keep in mind: arguments that belong together go into a dataclass or a named tuple."""
    assert_in_none([*SOURCES, *ENTRY_POINTS], with_many_parameters)


@pytest.mark.parametrize('folder', ['.', 'configs', PACKAGE, 'scripts', 'tests'])
def test_no_file_is_longer_than_800_lines(folder: str):
    paths = (ROOT / folder).glob('*.py') if folder == '.' else (ROOT / folder).rglob('*.py')
    assert not [str(path) for path in paths if path.read_text(encoding='utf-8').count('\n') > 800]


WITH_LETTERS = ('attention', 'modules', 'models', 'objectives')
# These arrays keep the names of the arguments of `attend` and `Relative`, which the dimension key lists.
# Keys of random numbers, one in all or one for each row, are exempt as well.
PUBLIC_ARRAYS = {'query', 'key', 'value', 'bias', 'segments', 'positions', 'table'}
PUBLIC_ARRAYS |= {'rng', 'dropout_rng', 'mechanism_rng', 'state_rng', 'additive', 'centres'}
PUBLIC_ARRAYS |= {f'{side}_{name}' for side in ('query', 'key') for name in ('segments', 'positions')}


def annotated(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields the parameters of functions and the fields of classes, each with its annotation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            yield node.arg, ast.unparse(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), ast.unparse(node.annotation)


def lacks_letters(name: str, annotation: str) -> bool:
    """Returns whether an array's name lacks the letters of its axes; scalars and arrays of unknown shape need none."""
    is_array = re.match(r'(?:Array|Numbers|[A-Z]\w+\[(?:Array|Numbers)\b.*\])(?: \| None)?$', annotation)
    # A suffix with a capital letter, a suffix with a digit, or one or two small letters.
    has_letters = re.search(r'_((?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]+|[a-z]{1,2})$', name) or name == '_'
    return bool(is_array) and not (has_letters or name in PUBLIC_ARRAYS or re.search(r"\*|\.\.\.|, ''", annotation))


@pytest.mark.parametrize(
    'name, annotation, lacks',
    [
        ('q_BLHK', 'Array', False),
        ('starts_t', 'Array', False),
        ('lengths', 'Array', True),
        ('new_lengths', 'Array', True),
        ('scale', "Float[Array, 'B L'] | None", True),
        ('key_places', "Int[Array, 'B M']", True),
        ('x', "Float[Array, 'B ...']", False),
        ('number', "Int[Array, '']", False),
        ('key', 'Array', False),
        ('layout', 'Layout', False),
    ],
)
def test_which_names_lack_letters(name: str, annotation: str, lacks: bool):
    assert lacks_letters(name, annotation) is lacks


@pytest.mark.parametrize('package', WITH_LETTERS)
def test_arrays_end_in_the_letters_of_their_axes(package: str):
    folder = ROOT / PACKAGE / package
    paths = [path for path in SOURCES if path.is_relative_to(folder)]
    assert paths and not [
        (path.name, *pair) for path in paths for pair in annotated(parse(path)) if lacks_letters(*pair)
    ]
