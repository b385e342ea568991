"""Flags that several commands have, so that each has one name, one type and one sentence of help."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.errors import InputError

flags.disclaim_key_flags()  # --help lists a flag with the command that asks for it here


class PathParser(flags.ArgumentParser):
    """Reads a file or folder."""

    def parse(self, argument: str | Path) -> Path:
        """The path that a word names."""
        return Path(argument)


class ListParser(flags.ArgumentParser):
    """Reads values with commas between them; `read` makes a value of a word, or raises ValueError."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        super().__init__()
        self.read = read

    def parse(self, argument: str | Sequence[Any]) -> list[Any]:
        """The values of a word; a default is a list already."""
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
    """Defines a flag whose value is a list of some of `choices`; all of them by default."""

    def read(word: str) -> str:
        if word not in choices:
            raise ValueError(f'{word!r} is unknown; known: {", ".join(choices)}')
        return word

    return _define_list(name, choices, meaning, ListParser(read), options)


def _define_list(
    name: str, default: Sequence[Any] | None, meaning: str, parser: ListParser, options: flags.FlagValues
) -> flags.FlagHolder:
    commas = flags.CsvListSerializer(',')
    return flags.DEFINE(parser, name, default, f'{meaning}; with commas.', flag_values=options, serializer=commas)


def define_verify() -> flags.FlagHolder[bool]:
    """--verify, of commands that read or write the checkpoints of a run."""
    return flags.DEFINE_bool('verify', False, "Compare the run's checkpoints with their seals, and do nothing else.")


def define_workdir(
    meaning: str = 'Folder of the run.', options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[Path | None]:
    """Defines --workdir, a run that is trained."""
    return define_path('workdir', meaning, options=options)


def define_model(options: flags.FlagValues = flags.FLAGS) -> flags.FlagHolder[Path | None]:
    """Defines --model, the folder of a trained model; --workdir is another name of this flag."""
    return _define_folder('model', 'workdir', 'Folder of a run, or a Hugging Face folder.', options)


def define_run(
    meaning: str = 'Folder of the run.', options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[Path | None]:
    """Defines --workdir, the folder of a run that is read; --model is another name of this flag."""
    return _define_folder('workdir', 'model', meaning, options)


def _define_folder(name: str, other: str, meaning: str, options: flags.FlagValues) -> flags.FlagHolder[Path | None]:
    """Defines a folder flag with two names; a command line may use only one of them."""
    holder = flags.DEFINE(
        PathParser(),
        name,
        None,
        meaning,
        flag_values=options,
        serializer=flags.ArgumentSerializer(),
        allow_overwrite=False,  # else the last of two folders would win silently
    )
    flags.DEFINE_alias(other, name, flag_values=options)
    return holder


def define_output(
    meaning: str, default: Path | None = None, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[Path | None]:
    """Defines --output, the file or folder that is written."""
    return define_path('output', meaning, default, options)


def define_checkpoint(
    default: str, meaning: str = '', options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[str]:
    """Defines --checkpoint and --average; `meaning` says what an empty default stands for."""
    mean = 'Take the mean of so many of the last checkpoints of the run, in place of --checkpoint.'
    flags.DEFINE_integer('average', None, mean, lower_bound=1, flag_values=options)
    meaning = f'Checkpoint of the run: last, best (by checkpoint.best_metric of its config), or a step{meaning}.'
    return flags.DEFINE_string('checkpoint', default, meaning, flag_values=options)


def chosen_checkpoint(options: flags.FlagValues = flags.FLAGS) -> str:
    """The value of --checkpoint, or 'average-N' for --average; raises InputError if both are given."""
    if options.average is None:
        return options.checkpoint
    if options['checkpoint'].present:
        raise InputError('--average takes the mean of the last checkpoints, and --checkpoint names one; give one')
    return f'average-{options.average}'


def define_batch_size(
    default: int | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[int | None]:
    """Defines --batch_size."""
    return flags.DEFINE_integer('batch_size', default, f'Rows at a time{meaning}.', flag_values=options)


def define_length(
    default: int | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[int | None]:
    """Defines --length, positions or tokens of a row."""
    return flags.DEFINE_integer('length', default, meaning, flag_values=options)


def define_split(
    names: Sequence[str], default: str | None, meaning: str, options: flags.FlagValues = flags.FLAGS
) -> flags.FlagHolder[str | None]:
    """Defines --split, one of `names`."""
    return flags.DEFINE_enum('split', default, names, meaning, flag_values=options)
