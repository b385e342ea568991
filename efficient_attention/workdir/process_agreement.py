"""Makes all processes of a run use the same checkpoint, although each process reads the files separately.

A trainer may remove a step between two looks, and one host may see damage that another host does not see. Therefore
process 0 chooses the checkpoint, and a failure in one process fails all. With a single process, `look` is just called.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from efficient_attention.errors import InputError
from efficient_attention.processes.peer_monitor import gather_from_peers, process_index_and_count

Found = TypeVar('Found')


def broadcast_from_process_0(look: Callable[[], Any]) -> Any:
    """Calls `look` in process 0 only, and returns its result in all processes.

    Args:
        look: returns a JSON value.

    Raises:
        InputError: in all processes, if `look` raised it in process 0.
    """
    number, count = process_index_and_count()
    if count == 1:
        return look()
    answer: dict[str, Any] = {}
    if number == 0:
        try:
            answer = {'found': look()}
        except InputError as error:
            answer = {'fault': str(error)}
    answer = json.loads(gather_from_peers(json.dumps(answer))[0])
    if 'fault' in answer:
        raise InputError(answer['fault'])
    return answer['found']


def require_in_all_processes(look: Callable[[], Found]) -> Found:
    """Calls `look` in every process, and returns the result of this process; if `look` fails in any process, raises an
    error in all of them.

    Raises:
        InputError: in all processes, if `look` raised it in any of them; has the message of the first of these.
    """
    if process_index_and_count()[1] == 1:
        return look()
    fault = ''
    try:
        found = look()
    except InputError as error:
        fault = str(error)
    for line in gather_from_peers(fault):
        if line:
            raise InputError(line)
    return found
