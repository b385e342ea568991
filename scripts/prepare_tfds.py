"""Downloads and prepares a dataset of TensorFlow Datasets (TFDS), so that training can read it without TensorFlow.

    make tfds NAME=glue/sst2

The makefile installs TensorFlow into .venv-tfds and runs this script there. Training then reads the dataset as
'tfds:glue/sst2:train'. NAME may also be a Python file that defines a dataset of your own, as TFDS describes it.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import importlib.util
import sys
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.errors import InputError, RunError, nearest, one_line

FORMATS = ('array_record', 'tfrecord')


def main() -> None:
    """Prepares the dataset, and prints its folder, the rows of its splits and its features."""
    options = flags.FlagValues()
    flags.DEFINE_string(
        'name', '', 'Name of the dataset, with its config: imdb_reviews, glue/sst2.', flag_values=options
    )
    flags.DEFINE_string('folder', 'data/tfds', 'Folder for all prepared datasets.', flag_values=options)
    flags.DEFINE_enum('format', 'array_record', FORMATS, 'Format of the prepared files.', flag_values=options)
    parse_flags(sys.argv, options=options)
    if not options.name:
        raise InputError('no name of a dataset; write: make tfds NAME=glue/sst2')
    builder = prepare(options.name, Path(options.folder), options.format)
    rows = ', '.join(f'{name} {split.num_examples:,}' for name, split in builder.info.splits.items())
    print(f'{builder.data_dir}: rows: {rows}; features: {", ".join(builder.info.features)}')


def prepare(name: str, folder: Path, file_format: str) -> Any:
    """Prepares a dataset below `folder` unless that is done already; returns TFDS's builder.

    Raises:
        InputError: there is no such dataset, or the Python file defines none.
        RunError: the download or the preparation failed.
    """
    if importlib.util.find_spec('tensorflow') is None:
        raise InputError(f'{sys.executable} has no TensorFlow; write: make tfds NAME={name}')
    import tensorflow_datasets as tfds

    try:
        if name.endswith('.py'):
            builder = dataset_class(Path(name))(data_dir=folder, file_format=file_format)
        else:
            builder = tfds.builder(name, data_dir=folder, file_format=file_format)
    except InputError:
        raise
    except tfds.core.DatasetNotFoundError:
        near = nearest(name.partition('/')[0], tfds.list_builders(), most=3)
        raise InputError(f'{name}: TFDS has no such dataset; nearest names: {", ".join(near) or "none"}') from None
    except ValueError as error:
        raise InputError(f'{name}: {one_line(error)[:400]}') from None
    try:
        builder.download_and_prepare(download_dir=folder / 'downloads')
    except Exception as error:  # A builder raises many kinds of exception.
        raise RunError(f'{name}: not prepared: {type(error).__name__}: {one_line(error)[:400]}') from error
    return builder


def dataset_class(path: Path) -> Any:
    """Runs a Python file and returns the TFDS dataset that it defines; raises InputError if it is not exactly one."""
    import tensorflow_datasets as tfds

    if not path.is_file():
        raise InputError(f'{path}: no such file')
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    base = tfds.core.GeneratorBasedBuilder
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
    found = [value for value in found if value.__module__ == path.stem]
    if len(found) != 1:
        raise InputError(f'{path}: it defines {len(found)} subclasses of GeneratorBasedBuilder; one is needed')
    found[0].pkg_dir_path = path.parent  # TFDS looks there for files that describe the dataset.
    return found[0]


if __name__ == '__main__':
    run_command(main)
