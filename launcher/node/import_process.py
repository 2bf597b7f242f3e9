"""The agent's end of the import process: started while checks run, asked to fork the ranks when the order comes."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from typing import Any, Dict, List, Optional, Tuple

from . import importer, network, process_tree
from .ranks import RankProcess, before_exec, log_path, rank_environment

IMPORTER_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from launcher.node.importer import main; "
    "sys.exit(main(int(sys.argv[2]), int(sys.argv[3])))"
)
#: less than the head's patience with a node that says nothing
FORK_LIMIT_S = 8.0
#: between the end of its socket and that of itself
END_LIMIT_S = 0.5


class ImportProcess:
    """The agent's end of the import process (``importer``): started while checks run, asked to fork when the order comes.

    Args:
        message: ``prepare``: ``modules`` to import, ``import_defaults`` variables, ``slots`` as far as known.

    Attributes:
        socket: readable when it has something to say; see ``hear``.
        is_ready: it has imported all, or is gone: either way the ranks can start.
        hosts_store: no rank could be forked from it, but the rendezvous store listens there, on the port's own socket.
    """

    def __init__(
        self,
        python: str,
        home: str,
        message: Dict[str, Any],
        report: Dict[str, Any],
        variables: Dict[str, str],
    ) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(variables)
        for name, value in message.get("import_defaults", {}).items():
            environment.setdefault(name, value)
        # its worker threads would make the process unfit to fork; ranks get the variable as the user left it
        environment["OPENBLAS_NUM_THREADS"] = "1"
        cards = (report.get("cards") or {}).get("count") or 1
        local_world = int(message.get("slots") or cards)
        environment.setdefault(
            "OMP_NUM_THREADS", str(max(1, min(16, (report.get("cpus") or 1) // local_world)))
        )
        agent = os.getpid()
        argv = [python, "-u", "-c", IMPORTER_PROGRAM, home, str(agent), str(theirs.fileno())]
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=message["workdir"] if os.path.isdir(message["workdir"]) else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            preexec_fn=lambda: before_exec(agent),
        )
        theirs.close()
        process.returncode = 0
        self.pid = process.pid
        self._started = process_tree.start_time(process.pid) or 0
        self.socket = ours
        self.is_ready = False
        self.hosts_store = False
        self._store: Optional[process_tree.ProcessId] = None
        self._end = ""
        self._home = home
        importer.send_with_descriptors(ours, {"kind": "import", "modules": message.get("modules", [])}, [])

    def hear(self) -> bool:
        """Take what it says; False once it is gone."""
        try:
            message, _ = importer.receive_with_descriptors(self.socket)
        except OSError:
            message = None
        self.is_ready = True  # its only word before it is asked to fork is that all is imported
        return message is not None

    def fork(
        self, order: Dict[str, Any], variables: Dict[str, str], port: Optional[network.MasterPort]
    ) -> Tuple[List[RankProcess], str]:
        """The forked ranks and an empty text, or no rank and the reason.

        Raises:
            OSError: the ranks of all nodes were told that a store is hosted here, and nobody can host it any more.
        """
        message: Dict[str, Any] = {
            "kind": "fork", "workdir": order["workdir"], "home": self._home, "target": order["target"], "ranks": [],
        }  # fmt: skip
        given: List[int] = []
        parts = []
        for which in order["ranks"]:
            reading, writing = os.pipe()
            ours, theirs = socket.socketpair() if order.get("recipe") else (None, None)
            entry = dict(which, environment=rank_environment(order, which, variables), output=len(given))
            given.append(writing)
            if theirs is not None:
                entry["channel"] = len(given)
                given.append(theirs.detach())
            message["ranks"].append(entry)
            parts.append((which, reading, ours))
        if order.get("host_store") and port is not None:
            address = order["variables"]["MASTER_ADDR"]
            message["store"] = {"address": address, "port": port.port, "descriptor": len(given)}
            given.append(port.take())
        answer = self._ask(message, given)
        for descriptor in given:
            os.close(descriptor)
        pids = (answer or {}).get("pids", {})
        self.hosts_store = "store" in message and (answer or {}).get("kind") == "unfit"
        store_pid = (answer or {}).get("store_pid")
        if store_pid:
            self._store = (store_pid, process_tree.start_time(store_pid) or 0)
        if not pids:
            for _, reading, ours in parts:
                os.close(reading)
                if ours is not None:
                    ours.close()
            reason = str((answer or {}).get("reason") or "the import process ended" + self._find_end())
            if order.get("host_store") and not self.hosts_store:
                why = "%s, which was to host the store where all ranks meet" % reason
                raise OSError(errno.ECHILD, why, "--start fork")
            return [], reason
        return [self._take(order, part, pids[str(part[0]["rank"])]) for part in parts], ""

    def _ask(self, message: Dict[str, Any], given: List[int]) -> Optional[Dict[str, Any]]:
        try:
            importer.send_with_descriptors(self.socket, message, given)
            self.socket.settimeout(FORK_LIMIT_S)
            return importer.receive_with_descriptors(self.socket)[0]
        except socket.timeout:
            process_tree.send_signal((self.pid, self._started), signal.SIGKILL)  # else it might fork them yet
            return {"reason": "the import process does not answer"}
        except OSError:
            return None

    def _take(self, order: Dict[str, Any], part: Any, pid: int) -> RankProcess:
        which, reading, channel = part
        os.set_blocking(reading, False)
        if channel is not None:
            channel.setblocking(False)
        started = process_tree.start_time(pid) or 0
        path = log_path(order, which["rank"])
        return RankProcess(which["rank"], which["local_rank"], pid, started, reading, channel, path)

    def _find_end(self) -> str:
        deadline = time.monotonic() + END_LIMIT_S
        while not self._end and time.monotonic() < deadline:
            try:
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is not None:
                is_code = ended.si_code == os.CLD_EXITED
                self._end = _describe_end(ended.si_status if is_code else -ended.si_status)
            time.sleep(0.005)
        return self._end

    def note_end(self, pid: int, status: int) -> str:
        """Take the end of a child of the agent that is no rank; returns what is to be told if the store was in it."""
        if pid == self.pid:
            self._end = _describe_end(status)
        hosts = self._store[0] == pid if self._store is not None else self.hosts_store and pid == self.pid
        text = "the process that hosts the store where ranks meet ended%s: ranks may fail or hang for it"
        return text % _describe_end(status) if hosts else ""

    def end_store(self) -> None:
        """End the rendezvous store, which nobody needs once the ranks are gone."""
        if self._store is not None:
            process_tree.send_signal(self._store, signal.SIGKILL)
            self._store = None
        self.hosts_store = False

    def close(self) -> None:
        """End the import process; the ranks forked from it are not its children any more."""
        self.socket.close()
        process_tree.send_signal((self.pid, self._started), signal.SIGKILL)


def _describe_end(status: int) -> str:
    """``(exit code 9)`` or ``(SIGKILL)``."""
    if status >= 0:
        return " (exit code %d)" % status
    try:
        return " (%s)" % signal.Signals(-status).name
    except ValueError:
        return " (signal %d)" % -status
