"""Trains and evaluates models from a Python program, as train.py and eval.py do from the command line."""

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from absl import flags
from ml_collections import ConfigDict

from efficient_attention.commands.command_line import parse_flag_values
from efficient_attention.commands.config_parser import with_defaults
from efficient_attention.commands.flags import define_config
from efficient_attention.config.dict_conversion import field_names, unknown_field_error
from efficient_attention.config.run import RunConfig
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.keyword_option_types import EvalOptions
from efficient_attention.training import loop
from efficient_attention.training.fill_config import fill_config
from efficient_attention.workdir import print_plain_log_lines
from efficient_attention.workdir.checkpoint_reader import LAST
from efficient_attention.workdir.folder_kind import RUN, check_folder_kind_and_parents

Config = str | Path | ConfigDict | Mapping[str, Any]


def train(config: Config, workdir: str | Path, changes: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Trains a config's model, as train.py does, and returns the validation metrics at the end.

    The same call with the same workdir resumes the run. A complete run is only evaluated. Returns {} if the run has no
    validation set. Ctrl-C saves the run and raises RunStopped.

        ea.train('quickstart.py', 'runs/quickstart', {'train.steps': 500})

    Args:
        config: the name of a config of this package or the path of a file, with an argument after a colon if it takes
            one, as in 'finetune/glue.py:sst2'. Or a ConfigDict, or a nested dict {group: {field: value}}; missing
            fields have their defaults.
        workdir: the folder of the run; created if missing.
        changes: fields of the config to change, such as {'train.steps': 500} or {'train': {'steps': 500}}; the other
            fields of a group keep their values.

    Raises:
        InputError: bad config, data or workdir.
        RunError: the run cannot continue, for example because of a full disk.
        RunStopped: a stop signal ended the run, which is saved.
    """
    print_plain_log_lines()
    values, workdir = config_values(config, changes or {}), Path(workdir)
    check_folder_kind_and_parents(workdir, RUN)
    filled = fill_config(values)
    return loop.train(filled.config, workdir, examples=filled.examples, pretrained=filled.pretrained)


def evaluate(
    workdir: str | Path,
    *,
    checkpoint: str = LAST,
    batch_size: int | None = None,
    source: str | None = None,
    **protocol: Unpack[EvalOptions],
) -> dict[str, float | str]:
    """Returns a run's held-out metrics, with the training step as 'step', as eval.py prints them.

        ea.evaluate('runs/quickstart', checkpoint='best')
        ea.evaluate('checkpoints/gpt2', source='text:data/test.txt', context=1024, stride=512)

    Args:
        workdir: a folder that `train` wrote, or a Hugging Face folder of a language model (GPT-2).
        checkpoint: 'last', 'best', a step's number, or 'average-5' for the mean of the last 5.
        batch_size: rows at a time, over all devices; None = as in the config, or 8 for a Hugging Face folder.
        source: text to evaluate a language model on, spelled as `data.source`; None = the run's held-out text.
        protocol: fields of the config's `eval` group to change, such as `split` and `context`.

    Raises:
        InputError: there is no run or checkpoint, no text is held out, the data have changed, or an option is bad.
    """
    print_plain_log_lines()
    return evaluate_workdir(Path(workdir), checkpoint=checkpoint, batch_size=batch_size, source=source, **protocol)


def config_values(config: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a config as nested dicts, with the changed fields.

    A field that is computed from a changed field changes too, such as `model.vocab_size`. `fill_config` checks all
    values.

    Raises:
        InputError: the file cannot be read, or a group of a changed field is unknown.
    """
    if isinstance(config, ConfigDict):
        found = with_defaults(copy.deepcopy(config))
    elif isinstance(config, Mapping):
        found = with_defaults(config)
    else:
        found = read_config_file(str(config))
    with found.unlocked(), found.ignore_type():
        for name, value in flatten_changes(changes).items():
            try:
                found.update_from_flattened_dict({name: value})
            except KeyError:
                raise unknown_field_error(name, field_names(RunConfig)) from None
    return found.to_dict()


def flatten_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes with the fields of each group written as '<group>.<field>'."""
    flat: dict[str, Any] = {}
    for name, value in changes.items():
        is_group = isinstance(value, Mapping) and '.' not in name
        flat |= {f'{name}.{field}': one for field, one in value.items()} if is_group else {name: value}
    return flat


def read_config_file(name: str) -> ConfigDict:
    """Returns the config with this name or path, as --config reads it on the command line."""
    options = flags.FlagValues()
    define_config('', options)
    with warnings.catch_warnings():
        # ml_collections loads the file by a method that Python deprecates.
        warnings.filterwarnings('ignore', message=r'the load_module\(\) method', category=DeprecationWarning)
        values, _ = parse_flag_values(['train', f'--config={name}'], ('config',), options)
    return values['config']
