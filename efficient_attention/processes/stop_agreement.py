"""Lets the processes of a run agree on the step after which all of them stop.

A run may stop after each step and before each batch of an evaluation; these moments are its stop points. All processes
reach the same stop points in the same order, but at different times. The agreed stop point must come after every point
that any process has passed:

1. A process that should stop informs process 0.
2. Process 0 asks all to pause. Each replies how many points it has passed, and passes no more.
3. Process 0 takes the largest number and chooses the next point. All continue to it, and stop there.

The threads that listen to the other processes do all this, and none of them waits for a main thread. The processes thus
agree even while one of them waits for others in a collective or a save.

JAX's own agreement (`multihost_utils.reached_preemption_sync_point`) holds Python's interpreter lock while it waits. No
other thread of that process runs then. The answer would come through such a thread (`coordinator_relay.py`), so JAX
would wait forever.
"""

import threading
from collections.abc import Callable, Collection

from efficient_attention.errors import PeerError
from efficient_attention.processes.message_channel import Message

# The agreement may take this many seconds of the process's running time; a hung process is detected earlier.
WAIT_SECONDS = 30.0
SLICE_SECONDS = 0.25  # if the whole machine pauses, the pause counts as at most this many seconds of waiting


class StopAgreement:
    """One process's part in the agreement of a run's processes on the step after which all of them stop.

    Args:
        number: number of this process.
        others: numbers of the connected processes: in process 0 all other processes, elsewhere only process 0.
        send: sends a message to a connected process.
    """

    def __init__(self, number: int, others: Collection[int], send: Callable[[int, Message], None]) -> None:
        self._number, self._others, self._send = number, list(others), send
        self._passed = 0  # number of stop points that this process has passed
        self._is_held = False
        self._agreed = 0  # number of the stop point at which all processes stop; 0 before the agreement
        self._has_asked = False
        self._found: dict[int, int] = {}  # number of stop points that each process has passed; only in process 0
        self._changed = threading.Condition()

    def is_agreed_stop_point(self, *, is_wanted: bool) -> bool:
        """Counts a point at which the run may stop, and returns whether all processes have agreed to stop there.

        The main threads of all processes must call this equally often.

        Args:
            is_wanted: whether this process should stop.

        Raises:
            PeerError: the processes have not agreed in time.
        """
        if is_wanted and not self._has_asked:
            self._has_asked = True
            self._request_stop()
        with self._changed:
            self._wait_while_paused()
            self._passed += 1
            return self._passed == self._agreed

    def handle_message(self, other: int, message: Message) -> None:
        """Reacts to another process's message about the agreement; called by the thread that receives messages."""
        kind = message['stop']
        if kind == 'wanted':
            self._pause_all_processes()
        elif kind == 'hold':
            self._send(other, {'stop': 'passed', 'points': self._pause_main_thread()})
        elif kind == 'passed':
            self._record_answer(other, message['points'])
        elif kind == 'agreed':
            self._resume_until_point(message['point'])

    def _request_stop(self) -> None:
        if self._number:
            self._send(0, {'stop': 'wanted'})
        else:
            self._pause_all_processes()

    def _pause_all_processes(self) -> None:
        """Starts the agreement on a stop, unless it has already started: asks all processes to pause."""
        with self._changed:
            if self._found:
                return
            self._found[0] = self._pause_main_thread()
        for other in self._others:
            self._send(other, {'stop': 'hold'})

    def _pause_main_thread(self) -> int:
        """Makes the main thread pause at its next stop point; returns how many stop points it has passed."""
        with self._changed:
            self._is_held = True
            return self._passed

    def _record_answer(self, other: int, points: int) -> None:
        """Records how many stop points another process has passed; after the replies of all processes, chooses the
        point at which all stop.
        """
        with self._changed:
            self._found[other] = points
            if len(self._found) <= len(self._others):
                return
        point = max(self._found.values()) + 1
        for one in self._others:
            self._send(one, {'stop': 'agreed', 'point': point})
        self._resume_until_point(point)

    def _resume_until_point(self, point: int) -> None:
        with self._changed:
            self._agreed, self._is_held = point, False
            self._changed.notify_all()

    def _wait_while_paused(self) -> None:
        for _ in range(round(WAIT_SECONDS / SLICE_SECONDS)):
            if self._changed.wait_for(lambda: not self._is_held, SLICE_SECONDS):
                return
        raise PeerError(f'the processes of the run have not agreed where to stop within {WAIT_SECONDS:g} s')
