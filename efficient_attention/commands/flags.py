"""Defines the flags that several commands share, so that each flag has one name, one type and one help text."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.errors import InputError

flags.disclaim_key_flags()  # --help lists these flags under the command that uses them, not under this module


class PathParser(flags.ArgumentParser):
    """Parser of flags whose value is the path of a file or folder."""

    def parse(self, argument: str | Path) -> Path:
        """Returns the value of a flag as a `Path`."""
        return Path(argument)


class ListParser(flags.ArgumentParser):
    """Parser of flags with comma-separated values; `read` converts each part to a value, or raises ValueError."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self.read = read

    def parse(self, argument: str | Sequence[Any]) -> list[Any]:
        """Returns the list of values of a comma-separated text; a default value, already a list, stays unchanged."""
        if not isinstance(argument, str):
            return list(argument)
        return [self.read(part.strip()) for part in argument.split(',')]


def define_path(
    name: str, meaning: str, default: Path | None = None, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder:
    """Defines a flag whose value is a path."""
    return flags.DEFINE(
        PathParser(), name, default, meaning, flag_values=options, serializer=flags.ArgumentSerializer()
    )


def define_integers(
    name: str, default: Sequence[int] | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder:
    """Defines a flag whose value is a list of whole numbers."""
    return _define_list(name, default, meaning, ListParser(int), options)


def define_choices(
    name: str, choices: Sequence[str], meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder:
    """Defines a flag whose value is a comma-separated list of allowed names; the default is all allowed names."""

    def read(word: str) -> str:
        if word not in choices:
            raise ValueError(f'{word!r} is unknown; known: {", ".join(choices)}')
        return word

    return _define_list(name, choices, meaning, ListParser(read), options)


def _define_list(
    name: str, default: Sequence[Any] | None, meaning: str, parser: ListParser, options: flags.FlagValues
) -> flags.FlagHolder:
    commas = flags.CsvListSerializer(',')
    return flags.DEFINE(parser, name, default, f'{meaning}; comma-separated.', flag_values=options, serializer=commas)


def define_config(meaning: str, options: flags.FlagValues) -> flags.FlagHolder:
    """Defines --config, the config file of a run; --config.<group>.<field>=value sets one of its fields."""
    # These imports are late, because most programs read no config.
    from ml_collections import config_flags

    from efficient_attention.commands.config_parser import ConfigFileParser

    holder = config_flags.DEFINE_config_file('config', None, meaning, flag_values=options)
    options['config'].parser = ConfigFileParser('config')
    return holder


class StepRangeParser(flags.ArgumentParser):
    """Parser of flags whose value is a range of training steps, such as 20:25."""

    def parse(self, argument: str | tuple[int, int]) -> tuple[int, int]:
        """Returns the first and the last step; raises ValueError if the text is not a range of steps."""
        if isinstance(argument, tuple):
            return argument
        found = re.fullmatch(r'(\d{1,9}):(\d{1,9})', argument, re.ASCII)
        first, last = map(int, found.groups()) if found else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(f'{argument!r} is not a range of steps; write FIRST:LAST, counted from 1, such as 20:25')
        return first, last


def define_profile(options: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder[tuple[int, int] | None]:
    """Defines --profile, the training steps that a run traces."""
    meaning = (
        'Trace these training steps, such as 20:25, in <workdir>/profile for XProf, and print the five longest '
        'operations. On GPUs the run is then compiled without command buffers.'
    )
    return flags.DEFINE(
        StepRangeParser(), 'profile', None, meaning, flag_values=options, serializer=flags.ArgumentSerializer()
    )


def define_verify(options: flags.FlagValues) -> flags.FlagHolder[bool]:
    """Defines --verify, the flag with which a command only verifies the checksums of a run's checkpoints."""
    meaning = "Verify the checksums of the run's checkpoints, and do nothing else."
    return flags.DEFINE_bool('verify', False, meaning, flag_values=options)


def define_model(options: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder[Path | None]:
    """Defines --model, the folder of a trained model; --workdir is an alias of this flag."""
    return _define_folder_flag('model', 'workdir', 'Folder of a run, or a Hugging Face folder.', options)


def define_workdir(
    meaning: str = 'Folder of the run.', options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[Path | None]:
    """Defines --workdir, the folder of a run; --model is an alias of this flag."""
    return _define_folder_flag('workdir', 'model', meaning, options)


def _define_folder_flag(
    name: str, other: str, meaning: str, options: flags.FlagValues
) -> flags.FlagHolder[Path | None]:
    """Defines a folder flag with two names; a command line may use only one of the names."""
    holder = flags.DEFINE(
        PathParser(),
        name,
        None,
        meaning,
        flag_values=options,
        serializer=flags.ArgumentSerializer(),
        allow_overwrite=False,  # if both names are given, absl reports an error instead of using the last folder
    )
    flags.DEFINE_alias(other, name, flag_values=options)
    return holder


def define_output(
    meaning: str, default: Path | None = None, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[Path | None]:
    """Defines --output, the file or folder that a command writes."""
    return define_path('output', meaning, default, options)


def check_new_folder(output: Path) -> None:
    """Raises InputError if `--output` is a file or a folder with content; an empty folder is allowed."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f'--output {output}: there is something already')


def define_checkpoint(
    default: str, meaning: str = '', options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[str]:
    """Defines --checkpoint, which selects one checkpoint, and --average, which selects the mean of the last ones.

    `meaning` explains an empty default of --checkpoint in the help text.
    """
    mean = 'Use the mean of this many last checkpoints of the run, instead of --checkpoint.'
    flags.DEFINE_integer('average', None, mean, lower_bound=1, flag_values=options)
    meaning = f'Checkpoint of the run: last, best (by checkpoint.best_metric of its config), or a step{meaning}.'
    return flags.DEFINE_string('checkpoint', default, meaning, flag_values=options)


def checkpoint_from_flags(options: flags.FlagValues = flags.FLAGS) -> str:
    """Returns the checkpoint that the flags select: the value of --checkpoint, or 'average-N' for --average=N.

    Raises:
        InputError: both flags are given.
    """
    if options.average is None:
        return options.checkpoint
    if options['checkpoint'].present:
        raise InputError('--average takes the mean of the last checkpoints, and --checkpoint names one; give one')
    return f'average-{options.average}'


def define_batch_size(
    default: int | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[int | None]:
    """Defines --batch_size, the number of sequences that the model processes at a time."""
    return flags.DEFINE_integer('batch_size', default, f'Rows at a time{meaning}.', flag_values=options)


def define_length(
    default: int | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[int | None]:
    """Defines --length, the number of positions or tokens per sequence."""
    return flags.DEFINE_integer('length', default, meaning, flag_values=options)


def define_split(
    names: Sequence[str], default: str | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[str | None]:
    """Defines --split, the flag that selects a part of the data, such as the validation set."""
    return flags.DEFINE_enum('split', default, names, meaning, flag_values=options)
