"""Names the packages of the wheel: the library, and the folder configs/ as efficient_attention.configs.

pyproject.toml has all other settings. It can search for packages or place one elsewhere, but not both.
"""

from setuptools import find_namespace_packages, setup

LIBRARY = find_namespace_packages(include=['efficient_attention*'], exclude=['*.__pycache__'])
CONFIGS = find_namespace_packages(include=['configs', 'configs.*'], exclude=['*.__pycache__'])
setup(
    packages=[*LIBRARY, *(f'efficient_attention.{name}' for name in CONFIGS)],
    package_dir={'efficient_attention.configs': 'configs'},
)
