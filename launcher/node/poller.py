"""Which descriptors can be read or written: what the agent needs of ``selectors``, over epoll. Runs in the agent.

``selectors`` itself loads more modules than everything else that an agent needs until it answers.
"""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable, Dict, List, Union

EVENT_READ = select.EPOLLIN
EVENT_WRITE = select.EPOLLOUT


class Poller:
    """Descriptors, or what has a ``fileno``, and what to call when they are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: Dict[int, Callable[[], Any]] = {}

    def register(self, file: Any, event: int, handler: Callable[[], Any]) -> None:
        """Watch one more, for one kind of event."""
        descriptor = _number(file)
        if descriptor in self._handlers:
            raise KeyError(descriptor)
        try:
            self._epoll.register(descriptor, event)
        except PermissionError:
            raise ValueError("descriptor %d is a plain file, which is always ready" % descriptor) from None
        self._handlers[descriptor] = handler

    def unregister(self, file: Any) -> None:
        """Watch one less."""
        descriptor = _number(file)
        del self._handlers[descriptor]
        try:
            self._epoll.unregister(descriptor)
        except OSError:
            pass  # closed already, which ends the watch too

    def is_registered(self, file: Any) -> bool:
        """Whether it is watched."""
        return _number(file) in self._handlers

    def wait(self, limit_s: float) -> List[Callable[[], Any]]:
        """What to call, waiting at most so long for the first."""
        ready = self._epoll.poll(limit_s, max(1, len(self._handlers)))
        return [self._handlers[descriptor] for descriptor, _ in ready if descriptor in self._handlers]


def _number(file: Union[int, Any]) -> int:
    return file if isinstance(file, int) else int(file.fileno())
