"""Lists, shows and finds the configs that come with the package.

    efficient-attention configs list
    efficient-attention configs list lm
    efficient-attention configs show finetune/glue:sst2
    efficient-attention configs show lm/gpt --source
    efficient-attention configs where finetune/glue

`list` prints each name with the first line of its docstring, `list lm` only names that contain `lm`. `show` prints the
docstring and the resulting fields, with `--source` the Python file instead. `where` prints the path of the file.
--config takes the same names, and an existing file wins over a name. To change much, copy the file and pass the path of
the copy.
"""

import ast
import sys
from pathlib import Path

from absl import flags

from efficient_attention.commands.command_line import parse_flag_values, parse_flags, split_subcommand
from efficient_attention.commands.config_files import advice_on_config, config_docstrings, find_config
from efficient_attention.commands.flags import define_config
from efficient_attention.errors import InputError

WORDS = {'list': '[PART]', 'show': 'NAME', 'where': 'NAME'}  # {action: its positional arguments}


def main() -> None:
    """Reads the action, and prints the list of configs, one config, or the path of one config."""
    command, arguments = split_subcommand(sys.argv, WORDS, about=__doc__)
    options = define_flags(command)
    words = parse_flags(arguments, options=options, words=WORDS[command], command=command, about=__doc__)
    if command == 'list':
        part = words[0] if words else ''
        found = {name: text for name, text in config_docstrings().items() if part in name}
        if not found:
            raise InputError(f'list: no config has {part!r} in its name; {advice_on_config(part)}')
        for name, text in found.items():
            print(f'{name}  {text.partition(chr(10))[0]}')
        return
    path = find_config(words[0])
    if command == 'where':
        print(Path(path.partition(':')[0]).resolve())
    elif options.source:
        print(Path(path.partition(':')[0]).read_text(encoding='utf-8'), end='')
    else:
        print(config_fields(path))


def define_flags(command: str) -> flags.FlagValues:
    """Defines the command-line flags of an action, and returns them."""
    options = flags.FlagValues()
    if command == 'show':
        flags.DEFINE_bool('source', False, 'Print the Python file instead of the fields.', flag_values=options)
    return options


def config_fields(path: str) -> str:
    """Returns the docstring of a config file, and all its fields as flags, with values and comments.

    Raises:
        InputError: the file cannot be loaded, or the argument after its colon is wrong.
    """
    from efficient_attention.commands.config_help import list_fields  # imported late, because it loads all fields

    options = flags.FlagValues()
    define_config('Config file.', options)
    values, _ = parse_flag_values([sys.argv[0], f'--config={path}'], ('config',), options)
    tree = ast.parse(Path(path.partition(':')[0]).read_bytes())
    return f'{ast.get_docstring(tree) or ""}\n\n{list_fields(values["config"].to_dict())}'
