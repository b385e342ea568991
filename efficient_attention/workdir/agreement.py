"""What the processes of a run do alike where each looks at files by itself: they read one and the same checkpoint.

A trainer may remove a step between two looks, and one host may see damage that another does not. So process 0 chooses,
and what fails in one process fails in all. A process that runs alone does as if these functions were not there.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from efficient_attention.errors import InputError
from efficient_attention.processes.peers import gather_from_peers, place_among_peers

Found = TypeVar('Found')


def first_says(look: Callable[[], Any]) -> Any:
    """What `look` returns in process 0, for all processes; the others do not call it.

    Args:
        look: returns what JSON can hold.

    Raises:
        InputError: `look` raised it in process 0; in all of them.
    """
    number, count = place_among_peers()
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


def all_find(look: Callable[[], Found]) -> Found:
    """What `look` returns in this process, where it returns in all of them.

    Raises:
        InputError: `look` raised it in one of them; in all, with the line of the first.
    """
    if place_among_peers()[1] == 1:
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
