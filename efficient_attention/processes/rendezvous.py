"""Starts a run of several processes: process 0 listens at an address, and the other processes connect to it.

Each process sends its number and its `facts`, such as config and code digest. The run begins only when all processes
have connected and all facts agree. Otherwise every process ends with the same error. Connections that send anything
else are closed.
"""

import contextlib
import dataclasses
import errno
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from efficient_attention.config.dict_conversion import flatten
from efficient_attention.errors import InputError, PeerError
from efficient_attention.processes.coordinator_relay import accept_connections, close_connection
from efficient_attention.processes.message_channel import Message, MessageChannel, listen, split_address

Facts = Mapping[str, Any]  # {dotted name: JSON value}, such as the config; must be equal in all processes
# These config fields may differ between hosts.
OF_A_HOST = ('config.data.cache', 'config.data.workers', 'config.data.prefetch')
HELLO_SECONDS = 10.0  # seconds within which a new connection must identify itself
LATE_SECONDS = 10.0  # seconds that process 0 waits after it has refused a run, to inform late processes too
RETRY_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """The identity of one process of a run, as error messages show it: number, host and process id."""

    number: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f'process {self.number} (host {self.host}, pid {self.pid})'


@dataclasses.dataclass(frozen=True)
class RendezvousAddress:
    """The address at which the processes of a run connect, their count, and the number of this process."""

    address: str  # host:port
    count: int
    number: int
    seconds: float  # maximum seconds that the processes wait for one another
    bind: str = ''  # host name on which process 0 listens; '' means the host of `address`


class RendezvousResult(NamedTuple):
    """The result of connecting a run's processes: their identities, and the open connections between them."""

    people: list[ProcessIdentity]
    channels: dict[
        int, MessageChannel
    ]  # connections by process number: process 0 has one to every other process, the others have one to process 0
    token: str  # a secret known only to the processes of this run
    server: socket.socket | None = None  # accepts later connections that send `token`; only in process 0


def connect_all_processes(
    place: RendezvousAddress, facts: Facts, serve_relay: Callable[[socket.socket, bytes], None]
) -> RendezvousResult:
    """Connects this process to the other processes of the run, and checks that their facts agree.

    Args:
        place: the address at which the processes connect, and the number of this process.
        facts: must be equal in all processes.
        serve_relay: called in process 0 with each later connection that sends the token, and its bytes received so far.

    Raises:
        InputError: the address cannot be used, two processes have the same number, or their facts differ.
        PeerError: not all processes connected in time.
    """
    me = ProcessIdentity(place.number, socket.gethostname(), os.getpid())
    try:
        host, port = split_address(place.address)
    except ValueError as error:
        raise InputError(f'--coordinator={place.address}: {error}') from None
    if place.number:
        return register_with_process_0(place, (host, port), me, facts)
    return RendezvousServer(place, me, facts, serve_relay).wait_for_all_processes(place.bind or host, port)


def register_with_process_0(
    place: RendezvousAddress, address: tuple[str, int], me: ProcessIdentity, facts: Facts
) -> RendezvousResult:
    """Connects this process to process 0, and waits until all processes of the run have connected."""
    channel = connect_to_process_0(address, time.monotonic() + place.seconds)
    if channel is None:
        raise PeerError(f'process 0 did not answer at {place.address} within {place.seconds:g} s')
    channel.send({'hello': dataclasses.asdict(me), 'count': place.count, 'facts': facts})
    try:
        # Process 0 itself reports a timeout; this process waits longer, because process 0 may have started later.
        answer = channel.receive(place.seconds + HELLO_SECONDS)
    except OSError:
        channel.close()
        raise PeerError(f'process 0 at {place.address} ended before all {place.count} processes had come') from None
    if 'refused' in answer:
        channel.close()
        kind: type[InputError | PeerError] = InputError if answer['is_input'] else PeerError
        raise kind(answer['refused'])
    return RendezvousResult([ProcessIdentity(**person) for person in answer['people']], {0: channel}, answer['token'])


def connect_to_process_0(address: tuple[str, int], latest: float) -> MessageChannel | None:
    """Returns a connection to process 0, trying until the time `latest`; returns None if no attempt succeeds."""
    while (left := latest - time.monotonic()) > 0:
        try:
            return MessageChannel(socket.create_connection(address, timeout=left))
        except OSError:
            time.sleep(min(RETRY_SECONDS, left))
    return None


