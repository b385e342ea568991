"""Joining the other processes of a run that spans several hosts."""

import jax
from absl import flags

from efficient_attention.errors import InputError

flags.disclaim_key_flags()  # --help lists a flag with the command that asks for it here

HEARTBEAT_TIMEOUT = 30  # seconds without a sign of life after which a process counts as dead; JAX's default is 100


def join_hosts(coordinator: str | None, process_count: int | None, process_id: int | None) -> None:
    """Connects this process to the run's others through `jax.distributed`, before JAX is used for anything else.

    Args:
        coordinator: host:port of process 0; None = found by JAX from the cluster (TPU pods, SLURM, Open MPI).
        process_count: processes of the run; None likewise.
        process_id: which of them this is, from 0; None likewise.

    Raises:
        InputError: something is missing that JAX cannot find by itself, or the others do not answer.
    """
    try:
        jax.distributed.initialize(coordinator, process_count, process_id, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        line = ' '.join(str(error).split())
        raise InputError(f'--distributed: {line} (flags: --coordinator, --process_count, --process_id)') from None


def define_host_flags() -> None:
    """Defines the flags that `join_hosts_of_flags` reads."""
    flags.DEFINE_bool('distributed', False, 'Join the other processes of the run through jax.distributed.')
    flags.DEFINE_string('coordinator', None, 'host:port of process 0, where the cluster does not tell.')
    flags.DEFINE_integer('process_count', None, 'Processes of the run, where the cluster does not tell.')
    flags.DEFINE_integer('process_id', None, 'Number of this process, where the cluster does not tell.')


def join_hosts_of_flags() -> None:
    """Joins the run's other processes if the command line says so.

    Raises:
        InputError: as `join_hosts`, or one of its flags stands without --distributed.
    """
    names = 'coordinator', 'process_count', 'process_id'
    values = {name: flags.FLAGS[name].value for name in names}
    if flags.FLAGS['distributed'].value:
        join_hosts(*values.values())
    for name, value in values.items():
        if value is not None and not flags.FLAGS['distributed'].value:
            raise InputError(f'--{name} needs --distributed')
