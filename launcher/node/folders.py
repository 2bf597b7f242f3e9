"""Folders on their way to or from this node: the head's words about them. Runs in the agent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable, Dict, Optional

    from . import folder_in, folder_out


class Folders:
    """At most one folder each way at a time.

    Args:
        in_thread: does work that may block, and sends the head its answer.
        say: sends a message, from any thread.
        send: sends a piece of a file, from any thread.
    """

    def __init__(
        self,
        in_thread: Callable[[Callable[[], Dict[str, Any]]], None],
        say: Callable[[Dict[str, Any]], None],
        send: Callable[[bytes], None],
    ) -> None:
        self._in_thread, self._say, self._send = in_thread, say, send
        self._receiver: Optional[folder_in.FolderReceiver] = None
        self._sender: Optional[folder_out.FolderSender] = None

    def obey(self, message: Dict[str, Any]) -> None:
        """Do what a word of the head asks; words about other things are passed over."""
        from . import folder_in, folder_out

        kind = message["kind"]
        if kind == "sync_look":
            self._in_thread(lambda: folder_in.look(message))
        elif kind == "sync_take":
            self._receiver = folder_in.FolderReceiver(message, self._say)
        elif kind == "fetch_look":
            self._in_thread(lambda: folder_out.look(message))
        elif kind == "fetch":
            self._sender = folder_out.FolderSender(
                message["folder"], self._say, self._send, int(message.get("window", 0))
            )
        elif kind == "taken" and self._sender is not None:
            self._sender.taken(int(message["bytes"]))

    def take(self, piece: bytes) -> None:
        """A piece of a file from the head."""
        if self._receiver is not None:
            self._receiver.feed(piece)