class RendezvousServer:
    """Process 0's part in starting a run: accepts the other processes' connections, and checks and answers them."""

    def __init__(
        self,
        place: RendezvousAddress,
        me: ProcessIdentity,
        facts: Facts,
        serve_relay: Callable[[socket.socket, bytes], None],
    ) -> None:
        self._place, self._serve_relay = place, serve_relay
        self._me = me
        self._people, self._facts = {0: me}, {0: facts}
        self._channels: dict[int, MessageChannel] = {}
        self._refusal = ''
        self._heard = 1  # number of processes that have connected so far, including this process
        self._changed = threading.Condition()
        self._token = secrets.token_hex(16)

    def wait_for_all_processes(self, host: str, port: int) -> RendezvousResult:
        """Accepts connections until all processes of the run have connected.

        Args:
            host: the host name on which process 0 listens.
            port: the port on which process 0 listens.

        Raises:
            InputError, PeerError: as in `connect_all_processes`.
        """
        try:
            server = listen(host, port)
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            if is_taken:
                self._notify_duplicate_process_0((host, port))
            reason = 'another program listens there' if is_taken else error.strerror
            line = f'process 0 cannot listen there ({reason}); --bind_address names an address of this machine'
            raise InputError(f'--coordinator={self._place.address}: {line}') from None
        threading.Thread(target=accept_connections, args=(server, self._handle_connection), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._refusal or self._is_complete, self._place.seconds)
            fault = self._rendezvous_error()
            if fault is None:
                people = [self._people[number] for number in range(self._place.count)]
                self._tell_all({'people': [dataclasses.asdict(one) for one in people], 'token': self._token})
                return RendezvousResult(people, self._channels, self._token, server)
            is_input = isinstance(fault, InputError)
            self._tell_all({'refused': str(fault), 'is_input': is_input})
            self._changed.wait_for(lambda: self._heard >= self._place.count or not is_input, LATE_SECONDS)
        close_connection(server)
        for channel in self._channels.values():
            channel.close()
        raise fault

    def _notify_duplicate_process_0(self, address: tuple[str, int]) -> None:
        """Connects to another process 0 that already listens at the address, so that both end with an error."""
        with contextlib.suppress(PeerError, OSError):
            register_with_process_0(
                dataclasses.replace(self._place, seconds=HELLO_SECONDS), address, self._me, self._facts[0]
            )

    def _tell_all(self, answer: Message) -> None:
        for channel in self._channels.values():
            channel.send(answer)

    @property
    def _is_complete(self) -> bool:
        return len(self._people) == self._place.count

    def _rendezvous_error(self) -> InputError | PeerError | None:
        if self._refusal:
            return InputError(self._refusal)
        if not self._is_complete:
            missing = [str(number) for number in range(self._place.count) if number not in self._people]
            came = f'{len(self._people)} of {self._place.count} processes came to {self._place.address}'
            return PeerError(f'{came} within {self._place.seconds:g} s; missing: {", ".join(missing)}')
        fault = describe_mismatch(list(self._people.values()), list(self._facts.values()))
        return InputError(fault) if fault else None

    def _handle_connection(self, connection: socket.socket) -> None:
        """Reads the first message of a new connection; closes a connection that is not from a process of a run."""
        channel = MessageChannel(connection)
        try:
            said = channel.receive(HELLO_SECONDS)
            if said.get('relay') == self._token:
                self._serve_relay(connection, channel.take_unread_bytes())
                return
            hello = said['hello']
            person = ProcessIdentity(int(hello['number']), str(hello['host']), int(hello['pid']))
            count, facts = int(said['count']), dict(said['facts'])
        except (OSError, KeyError, TypeError, ValueError):
            channel.close()
            return
        with self._changed:
            self._heard += 1
            self._register_process(person, count, facts, channel)
            self._changed.notify_all()

    def _register_process(self, person: ProcessIdentity, count: int, facts: Facts, channel: MessageChannel) -> None:
        if self._is_complete or self._refusal:
            refusal = self._refusal or f'all {self._place.count} processes of the run at this address are there already'
            reject_connection(channel, refusal)
        elif count != self._place.count:
            self._reject_run(channel, f'{person} has --process_count={count}, process 0 has {self._place.count}')
        elif not 0 <= person.number < count:
            self._reject_run(channel, f'{person}: --process_id must be 0 to {count - 1} with --process_count={count}')
        elif person.number in self._people:
            self._reject_run(
                channel, f'--process_id={person.number} is given twice: {self._people[person.number]}, {person}'
            )
        else:
            self._people[person.number], self._facts[person.number] = person, facts
            self._channels[person.number] = channel

    def _reject_run(self, channel: MessageChannel, refusal: str) -> None:
        self._refusal = refusal
        reject_connection(channel, refusal)


def reject_connection(channel: MessageChannel, refusal: str) -> None:
    """Informs a process why process 0 refuses it, and closes the connection."""
    channel.send({'refused': refusal, 'is_input': True})
    channel.close()


def describe_mismatch(people: list[ProcessIdentity], facts: list[Facts]) -> str:
    """Returns one line about the first process whose facts differ from process 0, with names and values; '' if none."""
    first = dict(zip(people, facts, strict=True))
    zero = min(people, key=lambda person: person.number)
    for person, theirs in first.items():
        ours = first[zero]
        names = [name for name in [*ours, *theirs] if ours.get(name) != theirs.get(name)]
        if names:
            names = list(dict.fromkeys(names))
            more = f' (also different: {", ".join(names[1:4])}{", ..." if len(names) > 4 else ""})' if names[1:] else ''
            return f'{person} has {format_fact(theirs, names[0])}, process 0 has {format_fact(ours, names[0])}{more}'
    return ''


def facts_to_compare(tree: Facts) -> Facts:
    """Returns the facts that must be equal in all processes: nested dicts, flattened, without per-host settings."""
    return {name: value for name, value in flatten(tree).items() if name not in OF_A_HOST}


def format_fact(facts: Facts, name: str) -> str:
    """Returns 'name = value' of one fact for an error message; the value is shortened to 80 characters."""
    value = json.dumps(facts[name], ensure_ascii=False) if name in facts else 'absent'
    return f'{name} = {value if len(value) <= 80 else value[:77] + "..."}'
