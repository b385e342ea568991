"""Monitors the other processes of a run: whether they are alive, and whether they have the same code and config.

Every process sends a sign of life each second. Process 0 informs all others if a process has died, hangs or has failed.
Each process then ends with one line that names the failed process. Without this, it would wait for the failed process,
or end with the stack dump of a collective.
"""

import atexit
import os
import queue
import sys
import threading
import time
from typing import Any, NoReturn

from efficient_attention.errors import (
    ExitCode,
    InputError,
    RunError,
    RunStopped,
    exit_code,
    one_line,
    write_stderr_unlocked,
)
from efficient_attention.processes.message_channel import Message, MessageChannel
from efficient_attention.processes.rendezvous import Facts, RendezvousResult, describe_mismatch, facts_to_compare
from efficient_attention.processes.stop_agreement import StopAgreement

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 20.0  # a process that sends nothing for this many seconds counts as hung
# After another process has failed, this process has this many seconds to end with its own error line.
GRACE_SECONDS = 8.0
BROKEN_SECONDS = 3.0  # seconds to wait for the news that another process has died and so caused an error here
UNWIND_SECONDS = 20.0  # a failed process must end within this many seconds
FAREWELL_SECONDS = 2.0  # seconds that process 0 stays alive after it has reported a dead process to the others
AGAIN = 'started again together, all go on from the newest checkpoint'


class PeerMonitor:
    """The connections to the other processes of a run: sends heartbeats, and ends this process if another one fails."""

    def __init__(self, number: int, met: RendezvousResult) -> None:
        self.number, self.people = number, met.people
        self._channels = met.channels
        self.stop_point = StopAgreement(number, met.channels, lambda other, message: met.channels[other].send(message))
        self._answers: dict[int, queue.Queue[Message]] = {other: queue.Queue() for other in met.channels}
        # The event of a process is set once that process has said goodbye.
        self._gone = {other: threading.Event() for other in met.channels}
        self._is_failing = threading.Event()
        self._has_told = threading.Event()
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        self._heard = ''  # error line of another process that has failed; '' if none has failed
        self._code = 0
        self._listening = [
            threading.Thread(target=self._listen, args=pair, name='peer', daemon=True) for pair in met.channels.items()
        ]
        for thread in self._listening:
            thread.start()
        threading.Thread(target=self._send_heartbeats, name='beat', daemon=True).start()
        atexit.register(self._end_if_failed)

    # ---- All processes must call these methods together. ----

    def check_facts_agree(self, facts: Facts) -> None:
        """Compares facts, such as the config, between all processes; raises InputError in all of them if facts differ.

        Waits until all processes call this.
        """
        if self.number:
            self._channels[0].send({'facts': dict(facts)})
            fault = self._answers[0].get()['fault']
        else:
            said = [facts, *(self._answers[other].get()['facts'] for other in sorted(self._channels))]
            fault = describe_mismatch(self.people, said)
            self._send_to_all_peers({'fault': fault})
        if fault:
            raise InputError(fault)

    def gather(self, text: str) -> list[str]:
        """Collects one text from each process of the run, and returns all texts ordered by process number.

        Waits until all processes call this.
        """
        if self.number:
            self._channels[0].send({'said': text})
            return self._answers[0].get()['said']
        said = [text, *(self._answers[other].get()['said'] for other in sorted(self._channels))]
        self._send_to_all_peers({'said': said})
        return said

    def disconnect(self) -> None:
        """Says goodbye to the other processes at the end of the run; process 0 waits for the goodbyes of all others."""
        for channel in self._channels.values():
            channel.send({'bye': True})
        self._is_over.set()
        if self.number == 0:
            for gone in self._gone.values():
                gone.wait(SILENCE_SECONDS)
        if self in _known:
            _known.remove(self)

    def broadcast_failure(self, error: BaseException) -> None:
        """Informs the other processes of an error that ends this process; returns when this process may end.

        The error may come from a broken connection. Therefore this method first waits to learn whether another process
        has died or has reported an error before. If so, this process ends here without reporting its own error.
        """
        if self._is_failing.is_set():
            return
        self._is_failing.set()
        if not isinstance(error, InputError | KeyboardInterrupt | SystemExit):
            if self._heard:
                self._end_process(self._heard)
            time.sleep(BROKEN_SECONDS)
            # A RunError does not come from a broken connection, so this process reports its own error.
            if self._heard and not isinstance(error, RunError):
                self._end_process(self._heard)
        with self._ending:
            self._code = exit_code(error)
            self._has_told.set()
            self._send_to_all_peers({'failed': self.number, 'line': one_line(error)})
        late = threading.Timer(UNWIND_SECONDS, self._exit_immediately, (f'error: {one_line(error)}',))
        late.name, late.daemon = 'late', True
        late.start()

    # ---- These methods run in background threads. ----

    def _send_heartbeats(self) -> None:
        while not self._is_over.is_set():
            self._send_to_all_peers({'beat': True})
            self._is_over.wait(BEAT_SECONDS)

    def _listen(self, other: int, channel: MessageChannel) -> None:
        try:
            while not self._gone[other].is_set():
                self._handle_message(other, channel.receive(SILENCE_SECONDS))
        except TimeoutError:
            self._handle_lost_peer(other, f'has given no sign of life for {SILENCE_SECONDS:g} s')
        except OSError:
            self._handle_lost_peer(other, 'has died')

    def _handle_message(self, other: int, message: Message) -> None:
        if message.keys() & {'facts', 'fault', 'said'}:
            self._answers[other].put(message)
        elif 'bye' in message:
            self._gone[other].set()
        elif 'stop' in message:
            self.stop_point.handle_message(other, message)
        elif 'lost' in message:
            self._end_process(message['lost'])
        elif 'failed' in message:
            self._handle_peer_failure(message)

    def _handle_peer_failure(self, message: Message) -> None:
        """Ends this process after another process has failed, unless this process already ends with its own error."""
        failed = message['failed']
        self._heard = f'{self.people[failed]} failed: {message["line"]}'
        if failed in self._gone:
            self._gone[failed].set()
        if self.number == 0:
            self._send_to_all_peers(message, but=failed)
        if not self._is_failing.wait(GRACE_SECONDS):
            self._end_process(self._heard)

    def _handle_lost_peer(self, other: int, what: str) -> None:
        if self._gone[other].is_set() or (self._is_over.is_set() and self.number):
            return
        # A process that was only suspended reads this message later, and then ends with the right reason.
        self._channels[other].send({'lost': f'this process {what}, and the others have ended; {AGAIN}'})
        line = f'{self.people[other]} {what}; {AGAIN}'
        if self.number == 0 and not self._has_told.is_set():
            self._send_to_all_peers({'lost': line}, but=other)
        self._end_process(line)

    # ---- These methods inform other processes and end this process. ----

    def _send_to_all_peers(self, message: Message, *, but: int | None = None) -> None:
        for other, channel in self._channels.items():
            if other != but and not self._gone[other].is_set():
                channel.send(message)

    def _end_process(self, line: str) -> None:
        """Ends this process with one line on standard error, unless an error of this process already ends it."""
        with self._ending:
            if self._has_told.is_set():
                return
            write_stderr_unlocked(f'error: {line}')
            # JAX may end the other processes as soon as process 0 exits, so they must receive the reason earlier.
            if self.number == 0:
                time.sleep(FAREWELL_SECONDS)
            os._exit(ExitCode.WATCHDOG)

    def _exit_immediately(self, line: str) -> NoReturn:
        write_stderr_unlocked(line)
        os._exit(self._code)

    def _end_if_failed(self) -> None:
        """Exits a failed process at once; JAX's own exit would wait for the other processes for minutes."""
        if not self._has_told.is_set():
            return
        sys.stdout.flush()
        sys.stderr.flush()
        # Process 0 waits a little, because the other processes need its JAX service to end with their own errors.
        if self.number == 0:
            latest = time.monotonic() + GRACE_SECONDS
            for thread in self._listening:
                thread.join(max(0.0, latest - time.monotonic()))
        os._exit(self._code)


