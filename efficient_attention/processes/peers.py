"""What a process of a run knows of the others: whether they live, and whether they run the same code and config.

Every process says each second that it lives, and process 0 tells all others who has died, hangs or has failed. Each
then ends with one line that names that process, instead of waiting for it, or with the stack dump of a collective.
"""

import atexit
import os
import queue
import sys
import threading
import time
from typing import Any, NoReturn

from efficient_attention.errors import ExitCode, InputError, RunError, RunStopped, exit_code, one_line, write_at_once
from efficient_attention.processes.channel import Channel, Message
from efficient_attention.processes.meeting import Facts, Met, difference, facts_of
from efficient_attention.processes.stop_point import StopPoint

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 20.0  # after which a process that says nothing counts as hung
GRACE_SECONDS = 8.0  # in which a process may fail by itself after another has, with a line of its own
BROKEN_SECONDS = 3.0  # in which it becomes known whether an error is that of another process that has died
UNWIND_SECONDS = 20.0  # that a process which has failed may take to end
FAREWELL_SECONDS = 2.0  # that process 0 lives on after it has said who has died
AGAIN = 'started again together, all go on from the newest checkpoint'


class Peers:
    """The other processes of the run that this one takes part in."""

    def __init__(self, number: int, met: Met) -> None:
        self.number, self.people = number, met.people
        self._channels = met.channels
        self.stop_point = StopPoint(number, met.channels, lambda other, message: met.channels[other].send(message))
        self._answers: dict[int, queue.Queue[Message]] = {other: queue.Queue() for other in met.channels}
        self._gone = {other: threading.Event() for other in met.channels}  # said goodbye
        self._is_failing = threading.Event()
        self._has_told = threading.Event()
        self._is_over = threading.Event()
        self._ending = threading.Lock()
        self._heard = ''  # that another process has failed, and why
        self._code = 0
        self._listening = [
            threading.Thread(target=self._listen, args=pair, name='peer', daemon=True) for pair in met.channels.items()
        ]
        for thread in self._listening:
            thread.start()
        threading.Thread(target=self._beat, name='beat', daemon=True).start()
        atexit.register(self._end_if_failed)

    # ---- what all do together ----

    def compare(self, facts: Facts) -> None:
        """Waits until all processes have come here; raises InputError in all of them where the facts differ."""
        if self.number:
            self._channels[0].send({'facts': dict(facts)})
            fault = self._answers[0].get()['fault']
        else:
            said = [facts, *(self._answers[other].get()['facts'] for other in sorted(self._channels))]
            fault = difference(self.people, said)
            self._tell_all({'fault': fault})
        if fault:
            raise InputError(fault)

    def gather(self, text: str) -> list[str]:
        """Waits until all processes have come here; what each has said, by number."""
        if self.number:
            self._channels[0].send({'said': text})
            return self._answers[0].get()['said']
        said = [text, *(self._answers[other].get()['said'] for other in sorted(self._channels))]
        self._tell_all({'said': said})
        return said

    def leave(self) -> None:
        """Says goodbye; process 0 waits until all have. The run is over, and this process is alone again."""
        for channel in self._channels.values():
            channel.send({'bye': True})
        self._is_over.set()
        if self.number == 0:
            for gone in self._gone.values():
                gone.wait(SILENCE_SECONDS)
        if self in _known:
            _known.remove(self)

    def tell_failure(self, error: BaseException) -> None:
        """Tells the others of an error that ends this process; returns when it may go on to its end.

        An error that may be that of a broken connection waits until it is known whether another process has died, and
        is told no more if so, or if another has told of its own before: this process then ends here.
        """
        if self._is_failing.is_set():
            return
        self._is_failing.set()
        if not isinstance(error, InputError | KeyboardInterrupt | SystemExit):
            if self._heard:
                self._end(self._heard)
            time.sleep(BROKEN_SECONDS)
            if self._heard and not isinstance(error, RunError):  # it came as fast as the news
                self._end(self._heard)
        with self._ending:
            self._code = exit_code(error)
            self._has_told.set()
            self._tell_all({'failed': self.number, 'line': one_line(error)})
        late = threading.Timer(UNWIND_SECONDS, self._give_up, (f'error: {one_line(error)}',))
        late.name, late.daemon = 'late', True
        late.start()

    # ---- threads ----

    def _beat(self) -> None:
        while not self._is_over.is_set():
            self._tell_all({'beat': True})
            self._is_over.wait(BEAT_SECONDS)

    def _listen(self, other: int, channel: Channel) -> None:
        try:
            while not self._gone[other].is_set():
                self._hear(other, channel.receive(SILENCE_SECONDS))
        except TimeoutError:
            self._lose(other, f'has given no sign of life for {SILENCE_SECONDS:g} s')
        except OSError:
            self._lose(other, 'has died')

    def _hear(self, other: int, message: Message) -> None:
        if message.keys() & {'facts', 'fault', 'said'}:
            self._answers[other].put(message)
        elif 'bye' in message:
            self._gone[other].set()
        elif 'stop' in message:
            self.stop_point.hear(other, message)
        elif 'lost' in message:
            self._end(message['lost'])
        elif 'failed' in message:
            self._hear_failure(message)

    def _hear_failure(self, message: Message) -> None:
        """Ends this process as well, unless it is about to do so by itself."""
        failed = message['failed']
        self._heard = f'{self.people[failed]} failed: {message["line"]}'
        if failed in self._gone:
            self._gone[failed].set()
        if self.number == 0:
            self._tell_all(message, but=failed)
        if not self._is_failing.wait(GRACE_SECONDS):
            self._end(self._heard)

    def _lose(self, other: int, what: str) -> None:
        if self._gone[other].is_set() or (self._is_over.is_set() and self.number):
            return
        # If the process was only silent, it reads this when it goes on, and does not blame the others for ending.
        self._channels[other].send({'lost': f'this process {what}, and the others have ended; {AGAIN}'})
        line = f'{self.people[other]} {what}; {AGAIN}'
        if self.number == 0 and not self._has_told.is_set():
            self._tell_all({'lost': line}, but=other)
        self._end(line)

    # ---- ends ----

    def _tell_all(self, message: Message, *, but: int | None = None) -> None:
        for other, channel in self._channels.items():
            if other != but and not self._gone[other].is_set():
                channel.send(message)

    def _end(self, line: str) -> None:
        """Ends this process with one line, unless an error of its own already does."""
        with self._ending:
            if self._has_told.is_set():
                return
            write_at_once(f'error: {line}')
            if self.number == 0:  # whose end ends the others before they have heard why, where JAX notices it first
                time.sleep(FAREWELL_SECONDS)
            os._exit(ExitCode.WATCHDOG)

    def _give_up(self, line: str) -> NoReturn:
        write_at_once(line)
        os._exit(self._code)

    def _end_if_failed(self) -> None:
        """At the end of a process that has failed: ends without waiting for the others, as JAX would for minutes."""
        if not self._has_told.is_set():
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if self.number == 0:  # without JAX's service the others would not come as far as to an error of their own
            latest = time.monotonic() + GRACE_SECONDS
            for thread in self._listening:
                thread.join(max(0.0, latest - time.monotonic()))
        os._exit(self._code)


