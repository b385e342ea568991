"""Records the package versions and devices of a run in the file `environment.json` of its workdir, for its report."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError

FILE_NAME = 'environment.json'
PACKAGES = ('efficient-attention', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'tokenizers', 'numpy')


def write_environment(workdir: Path) -> None:
    """Writes `environment.json` into the workdir, in process 0 only; an existing file is overwritten."""
    if jax.process_index() == 0:
        workdir.mkdir(parents=True, exist_ok=True)
        write_atomically(workdir / FILE_NAME, json.dumps(describe_environment(), indent=2) + '\n')


def read_environment(workdir: Path) -> dict[str, Any]:
    """Returns the content of the workdir's `environment.json`; {} if the file does not exist. Raises InputError if it
    is damaged.
    """
    path = workdir / FILE_NAME
    try:
        found = read_json_file(path) if path.exists() else {}
    except ValueError as error:
        raise InputError(f'{path} is not JSON: {error}') from None
    if not isinstance(found, dict):
        raise InputError(f'{path}: no JSON object')
    return found


def describe_environment() -> dict[str, Any]:
    """Returns a dict that describes where the run executes: devices (count and kind), processes, cores, processor,
    system and versions.
    """
    devices = jax.devices()
    versions = {name: version for name in PACKAGES if (version := _installed_version(name)) is not None}
    return {
        'devices': f'{len(devices)} x {devices[0].device_kind}',
        'backend': jax.default_backend(),
        'processes': jax.process_count(),
        'cpu_cores': os.cpu_count(),
        'processor': processor(),
        'system': f'{platform.system()} {platform.machine()}',
        'python': platform.python_version(),
        **versions,
    }


def processor(cpuinfo: Path = Path('/proc/cpuinfo')) -> str:
    """Returns the model name of the CPU, from Linux's cpuinfo or otherwise from Python's `platform`."""
    lines = cpuinfo.read_text(encoding='utf-8').splitlines() if cpuinfo.is_file() else []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return next(iter(names), '') or platform.processor() or platform.machine()


def describe_machine(workdirs: Iterable[Path]) -> str:
    """Returns the hardware of several runs as '<device>, jax <version>'. A CPU is named by its processor. Returns '' if
    nothing is recorded.
    """
    found = [environment for workdir in workdirs if (environment := read_environment(workdir))]
    devices = ['devices' if one.get('backend') != 'cpu' else 'processor' for one in found]
    names = [f'{one.get(name, "CPU")}, jax {one.get("jax")}' for one, name in zip(found, devices, strict=True)]
    return '; '.join(dict.fromkeys(names))


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