_known: list[PeerMonitor] = []  # the monitor of this run; empty if the run has only one process


def start_peer_listeners(number: int, met: RendezvousResult) -> PeerMonitor:
    """Starts the threads that receive messages from the other processes of the run."""
    _known[:] = [PeerMonitor(number, met)]
    return _known[0]


def check_facts_agree_with_peers(facts: Facts) -> None:
    """Raises InputError in all processes of a run if facts, such as their configs, differ between them.

    Args:
        facts: nested dicts that must be equal in all processes. In a run of one process, nothing is compared.
    """
    for peers in _known:
        peers.check_facts_agree(facts_to_compare(facts))


def process_index_and_count() -> tuple[int, int]:
    """Returns the number of this process and the number of processes in the run; (0, 1) in a run of one process."""
    for peers in _known:
        return peers.number, len(peers.people)
    return 0, 1


def gather_from_peers(text: str) -> list[str]:
    """Collects one text from each process of the run, and returns all texts ordered by process number.

    Waits until all processes call this. The texts may have 1 MiB in total.
    """
    for peers in _known:
        return peers.gather(text)
    return [text]


def can_agree_on_stop() -> bool:
    """Whether this process is connected to the other processes of a run, so that they can agree on a stop."""
    return bool(_known)


def is_agreed_stop_point(*, is_wanted: bool) -> bool:
    """Whether all processes of the run stop at this point between two steps; all processes must call this function
    equally often.

    See `StopAgreement.is_agreed_stop_point`.
    """
    return any(peers.stop_point.is_agreed_stop_point(is_wanted=is_wanted) for peers in _known)


def report_error_to_peers(kind: Any, error: BaseException | None, trace: Any) -> None:
    """Informs the other processes of an error in this process; used as an exit callback of an `ExitStack`.

    It must run before exit callbacks that wait for other processes.
    """
    del kind, trace
    for peers in _known:
        if error is not None and not isinstance(error, RunStopped):
            peers.broadcast_failure(error)
