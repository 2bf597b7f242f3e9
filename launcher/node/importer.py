"""The import process: loads the training stack once a node, while checks run, and forks the ranks from it.

Started by the agent with the ranks' interpreter and environment (``--start fork``). Before anything touched a card it
forks; every rank then gets a session, output, environment and random state of its own, becomes a child of the agent
(a subreaper), and runs the recipe or script as if it were its ``__main__``. That no other thread and no card context
exists at the fork is asserted, else the agent is told and starts the ranks as processes of their own.

Runs under the ranks' Python on nodes; standard library only, besides what it is told to import.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from . import numa, process_tree

ADOPTION_LIMIT_S = 5.0
#: what a forked rank may take from the end of its program to the end of its process: exit handlers of libraries
END_LIMIT_S = 20.0
#: Slurm sends them to every process of a step; the store must outlive them, since ranks save in the grace
NOT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MESSAGE_LIMIT = 8 * 1024 * 1024


def send_with_descriptors(sock: socket.socket, message: Dict[str, Any], descriptors: List[int]) -> None:
    """One JSON message, 4 bytes of length before it, with open descriptors (unix(7), SCM_RIGHTS)."""
    payload = json.dumps(message).encode("ascii")
    head = len(payload).to_bytes(4, "big")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([head], rights)
    sock.sendall(payload)


def receive_with_descriptors(sock: socket.socket) -> Tuple[Optional[Dict[str, Any]], List[int]]:
    """The counterpart; (None, []) at end of file."""
    descriptors = array.array("i")
    head, rights, _, _ = sock.recvmsg(4, socket.CMSG_SPACE(512 * descriptors.itemsize))
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    while 0 < len(head) < 4:
        head += sock.recv(4 - len(head))
    if len(head) < 4:
        return None, []
    length, payload = int.from_bytes(head, "big"), b""
    while len(payload) < length:
        piece = sock.recv(min(65536, length - len(payload)))
        if not piece:
            return None, []
        payload += piece
    return json.loads(payload.decode("ascii")), list(descriptors)


def main(agent: int, descriptor: int) -> Optional[int]:
    """Import, then serve the agent until it closes the socket; in a forked rank: run it and return its exit code."""
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    sock = socket.socket(fileno=descriptor)
    process_tree.load_libc()  # forked ranks need it, and import nothing before they are their own
    held: List[Any] = []
    while True:
        message, descriptors = receive_with_descriptors(sock)
        if message is None:
            os._exit(0)
        if message["kind"] == "import":
            send_with_descriptors(sock, import_modules(message["modules"]), [])
        elif message["kind"] == "fork":
            reason = unfit_to_fork()
            if reason:
                if "store" in message:
                    # the plan told all nodes that a store is hosted here, and a store needs no fork
                    held.append(
                        _make_store(message["store"], descriptors.pop(message["store"]["descriptor"]))
                    )
                for descriptor in descriptors:
                    os.close(descriptor)
                send_with_descriptors(sock, {"kind": "unfit", "reason": reason}, [])
                continue
            # what a rank is told before it has its own handling must wait for it, and not be ignored as here
            signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_US)
            forked = _fork_ranks(message, descriptors, agent, sock)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_US)
            if forked is not None:
                return forked


def import_modules(names: List[str]) -> Dict[str, Any]:
    """Import each module; one that fails will fail in the ranks too, with its traceback where people look for it."""
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module does at import must not end this process silently
            failed[name] = "%s: %s" % (type(error).__name__, error)
            break
    return {"kind": "imported", "failed": failed}


def unfit_to_fork() -> str:
    """Why ranks cannot be forked from this process now; empty when they can."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return "%d threads run after the import" % threads
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the import touched a card"
    return ""


def _fork_ranks(
    message: Dict[str, Any], descriptors: List[int], agent: int, sock: socket.socket
) -> Optional[int]:
    """Fork every rank of the order; returns its exit code inside a rank, None in the import process."""
    pids: Dict[str, int] = {}
    store = message.get("store")
    store_pid = 0
    if store is not None:
        store_pid = _fork_adopted(agent) or 0
        if not store_pid:
            _host_store(store, descriptors[store["descriptor"]])
    for which in message["ranks"]:
        pid = _fork_adopted(agent)
        if pid is None:
            keep = {name: descriptors[which[name]] for name in ("output", "channel") if name in which}
            sock.close()
            _become_rank(message, which, keep)
            return run_rank(message, which)
        pids[str(which["rank"])] = pid
    for held in descriptors:
        os.close(held)
    send_with_descriptors(sock, {"kind": "forked", "pids": pids, "store_pid": store_pid}, [])
    return None


