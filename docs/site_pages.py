"""Writes the pages of the site that are made from the code: API, config fields, papers, and copies of README.md.

`write_pages` writes them into docs/generated/, which git ignores; docs/conf.py calls it before each build.
"""

import ast
import dataclasses
import hashlib
import importlib
import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import efficient_attention
from efficient_attention.commands.config_help import field_comments
from efficient_attention.config.dict_conversion import default_fields
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import one_line

ROOT = Path(__file__).resolve().parent.parent
PROJECT_PAGES = ('README', 'CONTRIBUTING', 'CHANGELOG', 'SECURITY')
SHOWN = 4  # values or links that a cell of a table shows at most; a click shows more
# Headings of the API page, and the start of the modules that define their names. The first one that fits is taken.
API_GROUPS = {
    'Patterns': r'attention\.(patterns|parsing)\b',
    'Mechanisms': r'attention\.\w+\.definition',
    'Attention': r'attention\b',
    'Models': r'(models|config)\b',
    'Training, evaluation, inference and errors': '',
}
MODELS = ('Encoder', 'Decoder', 'EncoderDecoder')
LOADED = ('Loaded', 'LoadedTokenizer')  # what `load` returns
CONFIG_FIELDS = 'Its fields are in the [config reference](config.md#group-model).'
CITATION = re.compile(
    r'[A-Z][\w-]+ (?:et al\.|& [A-Z]\w+) (?:\d{4})(?:,? \(?arXiv \d{4}\.\d{5})?|\(arXiv \d{4}\.\d{5}\)'
)


def write_pages(folder: Path) -> None:
    """Writes all generated pages into a folder; pages of an earlier build are removed."""
    configs = read_configs()
    pages = {'api': api_page(), 'config': config_page(configs), 'papers': papers_page(configs)}
    pages |= {name.lower(): project_page(name) for name in PROJECT_PAGES}
    pages['results'] = results_page()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in pages.items():
        (folder / f'{name}.md').write_text(text, encoding='utf-8')


def project_page(name: str) -> str:
    """Returns README.md, or another top-level Markdown file, with links rewritten for the site."""
    text = (ROOT / f'{name}.md').read_text(encoding='utf-8')
    text = text.replace('](docs/results)', '](results.md)')
    text = re.sub(r'\[([^\]]+)\]\((\w+)\)', lambda link: link[1] if (ROOT / link[2]).is_dir() else link[0], text)
    text = re.sub(r'\]\(docs/', '](../', text)
    return re.sub(r'\]\((?!\.\.|\w+:|#|results)([^)]*)\)', r'](../../\1)', text)


def results_page() -> str:
    """Returns the list of all result pages."""
    paths = sorted((ROOT / 'docs' / 'results').glob('*.md'))
    names = '\n'.join(f'../results/{path.name}' for path in paths)
    about = 'Each section has its commands, the date and the machine, or the source of published figures.'
    return f'# Results\n\n{about}\n\n```{{toctree}}\n:maxdepth: 2\n\n{names}\n```\n'


