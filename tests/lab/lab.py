"""N hosts on one machine, each with a real sshd, for tests that need a cluster. Needs root.

A host has its own network, UTS, IPC, PID and mount namespaces: own /tmp /run /dev/shm, own /opt (an overlay), own
~/.ssh, /etc/hostname, host key. The rest of the disk is shared, like NFS; so is the home folder of root, which is
not the machine's. A switch, a bridge in a namespace of its own, joins them: the machine's network is untouched.
The hosts live inside the switch's pid namespace, and the switch dies with the process that made it: nothing is left.

Try it by hand: ``python -m tests.lab 2`` opens a shell on the first of two hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.disk import HERE, LabDisk
from tests.lab.process import HostProcess, is_listening, list_children, list_processes

BIN = Path(sys.executable).parent
Words = Sequence[str | os.PathLike[str]]


class Lab:
    """Hosts 1, 2, ... of one lab; one lab at a time in a folder.

    Args:
        folder: holds all files of it; removed by ``down``.

    Attributes:
        shared: an empty folder that all hosts see, for run folders, hostfiles and scripts.
        home: root's home on all hosts.
    """

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            raise PermissionError("the lab needs root: it makes namespaces and starts sshd")
        self.disk = LabDisk(folder)
        self._lock = open(self.disk.folder / "lock", "w")  # noqa: SIM115  held until down()
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.disk.clear()
        self.disk.make()
        self.shared = self.disk.shared
        self.home = self.disk.home
        self._hosts: dict[int, subprocess.Popen[bytes]] = {}
        self._inits: dict[int, int] = {}
        self._baseline: dict[int, set[HostProcess]] = {}
        self._cut: set[int] = set()
        self._sshd_lines: dict[int, tuple[str, ...]] = {}
        self._started: list[subprocess.Popen[Any]] = []
        self._switch = self._start_switch()

    # -- names

    def name(self, i: int) -> str:
        """The host's name, known to all hosts."""
        return f"node{i:03d}"

    def address(self, i: int) -> str:
        """The host's IPv4 address."""
        return f"10.77.{i // 250}.{i % 250 + 1}"

    def ipv6(self, i: int) -> str:
        """The host's IPv6 address."""
        return f"fd00:77::{i + 1:x}"

    # -- power and cables

    def up(self, n: int) -> list[str]:
        """Bring hosts 1 to n up, where they are not, and return their names."""
        wanted = range(1, n + 1)
        for i in wanted:
            if not self.disk.host(i).exists():
                self.disk.add_host(i, self.name(i), (self.address(i), self.ipv6(i)))
        self.boot(*(i for i in wanted if i not in self._hosts))
        return [self.name(i) for i in wanted]

    def boot(self, *hosts: int) -> None:
        """Power killed hosts on again: their disks are as they were, their memory is not."""
        for i in hosts:
            self._hosts[i] = self._start_host(i)
        cables = []
        for i in hosts:
            # a MAC of its own that outlives the power: else the peers' ARP tables would be wrong after a boot
            mac = f"02:77:00:00:{i // 256:02x}:{i % 256:02x}"
            cables.append(f"link add v{i} type veth peer name eth0 address {mac} netns {self.init_pid(i)}")
            cables.append(f"link set v{i} master br0 up")
        self._ip(*cables)
        for i in hosts:
            self._wait_listening(i)
            self.rebase(i)

    def kill(self, i: int) -> None:
        """Power loss: the cable goes first, so that no FIN tells the peers."""
        self.cut(i)
        os.kill(self._inits.pop(i), signal.SIGKILL)
        self._hosts.pop(i).wait()
        self._cut.discard(i)
        self._ip(f"link del v{i}", check=False)  # the kernel may have been quicker

    def cut(self, i: int) -> None:
        """Pull the host's cable: packets vanish, nobody is told."""
        self._ip(f"link set v{i} down")
        self._cut.add(i)

    def heal(self, i: int) -> None:
        """Put the cable back."""
        self._ip(f"link set v{i} up")
        self._cut.discard(i)

    # -- sshd and users

    def set_sshd(self, i: int, *lines: str) -> None:
        """Restart the host's sshd with these lines before ours; none: as it was. Port lines replace port 22."""
        self.stop_sshd(i)
        self._sshd_lines[i] = lines
        self.start_sshd(i)

    def stop_sshd(self, i: int) -> None:
        """End the listening sshd; sessions that are open live on."""
        pid_file = Path(f"/proc/{self.init_pid(i)}/root/run/sshd.pid")
        pid = int(pid_file.read_text()) if pid_file.exists() else 0
        for process in self.processes(i):
            if process.pid == pid:
                process.kill(signal.SIGTERM)
        _poll(lambda: not any(is_listening(self.init_pid(i), port) for port in self.ports(i)), "sshd to end")

    def start_sshd(self, i: int) -> None:
        """Start it again and wait until it listens."""
        command = self.disk.write_sshd_config(i, self._sshd_lines.get(i, ()))
        before = set(self.processes(i))
        self.run(i, command, check=True)
        self._wait_listening(i)
        self._baseline[i] |= {
            entry for entry in self.processes(i) if entry not in before and command[0] in entry.cmdline
        }

    def ports(self, i: int) -> list[int]:
        """The ports on which its sshd listens."""
        words = [line.split() for line in self._sshd_lines.get(i, ())]
        return [int(word[1]) for word in words if word[0].lower() == "port"] or [22]

    def add_user(self, user: str, shell: str = "/bin/bash") -> Path:
        """Add a user to all hosts, whom root's key lets in, and return the home folder."""
        return self.disk.add_user(user, shell)

    def ssh_folder(self, i: int) -> Path:
        """The host's own ~/.ssh, as this machine sees it."""
        return self.disk.host(i) / "ssh"

    # -- commands on hosts

    def command(self, i: int, argv: Words, cwd: str | Path | None = None) -> list[str]:
        """The words that run argv on host i when started on this machine."""
        words = [str(self.disk.tool("hostexec")), str(self.init_pid(i)), str(cwd or self.home)]
        return words + [os.fspath(word) for word in argv]

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a command on a host starts with: a login's variables, nothing of this machine's, then ``env``."""
        path = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        base = {"HOME": str(self.home), "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash"}
        return {**base, "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", **(env or {})}

    def popen(
        self,
        i: int,
        argv: Words,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **popen: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command on host i: default signal handlers; signals sent to the Popen reach it, KILL too.

        Streams are text unless ``text=False``; stdin is empty unless given. For SIGSTOP see ``real_pid``.
        """
        if popen.pop("text", True):
            popen |= {"encoding": "utf-8", "errors": "replace"}
        popen.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(self.command(i, argv, cwd), env=self.environment(env), **popen)
        self._started.append(process)
        return process

    def run(
        self,
        i: int,
        argv: Words,
        *,
        input: str | bytes | None = None,
        timeout: float = 60.0,
        check: bool = False,
        **popen: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on host i to its end; a time-out kills it and fails with what it had said."""
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        if input is not None:
            popen |= {"stdin": subprocess.PIPE, "text": isinstance(input, str)}
        process = self.popen(i, argv, **popen)
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            # what it started may hold the pipes open for ever
            said = _drain(process)
            raise AssertionError(
                f"{self.name(i)}: {argv} ran for more than {timeout} s and said:\n{said}"
            ) from None
        self._started.remove(process)
        if check and process.returncode:
            raise AssertionError(f"{self.name(i)}: {argv} ended with {process.returncode}:\n{out}\n{err}")
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def launch(
        self, args: Words, *, host: int = 1, timeout: float = 180.0, **run: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run dcu-launch of this environment with these words on a host, in ``shared`` unless ``cwd`` is given."""
        return self.run(host, [BIN / "dcu-launch", *args], timeout=timeout, **{"cwd": self.shared, **run})

    def launch_popen(self, args: Words, *, host: int = 1, **popen: Any) -> subprocess.Popen[Any]:
        """Start dcu-launch likewise, all its output in one pipe unless told otherwise."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return self.popen(host, [BIN / "dcu-launch", *args], **{"cwd": self.shared, **pipes, **popen})

    def real_pid(self, process: subprocess.Popen[Any]) -> int:
        """This machine's pid of the command itself, for signals that cannot be handed on: SIGSTOP."""
        _poll(lambda: bool(list_children(process.pid)), "the command to start")
        return list_children(process.pid)[0]

    # -- processes

    def init_pid(self, i: int) -> int:
        """This machine's pid of the host's first process."""
        if i not in self._inits:
            raise RuntimeError(f"host {i} is down")
        return self._inits[i]

    def processes(self, i: int) -> list[HostProcess]:
        """All processes of the host; none when it is down."""
        return list_processes(self.init_pid(i)) if i in self._hosts else []

    def baseline(self, i: int) -> frozenset[HostProcess]:
        """What runs on the idle host: its first process and its sshd."""
        return frozenset(self._baseline[i])

    def rebase(self, i: int) -> None:
        """Take what runs now as the baseline: after starting daemons that shall stay."""
        self._baseline[i] = set(self.processes(i))

    def leftover(
        self, i: int, token: str = "", baseline: Collection[HostProcess] | None = None
    ) -> list[HostProcess]:
        """Processes beyond the baseline whose command line has this token."""
        before = self._baseline.get(i, set()) if baseline is None else baseline
        return [entry for entry in self.processes(i) if entry not in before and token in entry.cmdline]

    def wait_gone(
        self, i: int, token: str = "", *, within_s: float, baseline: Collection[HostProcess] | None = None
    ) -> float:
        """Wait until nothing beyond the baseline is left; returns the seconds it took, fails with what is left."""
        start = time.monotonic()
        while left := self.leftover(i, token, baseline):
            if time.monotonic() - start > within_s:
                lines = "\n".join(f"  {entry.pid} {entry.cmdline or '(zombie)'}" for entry in left)
                raise AssertionError(f"still on {self.name(i)} after {within_s} s:\n{lines}")
            time.sleep(0.02)
        return time.monotonic() - start

    # -- ends

    def restore(self) -> None:
        """After a test: its commands ended, killed hosts up, cables in, sshd as it was, baseline processes only."""
        for process in self._started:
            _end(process)
        self._started.clear()
        for i in sorted(self._cut):
            self.heal(i)
        for i in self._hosts:
            for entry in self.leftover(i):
                entry.kill()
            if self._sshd_lines.get(i) or not is_listening(self.init_pid(i), 22):
                self.set_sshd(i)
        self.boot(*(i for i in self.disk.hosts() if i not in self._hosts))

    def down(self) -> None:
        """End everything: no process, namespace, mount or file of the lab is left."""
        init = list_children(self._switch.pid)
        for process in (*self._started, *self._hosts.values(), self._switch):
            _end(process)
        for pid in init:
            _poll(lambda pid=pid: not list_processes(pid), "the switch to end")  # type: ignore[misc]
        self.disk.clear()
        self._lock.close()

    # -- how hosts are started

    def _start_switch(self) -> subprocess.Popen[bytes]:
        # setpriv: the switch, and so all hosts, end with this process, however it ends
        words = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
        ]
        switch = subprocess.Popen(
            [*words, self.disk.tool("hostinit"), "/bin/true"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.disk.tool("hostexec")
        _poll(lambda: bool(list_children(switch.pid)), "the switch to start")
        self._switch = switch
        self._ip("link add br0 type bridge forward_delay 0", "link set br0 up")
        return switch

    def _start_host(self, i: int) -> subprocess.Popen[bytes]:
        folder = self.disk.host(i)
        self.disk.write_sshd_config(i, self._sshd_lines.get(i, ()))
        boot = [HERE / "hostboot.sh", self.name(i), self.address(i), self.ipv6(i), folder, self.disk.folder]
        words = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child"]
        inside = list_children(self._switch.pid)[0]
        with open(folder / "log" / "boot.log", "wb") as log:
            process = subprocess.Popen(
                [self.disk.tool("hostexec"), str(inside), "/", *words, self.disk.tool("hostinit"), "/bin/bash", *boot],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        _poll(lambda: bool(_grandchildren(process.pid)), f"{self.name(i)} to start")
        self._inits[i] = _grandchildren(process.pid)[0]
        return process

    def _wait_listening(self, i: int) -> None:
        try:
            for port in self.ports(i):
                _poll(lambda port=port: is_listening(self.init_pid(i), port), f"port {port}")  # type: ignore[misc]
        except TimeoutError as error:
            logs = [
                (self.disk.host(i) / "log" / name).read_text()[-2000:] for name in ("boot.log", "sshd.log")
            ]
            raise AssertionError(f"{self.name(i)}: {error}\n" + "\n".join(logs)) from None

    def _ip(self, *lines: str, check: bool = True) -> None:
        namespace = f"--net=/proc/{list_children(self._switch.pid)[0]}/ns/net"
        done = subprocess.run(
            ["nsenter", namespace, "ip", "-batch", "-"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
        )
        if check and done.returncode:
            raise AssertionError(f"ip {lines}: {done.stderr}")


def _grandchildren(pid: int) -> list[int]:
    return [below for child in list_children(pid) for below in list_children(child)]


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()


def _drain(process: subprocess.Popen[Any]) -> str:
    try:
        out, err = process.communicate(timeout=1)
    except subprocess.TimeoutExpired as error:
        out, err = error.stdout, error.stderr
    parts = [
        part.decode(errors="replace") if isinstance(part, bytes) else part for part in (out, err) if part
    ]
    return "\n".join(parts)


def _poll(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > within_s:
            raise TimeoutError(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.01)
