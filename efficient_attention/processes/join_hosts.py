"""Connects this process to the other processes of a training run on several hosts, and ends all processes if one
fails.
"""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

import efficient_attention
from efficient_attention.errors import InputError, RunStopped
from efficient_attention.processes.coordinator_relay import LOOPBACK, forward_both_ways, open_relay
from efficient_attention.processes.message_channel import MessageChannel, listen, split_address
from efficient_attention.processes.peer_monitor import PeerMonitor, start_peer_listeners
from efficient_attention.processes.rendezvous import (
    Facts,
    RendezvousAddress,
    connect_all_processes,
    connect_to_process_0,
    facts_to_compare,
)
from efficient_attention.processes.signal_thread import SIGNALS, StopStage, current_signal_thread

# JAX ends a process with a stack dump after this many seconds without a heartbeat.
# The limit without a heartbeat is long, because JAX also counts time in which the whole machine was suspended.
# The heartbeats of `peer_monitor.py` do not count time of suspension, and detect a dead process much earlier.
HEARTBEAT_SECONDS = 600
ADDRESS_BYTES = 256
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'tokenizers', 'numpy')


@contextlib.contextmanager
def multi_host_run(join_run: Callable[[Facts], PeerMonitor], facts: Facts) -> Iterator[None]:
    """Context in which this process belongs to a run of several processes; an error in one process ends all others.

    Args:
        join_run: `connect_hosts` or `connect_cluster_hosts`, with all arguments except the facts.
        facts: nested dicts that must be equal in all processes; code and package versions are compared as well.

    Raises:
        InputError, PeerError: for the same reasons as in `join_run`.
    """
    with suppress_native_stdout():
        peers = join_run(facts_to_compare({**facts, 'code': code_digest(), 'version': versions()}))
        if jax.process_index() > 0:  # process 0 logs for all processes
            logging.getLogger().setLevel(logging.ERROR)
        try:
            yield
        except RunStopped:  # all processes raise RunStopped after the same step
            disconnect_hosts(peers)
            if watch := current_signal_thread():
                watch.enter_stage(StopStage.SAVED)
            raise
        except BaseException as error:
            peers.broadcast_failure(error)
            raise
        disconnect_hosts(peers)


def disconnect_hosts(peers: PeerMonitor) -> None:
    """Closes this process's connections to the other processes of the run; each process waits for all others."""
    with ignoring_stop_signals():
        jax.distributed.shutdown()
        peers.disconnect()


@contextlib.contextmanager
def ignoring_stop_signals() -> Iterator[None]:
    """Context that ignores the first stop signal, because the run's work is done; a second signal ends the process."""
    watch = current_signal_thread()
    if watch is None:
        yield
        return
    stage = watch.stage
    watch.enter_stage(StopStage.SAVING)
    handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not watch.number:  # if a signal came, the stage stays SAVING, so that the finished run ends normally
        watch.enter_stage(stage)


def connect_hosts(place: RendezvousAddress, facts: Facts) -> PeerMonitor:
    """Connects this process to the other processes of a run, and initializes `jax.distributed`.

    Must be called before JAX is used. JAX's coordination service listens only on the loopback interface of process 0.
    The other processes reach the service through a relay.

    Args:
        place: the address at which the processes connect, and the number of this process.
        facts: {dotted name: value}; the values must be equal in all processes.

    Raises:
        InputError: the address or the number cannot be used, or the facts differ.
        PeerError: not all processes connected.
    """
    port = find_free_port(LOOPBACK)

    def serve_relay(connection: socket.socket, received: bytes) -> None:
        service = connect_to_process_0((LOOPBACK, port), time.monotonic() + place.seconds)
        if service is not None:
            forward_both_ways(connection, service.connection, received)

    met = connect_all_processes(place, facts, serve_relay)
    peers = start_peer_listeners(place.number, met)
    if place.number:
        relay = open_relay(lambda: connect_to_coordinator(split_address(place.address), met.token))
        port = relay.getsockname()[1]
    initialize_jax_distributed(f'{LOOPBACK}:{port}', place.count, place.number, bind=f'{LOOPBACK}:{port}')
    return peers


def connect_to_coordinator(address: tuple[str, int], token: str) -> socket.socket:
    """Returns a connection to process 0, which process 0 forwards to JAX's coordination service."""
    channel = MessageChannel(socket.create_connection(address, timeout=HEARTBEAT_SECONDS))
    channel.send({'relay': token})
    return channel.connection


def connect_cluster_hosts(
    coordinator: str | None, process_count: int | None, process_id: int | None, facts: Facts, *, seconds: float
) -> PeerMonitor:
    """Connects this process to a run for which JAX detects addresses and process numbers: TPU pods, SLURM or Open MPI.

    JAX finds only the arguments that are None. Unlike in `connect_hosts`, JAX's coordination service opens a port on
    all interfaces, and JAX itself connects the processes to that port.
    """
    initialize_jax_distributed(coordinator, process_count, process_id)
    number, bind = jax.process_index(), '0.0.0.0'
    address = f'{socket.gethostname()}:{find_free_port(bind)}'.encode()
    line = multihost_utils.broadcast_one_to_all(np.frombuffer(address.ljust(ADDRESS_BYTES), np.uint8))
    where = RendezvousAddress(line.tobytes().decode().strip(), jax.process_count(), number, seconds, bind)
    return start_peer_listeners(number, connect_all_processes(where, facts, lambda connection, _: connection.close()))


def initialize_jax_distributed(
    coordinator: str | None, process_count: int | None, process_id: int | None, *, bind: str | None = None
) -> None:
    """Calls `jax.distributed.initialize`; raises InputError if JAX cannot determine the arguments that are None.

    Args:
        coordinator: host:port of JAX's coordination service.
        process_count: number of processes of the run.
        process_id: number of this process.
        bind: host:port on which the service listens; None = all interfaces.
    """
    # JAX's preemption service would catch SIGTERM, and its own agreement on a stop can hang (see `stop_agreement.py`).
    jax.config.update('jax_enable_preemption_service', False)
    try:
        jax.distributed.initialize(
            coordinator,
            process_count,
            process_id,
            coordinator_bind_address=bind,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        line = ' '.join(str(error).split())
        raise InputError(f'--distributed: {line} (flags: --coordinator, --process_count, --process_id)') from None


def find_free_port(host: str) -> int:
    """Returns a TCP port of this host on which no program listens at this moment."""
    with listen(host) as probe:
        return probe.getsockname()[1]


def code_digest() -> str:
    """Returns the SHA-256 of all source files of this package, including their names."""
    package = Path(efficient_attention.__file__).parent
    total = hashlib.sha256()
    for path in sorted(package.rglob('*.py')):
        total.update(f'{path.relative_to(package)}\0'.encode() + path.read_bytes() + b'\0')
    return total.hexdigest()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that influence the numbers of a run."""
    return {'python': platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


@contextlib.contextmanager
def suppress_native_stdout() -> Iterator[None]:
    """Context that discards what libraries and child processes write to standard output; Python's own prints remain.

    Gloo prints a line to standard output for each set of processes that it connects, and has no setting to disable it.
    """
    if sys.stdout is None:  # standard output was closed at the start, so descriptor 1 may be another file
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    with open(kept, 'w', encoding=sys.stdout.encoding, errors=sys.stdout.errors) as stream:
        stream.reconfigure(line_buffering=bool(sys.stdout.line_buffering))
        try:
            with contextlib.redirect_stdout(stream):
                yield
        finally:
            stream.flush()
            os.dup2(kept, 1)
