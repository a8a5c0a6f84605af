"""What takes the place of Flower's thread that hands messages to worker processes."""

import threading
from queue import Queue

from feddiverse.flower import simulation


class Waiting:
    """A stand-in for Flower's state: one message waits for each of 1,000 nodes. It counts whom it is asked about."""

    def __init__(self, until: int, over: threading.Event) -> None:
        self.asked: list[int] = []
        self._until, self._over = until, over

    def get_message_ins(self, node_id: int, limit: int) -> list[str]:
        assert limit == 1
        self.asked.append(node_id)
        if len(self.asked) == self._until:
            self._over.set()
        return [f"to {node_id}"] if node_id < 1000 else []


def test_only_nodes_that_something_was_sent_to_are_asked_about_once_a_message() -> None:
    """Asking for every node at every look costs nodes times messages: seconds with a thousand clients."""
    over, pushed, delivered = threading.Event(), Queue[int](), Queue[str]()
    nodes = [7, 3, 1000, 7]  # the third went to nobody: Flower did not take its message
    for node in nodes:
        pushed.put(node)
    state = Waiting(len(nodes), over)
    simulation._deliver(pushed, state, delivered, {node: node for node in range(1000)}, over)  # type: ignore[arg-type]
    assert state.asked == nodes
    assert list(delivered.queue) == ["to 7", "to 3", "to 7"]