def _fork_adopted(agent: int) -> Optional[int]:
    """Fork twice, so that the grandchild becomes the agent's; returns its pid here and None in the grandchild."""
    reading, writing = os.pipe()
    middle = os.fork()
    if middle:
        os.close(writing)
        pid = int(os.read(reading, 32))
        os.close(reading)
        os.waitpid(middle, 0)
        return pid
    os.close(reading)
    child = os.fork()
    if child:
        os.write(writing, b"%d" % child)
        os._exit(0)
    os.close(writing)
    deadline = time.monotonic() + ADOPTION_LIMIT_S
    while os.getppid() != agent:
        if time.monotonic() > deadline:
            os._exit(70)
        time.sleep(0.001)
    process_tree.die_with_parent(agent)
    os.setsid()
    return None


def _become_rank(message: Dict[str, Any], which: Dict[str, Any], keep: Dict[str, int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(keep["output"], 1)
    os.dup2(keep["output"], 2)
    process_tree.close_descriptors_but({0, 1, 2, keep.get("channel", -1)})
    numa.Binding(which.get("binding")).apply()
    for number in (*NOT_FOR_US, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python sets it at its start
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    environment = dict(which["environment"])
    if "channel" in keep:
        environment["DCU_LAUNCH_CHANNEL"] = str(keep["channel"])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(message["workdir"])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def run_rank(message: Dict[str, Any], which: Dict[str, Any]) -> int:
    """Run the recipe, script or module of the order; returns the exit code, after printing a traceback if it raised."""
    code = _run_target(message, which)
    # what a card's library does at the end of a forked process may wait for a thread that only the parent has
    threading.Thread(target=_end_in_time, args=(code,), daemon=True).start()
    return code


def _end_in_time(code: int) -> None:
    time.sleep(END_LIMIT_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_target(message: Dict[str, Any], which: Dict[str, Any]) -> int:
    try:
        target = message["target"]
        if target["kind"] == "recipe":
            entry = importlib.import_module("launcher.train.main")
            return int(entry.main() or 0)
        _run_program(target, message["home"], which.get("arguments", []))
        return 0
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        sys.stderr.write("%s\n" % (leave.code,))
        return 1
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None and _is_ours(frame.tb_frame.f_code.co_filename):
            frame = frame.tb_next
        traceback.print_exception(type(error), error, frame)
        return 1


def _is_ours(filename: str) -> bool:
    return filename == __file__ or "runpy" in filename


def _run_program(target: Dict[str, Any], home: str, arguments: List[str]) -> None:
    """As ``python script.py`` or ``python -m module`` would: its own sys.path, argv and ``__main__``."""
    import runpy

    sys.path[:] = [entry for entry in sys.path if entry != home]
    for name in [name for name in sys.modules if name.partition(".")[0] == "launcher"]:
        if name != __name__ and not name.endswith("process_tree"):
            del sys.modules[name]
    sys.argv[:] = [target["name"], *target["arguments"], *arguments]
    if target["kind"] == "module":
        sys.path.insert(0, os.getcwd())
        runpy.run_module(target["name"], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(target["name"])))
        runpy.run_path(target["name"], run_name="__main__")


def _host_store(store: Dict[str, Any], listening: int) -> NoReturn:
    """Serve the rendezvous store on a socket that has been listening since the ports were agreed."""
    process_tree.close_descriptors_but({0, 1, 2, listening})
    held = _make_store(store, listening)
    while held is not None:
        time.sleep(3600)
    os._exit(0)


def _make_store(store: Dict[str, Any], listening: int) -> Any:
    from torch.distributed import TCPStore

    address, port = store["address"], store["port"]

    def make(**options: Any) -> Any:
        return TCPStore(
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening, **options
        )

    try:
        return make()
    except NotImplementedError:
        # torch 2.4: its new store, the default, takes no socket that listens already; its old one does
        return make(use_libuv=False)
