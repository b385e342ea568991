"""A fixture for modules whose runs share a config: their programs are compiled once, for other processes too.

Importing `programs` into a test module is enough to use it.
"""

from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope='module', autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment variables with which another process finds the module's compiled programs."""
    folder = tmp_path_factory.mktemp('programs')
    options = {'jax_compilation_cache_dir': str(folder), 'jax_persistent_cache_min_compile_time_secs': 0}
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield {name.upper(): str(value) for name, value in options.items()}
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
