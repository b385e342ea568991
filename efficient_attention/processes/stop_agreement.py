"""Lets the processes of a run agree on the point at which all of them stop.

A run may stop after each step and before each batch of an evaluation. All processes reach the same points in the same
order, but at different times. The point of a stop must lie after every point that any process has passed:

1. A process that should stop informs process 0.
2. Process 0 asks all to pause. Each replies how many points it has passed, and passes no more.
3. Process 0 takes the largest number and chooses the next point. All continue to it, and stop there.

The threads that listen to the other processes do all this, and none of them waits for a main thread. The processes thus
agree even while one of them waits for others in a collective or a save.

JAX's own agreement (`multihost_utils.reached_preemption_sync_point`) holds Python's interpreter lock while it waits. No
other thread of that process runs then. The answer would come through such a thread (`relay.py`), so both wait forever.
"""

import threading
from collections.abc import Callable, Collection

from efficient_attention.errors import PeerError
from efficient_attention.processes.channel import Message

WAIT_SECONDS = 30.0  # of this process's running time; longer than the detection of a hung process
SLICE_SECONDS = 0.25  # a pause of the whole machine counts at most this long


class StopAgreement:
    """The state of one process in the agreement on a stop.

    Args:
        number: of this process.
        others: numbers of the processes it has a channel to; process 0 has all others, the others only process 0.
        send: sends a message to one of them.
    """

    def __init__(self, number: int, others: Collection[int], send: Callable[[int, Message], None]) -> None:
        self._number, self._others, self._send = number, list(others), send
        self._passed = 0  # number of points passed
        self._is_held = False
        self._agreed = 0  # the agreed point of the stop; 0 = none
        self._has_asked = False
        self._found: dict[int, int] = {}  # only in process 0: how many points each process has passed
        self._changed = threading.Condition()

    def is_agreed_stop_point(self, *, is_wanted: bool) -> bool:
        """Counts this point; returns whether all processes stop at it. All main threads must call this equally often.

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
        """Answers a message of this agreement; called by the thread that listens to the other process."""
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
        """Starts the agreement, unless it has already started."""
        with self._changed:
            if self._found:
                return
            self._found[0] = self._pause_main_thread()
        for other in self._others:
            self._send(other, {'stop': 'hold'})

    def _pause_main_thread(self) -> int:
        """Pauses the main thread at its next point; returns how many points it has passed."""
        with self._changed:
            self._is_held = True
            return self._passed

    def _record_answer(self, other: int, points: int) -> None:
        """Records a reply, and completes the agreement once all processes have replied."""
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