_known: list[Peers] = []  # of this process: one, or none where it runs alone


def join_peers(number: int, met: Met) -> Peers:
    """Begins to listen to the processes that were met."""
    _known[:] = [Peers(number, met)]
    return _known[0]


def compare_with_peers(facts: Facts) -> None:
    """Raises InputError in all processes of the run where they are not about to do the same; alone it does nothing.

    Args:
        facts: what all have to have alike, nested dicts.
    """
    for peers in _known:
        peers.compare(facts_of(facts))


def place_among_peers() -> tuple[int, int]:
    """The number of this process, and how many there are: (0, 1) where it runs alone."""
    for peers in _known:
        return peers.number, len(peers.people)
    return 0, 1


def gather_from_peers(text: str) -> list[str]:
    """What each process of the run says, by number, when all have said something; a text of a MiB in all at most."""
    for peers in _known:
        return peers.gather(text)
    return [text]


def can_stop_together() -> bool:
    """Whether this process takes part in a run whose processes can agree on a stop."""
    return bool(_known)


def all_stop_here(*, is_wanted: bool) -> bool:
    """Whether all processes of the run stop at this point; every process must call it (`StopPoint.is_here`)."""
    return any(peers.stop_point.is_here(is_wanted=is_wanted) for peers in _known)


def tell_peers(kind: Any, error: BaseException | None, trace: Any) -> None:
    """Tells the others of an error: the exit of a context that is left first, before others wait for them."""
    del kind, trace
    for peers in _known:
        if error is not None and not isinstance(error, RunStopped):
            peers.tell_failure(error)
