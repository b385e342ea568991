"""Defines the flags with which a command connects to the other processes of a training run on several hosts."""

import contextlib
import functools
from typing import Any

from absl import flags

from efficient_attention.errors import InputError
from efficient_attention.processes.join_hosts import connect_cluster_hosts, connect_hosts, multi_host_run
from efficient_attention.processes.rendezvous import Facts, RendezvousAddress

flags.disclaim_key_flags()  # --help lists these flags under the command that uses them, not under this module

PLACE_FLAGS = ('coordinator', 'process_count', 'process_id', 'bind_address')


def define_host_flags(options: flags.FlagValues) -> None:
    """Defines the flags of runs on several hosts: --distributed, the coordinator, and the number of this process."""
    meaning = 'Join the other processes of the run through jax.distributed.'
    flags.DEFINE_bool('distributed', False, meaning, flag_values=options)
    meaning = 'host:port of process 0, if the cluster does not provide it.'
    flags.DEFINE_string('coordinator', None, meaning, flag_values=options)
    meaning = 'Processes of the run, if the cluster does not provide it.'
    flags.DEFINE_integer('process_count', None, meaning, flag_values=options)
    meaning = 'Number of this process, if the cluster does not provide it.'
    flags.DEFINE_integer('process_id', None, meaning, flag_values=options)
    meaning = 'Host on which process 0 listens, if not the host of --coordinator.'
    flags.DEFINE_string('bind_address', None, meaning, flag_values=options)
    meaning = 'Seconds that processes wait for one another at the start.'
    flags.DEFINE_float('join_timeout', 300.0, meaning, flag_values=options)


def multi_host_run_from_flags(facts: Facts, options: flags.FlagValues) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this process belongs to a run on several hosts; it does nothing without --distributed.

    Args:
        facts: nested dicts that must be equal in all processes; code and package versions are compared as well.
        options: the values of the flags that `define_host_flags` has defined.

    Raises:
        InputError: the flags are unusable, or the processes disagree on code, versions or facts.
        PeerError: not all processes connected.
    """
    place: dict[str, Any] = {name: options[name].value for name in PLACE_FLAGS}
    if not options.distributed:
        for name, value in place.items():
            if value is not None:
                raise InputError(f'--{name} needs --distributed')
        return contextlib.nullcontext()
    address, count, number, bind = place.values()
    seconds = float(options.join_timeout or 0.0)
    if None in (address, count, number):
        return multi_host_run(functools.partial(connect_cluster_hosts, address, count, number, seconds=seconds), facts)
    if count < 1:
        raise InputError(f'--process_count is {count}; it must be at least 1')
    return multi_host_run(
        functools.partial(connect_hosts, RendezvousAddress(address, count, number, seconds, bind or '')), facts
    )