def hash_of_sources(root: Path = ROOT) -> str:
    """Returns a hash of all sources that a tutorial runs: the package, the configs, and the locked versions."""
    paths = [path for folder in ('efficient_attention', 'configs') for path in sorted((root / folder).rglob('*'))]
    digest = hashlib.sha256()
    for path in [*paths, root / 'requirements' / 'docs.txt']:
        if path.is_file() and '__pycache__' not in path.parts:
            digest.update(f'{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0'.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# ---- API ----


def api_page() -> str:
    """Returns the page of all public names, which Sphinx fills from their docstrings."""
    about, _, letters = (efficient_attention.__doc__ or '').partition('\n\n')
    parts = [
        '# API',
        f'`import efficient_attention as ea`: {about}',
        'All names on this page are stable. Modules below the package may change with any version.',
        '## Dimension letters',
        *(f'```text\n{part}\n```' if part.startswith(' ') else part for part in letters.strip().split('\n\n')),
    ]
    groups: dict[str, list[str]] = {heading: [] for heading in API_GROUPS}
    for name, module in efficient_attention._PUBLIC.items():
        groups[next(heading for heading, start in API_GROUPS.items() if re.match(start, module))].append(name)
    for heading in ('Attention', *(one for one in API_GROUPS if one != 'Attention')):
        parts += [f'## {heading}', *map(api_entry, groups[heading])]
    parts += [
        '## Tests of your own mechanism',
        '```{eval-rst}\n.. automodule:: efficient_attention.testing\n   :members:\n```',
    ]
    return '\n\n'.join(parts) + '\n'


def api_entry(name: str) -> str:
    """Returns the directive that documents one public name."""
    found = getattr(efficient_attention, name)
    kind = 'class' if inspect.isclass(found) else 'function'
    options = '   :members:\n' if name in (*MODELS, 'Lengths') else ''
    options += '   :special-members: __call__\n' if name in MODELS else ''
    directive = f'.. auto{kind}:: efficient_attention.{name}{signature(found)}'
    entry = f'### {name}\n\n```{{eval-rst}}\n{directive}\n{options}```'
    if name == 'load':
        entry += ''.join(
            f'\n\n#### {result}\n\n```{{eval-rst}}\n.. autoclass:: efficient_attention.inference.load.{result}()\n'
            '   :members:\n```'
            for result in LOADED
        )
    return f'{entry}\n\n{CONFIG_FIELDS}' if name == 'ModelConfig' else entry


def signature(function: Any) -> str:
    """Returns the parameters of a function with overloads, or of a model, as the source has them; '' for others.

    Sphinx would show the overloads, which have no shapes, and the parameters of the metaclass of Flax's modules.
    """
    is_model = getattr(function, '__name__', '') in MODELS
    if not typing.get_overloads(function) and not is_model:
        return ''
    source = inspect.getsource(function.__init__ if is_model else function)
    defined = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(defined, ast.FunctionDef)
    if is_model:
        del defined.args.args[0]  # self
    returned = f' -> {ast.unparse(defined.returns)}' if defined.returns else ''
    return f'({ast.unparse(defined.args)}){returned}'


# ---- configs ----


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """A file of configs/.

    Attributes:
        path: its path.
        text: its docstring.
        values: argument after the colon, such as 'sst2' in 'glue.py:sst2' ('' = none) -> values of the config.
    """

    path: Path
    text: str
    values: dict[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Returns the path as --config takes it."""
        return self.path.relative_to(ROOT).as_posix()


def read_configs() -> list[ConfigFile]:
    """Returns all config files, each with the values of all its arguments."""
    paths = [path for path in sorted((ROOT / 'configs').rglob('*.py')) if path.name not in ('common.py', '__init__.py')]
    return [read_config(path) for path in paths]


def read_config(path: Path) -> ConfigFile:
    """Returns a config file with its values for all arguments, also for the default argument.

    The file's error message for an unknown argument lists the known arguments.
    """
    module = importlib.import_module('.'.join(path.relative_to(ROOT).with_suffix('').parts))
    arguments = ['']
    if inspect.signature(module.get_config).parameters:
        try:
            module.get_config('?')
        except Exception as error:  # its line lists the known arguments, some of them with a suffix to add
            arguments += re.findall(r'[\w-]+(?=,|$)', one_line(error).partition('known: ')[2].partition(' with ')[0])
    values = {}
    for argument in arguments:
        try:
            values[argument] = (module.get_config(argument) if argument else module.get_config()).to_dict()
        except Exception:  # noqa: S112  an argument that is only complete with a suffix
            continue
    return ConfigFile(path, inspect.getdoc(module) or '', values)


def config_page(configs: list[ConfigFile]) -> str:
    """Returns the reference of all config fields."""
    defaults, kinds = default_fields(RunConfig), typing.get_type_hints(RunConfig)
    comments = field_comments(RunConfig)
    parts = [
        '# Config fields',
        'Each table shows one group of fields. The command line sets a field with `--config.<group>.<field>=<value>`. '
        'The meaning is the whole comment of the code, with the unit and the allowed values. '
        'The last column lists all configs with another value, and the paper of each config. '
        'A config links to [its record](papers.md).',
        '## No group\n\n' + table([row(configs, ('task',), kinds['task'], defaults['task'], comments['task'])]),
    ]
    for group, kind in kinds.items():
        if not dataclasses.is_dataclass(kind):
            continue
        hints, meanings = typing.get_type_hints(kind), field_comments(kind)
        rows = [
            row(configs, (group, field.name), hints[field.name], defaults[group][field.name], meanings[field.name])
            for field in dataclasses.fields(kind)
        ]
        about = ' '.join((inspect.getdoc(kind) or '').partition('\n\n')[0].split())
        parts += [f'(group-{group})=\n## {group}', f'{about}', table(rows)]
    return '\n\n'.join(parts) + '\n'


def table(rows: list[str]) -> str:
    """Returns a table of config fields."""
    return '\n'.join(['| field, type, default | meaning | other values in configs |', '|---|---|---|', *rows])


def row(configs: list[ConfigFile], path: tuple[str, ...], kind: Any, default: Any, meaning: str) -> str:
    """Returns the table row of one config field."""
    name = kind.__name__ if inspect.isclass(kind) and not typing.get_args(kind) else str(kind)
    field = f'`{".".join(path)}`<br>{code(name)}, {code(repr(default))}'
    cells = [field, escaped(meaning), other_values(configs, path, default)]
    return f'| {" | ".join(cells)} |'


def other_values(configs: list[ConfigFile], path: tuple[str, ...], default: Any) -> str:
    """Returns the values that configs give to a field in place of its default, each with its files."""
    found: dict[str, list[str]] = {}
    for config in configs:
        for values in config.values.values():
            value = values
            for part in path:
                value = value[part]
            names = found.setdefault('open until the run starts' if value is None else code(repr(value)), [])
            if value != default and config.name not in names:
                names.append(config.name)
    listed = sorted(((value, names) for value, names in found.items() if names), key=lambda one: -len(one[1]))
    papers = {config.name: paper(config.text).partition(',')[0] for config in configs}
    lines = [files(value, {name: papers[name] for name in names}) for value, names in listed]
    rest = [folded(f'{len(lines) - SHOWN} more values', joined(lines[SHOWN:]))] if len(lines) > SHOWN else []
    return joined(lines[:SHOWN] + rest)


def joined(lines: list[str]) -> str:
    """Returns the lines of a cell; a folded line needs no line break."""
    return '<br>'.join(lines).replace('</details><br>', '</details>')


def files(value: str, papers: dict[str, str]) -> str:
    """Returns a value with links to the entries of its config files, each with its paper; many are folded."""
    links = '; '.join(
        f'[{name.removeprefix("configs/")}](papers.md#{anchor(name)})' + ('' if title == '-' else f' {title}')
        for name, title in papers.items()
    )
    return folded(f'{value}: {len(papers)} configs', links) if len(papers) > SHOWN else f'{value}: {links}'


def folded(title: str, text: str) -> str:
    """Returns text that a click on its title shows."""
    return f'<details><summary>{title}</summary>{text}</details>'


def anchor(name: str) -> str:
    """Returns the link anchor of a config file's entry on the page of papers."""
    return name.removesuffix('.py').replace('/', '-').replace('_', '-')


def code(text: str) -> str:
    """Returns a text as inline code, escaped for a table cell."""
    return '`' + text.replace('|', '\\|') + '`'


def escaped(text: str) -> str:
    """Returns a code comment with its Markdown characters escaped, for a table cell."""
    return re.sub(r'([\\|<>*\[\]$])', r'\\\1', text)


# ---- papers ----


def papers_page(configs: list[ConfigFile]) -> str:
    """Returns the papers page: a table of papers, configs and measurements, then an entry per config."""
    measured = {config.name: measurements(config) for config in configs}
    lines = [
        '# Papers, configs and measurements',
        'Each config file is one experiment. The table names the first paper of its docstring. '
        '*Measured* links the results whose commands use the config. Below the table, each config has an entry: '
        'its commands, recipe and measurements. '
        'In a checkout, `python train.py` is the same as `efficient-attention train`.',
        '| paper | config and command | measured |\n|---|---|---|\n'
        + '\n'.join(
            f'| {paper(config.text)} | [{config.name.removeprefix("configs/")}](#{anchor(config.name)})<br>'
            f'{code(command(config.text))} | {", ".join(measured[config.name][:SHOWN]) or "not run"} |'
            for config in configs
        ),
    ]
    for config in configs:
        lines.append(f'({anchor(config.name)})=\n## {config.name}')
        arguments = ', '.join(f'`{name}`' for name in config.values if name)
        lines += [f'Arguments after the colon: {arguments}.'] if arguments else []
        lines.append(f'```text\n{config.text}\n```')
        lines += [f'Measured: {", ".join(measured[config.name])}.'] if measured[config.name] else []
    return '\n\n'.join(lines) + '\n'


def paper(text: str) -> str:
    """Returns the first citation of a docstring."""
    found = CITATION.search(' '.join(text.split()))
    return found[0].strip('()').replace(' (arXiv', ', arXiv') if found else '-'


def command(text: str) -> str:
    """Returns the first training command of a docstring, as one types it after an installation."""
    found = re.search(r'efficient-attention train (--config[ =])configs/(.*)', re.sub(r'\s*\\\n\s*', ' ', text))
    assert found
    return f'efficient-attention train {found[1]}{" ".join(found[2].split())}'


def measurements(config: ConfigFile) -> list[str]:
    """Returns links to the runs of a config in its docstring, and to the results whose commands use the config."""
    links = (
        [f'[its runs](#{anchor(config.name)})'] if re.search(r'^(An? )?[Rr]uns? of ', config.text, re.MULTILINE) else []
    )
    for path in sorted((ROOT / 'docs' / 'results').glob('*.md')):
        heading = title = ''
        is_code = False
        for line in path.read_text(encoding='utf-8').split('\n'):
            is_code ^= line.startswith('```')
            if not is_code and line.startswith('# '):
                title = line[2:].partition(':')[0]
            elif not is_code and line.startswith('## '):
                heading = line[3:]
            elif is_code and config.name in line:
                link = f'[{title}: {heading}](../results/{path.name}#{slug(heading)})'
                links += [link] if link not in links else []
    return links


def slug(heading: str) -> str:
    """Returns the anchor of a heading, as Git hosts and MyST write it."""
    return re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-')
