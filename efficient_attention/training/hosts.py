"""Joining the other processes of a run that spans several hosts."""

import jax

from efficient_attention.errors import InputError

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
