"""Finds the config files of the package by name, such as 'finetune/glue', wherever the package is installed.

In a checkout the folder configs/ is beside the package. A wheel has it inside the package. Config files import one
another by the name `configs`, so this file also makes that name importable.
"""

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.errors import InputError, nearest

PACKAGE = Path(__file__).resolve().parents[1]
CONFIGS = PACKAGE / 'configs' if (PACKAGE / 'configs').is_dir() else PACKAGE.parent / 'configs'
MOST_NEAR = 4  # maximum number of similar names in an error message


def find_config(text: str) -> str:
    """Returns the path of a config, with its argument: a path that exists, or a file of the package's configs.

    Args:
        text: a path or a name, with an argument after a colon if the config takes one. The ending .py may be left out:
            'finetune/glue:sst2' and 'configs/finetune/glue.py:sst2' name the same config of the package.

    Raises:
        InputError: there is neither a file with this path nor a config with this name; the message has similar names.
    """
    path, colon, argument = text.partition(':')
    name, known = path.removeprefix('./').removeprefix('configs/'), config_files()
    packaged = [one for one in (name, f'{name}.py') if one in known]
    # A path that is no regular file, such as /dev/stdin. A folder does not hide a config of the same name.
    is_other = Path(path).exists() and not (packaged and Path(path).is_dir())
    own = [one for one in (path, f'{path}.py') if Path(one).is_file()] or ([path] if not path or is_other else [])
    if own:
        make_configs_importable(is_first=Path(own[0]).resolve().is_relative_to(CONFIGS))
        return f'{own[0]}{colon}{argument}'
    if not packaged:
        raise InputError(f'config: there is no file {path!r}, and no config of this name; {advice_on_config(name)}')
    make_configs_importable(is_first=True)
    return f'{CONFIGS / packaged[0]}{colon}{argument}'


def find_config_arguments(arguments: list[str]) -> Iterator[str]:
    """Yields the arguments of a command line; the value of --config is replaced by the path from `find_config`."""
    before = ''
    for word in arguments:
        flag, equals, value = word.partition('=')
        if before in ('--config', '-config'):
            yield find_config(word)
        elif flag in ('--config', '-config') and equals:
            yield f'{flag}={find_config(value)}'
        else:
            yield word
        before = word


def config_files(folder: Path = CONFIGS) -> dict[str, Path]:
    """Returns the Python files of a folder of configs as {name: path}; a name is relative to the folder."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob('*.py')) if path.is_file()}


def config_docstrings() -> dict[str, str]:
    """Returns the docstring of each config of the package as {name: docstring}; files without `get_config` are left
    out."""
    trees = {name: ast.parse(path.read_bytes(), path.name) for name, path in config_files().items()}
    return {name: ast.get_docstring(tree) or '' for name, tree in trees.items() if has_get_config(tree)}


def has_get_config(tree: ast.Module) -> bool:
    """Whether a Python file defines, imports or assigns `get_config`, so that it is a config."""
    nodes = list(ast.walk(tree))
    bound = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return 'get_config' in bound


def make_configs_importable(*, is_first: bool) -> None:
    """Makes `from configs.common import ...` find the package's configs, also outside of a checkout.

    A folder named configs/ elsewhere on Python's path stays importable. `is_first` says which of the two wins if both
    have a file of the same name: the package's own configs need their own files, a user's config needs the user's.
    If another order of folders was set before, files that were imported from these folders are imported again.
    """
    before = sys.modules.pop('configs', None)
    found = importlib.util.find_spec('configs')
    others = [place for place in (found and found.submodule_search_locations) or [] if Path(place) != CONFIGS]
    places = [str(CONFIGS), *others] if is_first else [*others, str(CONFIGS)]
    if before is None or [*before.__path__] != places:
        for name in [name for name in sys.modules if name.startswith('configs.')]:
            del sys.modules[name]
    specification = importlib.machinery.ModuleSpec('configs', None, is_package=True)
    specification.submodule_search_locations = places
    sys.modules['configs'] = importlib.util.module_from_spec(specification)


def advice_on_config(name: str) -> str:
    """Returns the end of an error message about an unknown config: similar names, and the command that lists all."""
    known = list(config_docstrings())
    same = [one for one in known if Path(one).stem == Path(name).stem]
    near_stems = nearest(Path(name).stem, {Path(one).stem for one in known})
    near = same or nearest(name, known, most=MOST_NEAR) or [one for one in known if Path(one).stem in near_stems]
    found = f'did you mean {" or ".join(near[:MOST_NEAR])}? ' if near else ''
    return f'{found}`efficient-attention configs list` names all'
