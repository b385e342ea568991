"""The step of a tiny run for two emulated devices, compiled once for all tests."""

import functools

from efficient_attention.config.run import RunConfig
from efficient_attention.planning.step_compilation import PlannedStep, compile_step
from efficient_attention.planning.topology import make_topology_devices, parse_topology
from efficient_attention.training.fill_config import fill_config_for_plan
from tests.training.tiny_run import get_config

TOPOLOGY = parse_topology('cpu:2')


def config() -> RunConfig:
    """Returns the config of a tiny run whose data source does not exist."""
    values = get_config()
    values.data.source = 'text:/nowhere/*.txt'
    values.mesh.fsdp = 2
    return fill_config_for_plan(values.to_dict())


@functools.cache
def tiny_step() -> PlannedStep:
    """Returns the compiled step of `config()`."""
    return compile_step(config(), make_topology_devices(TOPOLOGY))
