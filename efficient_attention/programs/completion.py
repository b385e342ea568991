"""Prints a script that completes subcommands, flags, config names and config fields of `efficient-attention`.

    efficient-attention completion bash > ~/.local/share/bash-completion/completions/efficient-attention
    efficient-attention completion zsh > ~/.efficient-attention.zsh

In zsh, add `source ~/.efficient-attention.zsh` to ~/.zshrc, after compinit. The script contains all names, so that it
answers at once. Print it again after an update of the package.
"""

import sys
from collections.abc import Callable, Mapping

from absl import flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.config_files import config_docstrings
from efficient_attention.errors import InputError

SHELLS = ('bash', 'zsh')
SCRIPT = """\
_efficient_attention() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" names="" start="" is_value=""
  local configs="{configs}"
  local fields="{fields}"
  # bash makes three words of --flag=value, zsh makes one
  if [[ "$word" == "=" ]]; then
    word="" is_value=1
  elif [[ "$before" == "=" ]]; then
    before="${{COMP_WORDS[COMP_CWORD-2]}}" is_value=1
  elif [[ "$word" == --*=* ]]; then
    before="${{word%%=*}}" start="${{word%%=*}}=" word="${{word#*=}}" is_value=1
  fi
  if (( COMP_CWORD == 1 )); then
    names="{programs}"
  elif [[ "$before" == "--config" || "${{COMP_WORDS[1]}} $before" == "configs show" ||
    "${{COMP_WORDS[1]}} $before" == "configs where" ]]; then
    names="$configs"
  elif [[ "$is_value" ]]; then
    names=""
  elif [[ "$word" == --config.* ]]; then
    names="$fields"
    compopt -o nospace 2> /dev/null
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -P "$start" -W "$names" -- "$word"))
}}
complete -o default -F _efficient_attention efficient-attention
"""
BEFORE = {  # shell -> the lines before the script
    'bash': '# Completes efficient-attention in bash; written by `efficient-attention completion bash`.\n',
    'zsh': '# Completes efficient-attention in zsh; written by `efficient-attention completion zsh`.\n'
    'autoload -U +X bashcompinit && bashcompinit\n',
}


def main(programs: Mapping[str, Callable[[], list[str]]]) -> None:
    """Reads the name of the shell, and prints its script.

    Args:
        programs: {subcommand: function that returns its actions, such as 'list' of `configs`, and its flags}.
    """
    (shell,) = parse_flags(sys.argv, options=flags.FlagValues(), words='SHELL', about=__doc__)
    if shell not in SHELLS:
        raise InputError(f'{shell!r} is no shell that can be completed; known: {", ".join(SHELLS)}')
    print(completion_script(shell, {name: words() for name, words in programs.items()}), end='')


def completion_script(shell: str, words: Mapping[str, list[str]]) -> str:
    """Returns the completion script of a shell; `words` is {subcommand: its actions and flags}."""
    # These imports are late, because the config dataclasses load slowly.
    from efficient_attention.config.dict_conversion import default_fields, field_names
    from efficient_attention.config.run import RunConfig

    groups = [name for name, value in default_fields(RunConfig).items() if isinstance(value, dict)]
    fields = ' '.join(f'--config.{name}=' for name in field_names(RunConfig) if name not in groups)
    cases = '\n'.join(f'      {name}) names="{" ".join(found)}" ;;' for name, found in words.items())
    configs = ' '.join(config_docstrings())
    programs = ' '.join(words)
    return BEFORE[shell] + SCRIPT.format(configs=configs, fields=fields, programs=programs, cases=cases)
