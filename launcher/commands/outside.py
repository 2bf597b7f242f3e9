"""A run towards other processes of its user: on the list, in the background, asked to save or stop. Runs on the head."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from launcher.base.errors import UsageError
from launcher.commands.request import Request
from launcher.launch.asking import Asked, Ear
from launcher.launch.background import HEAD_LOG, Background, Foreground, go_background
from launcher.launch.life import HEAD_FILE, LOCK_FILE, is_locked, this_head
from launcher.launch.registry import register_run
from launcher.launch.run_folder import RunFolder
from launcher.launch.supervise import Supervisor
from launcher.remote.session import Inbox


def enlist(request: Request, folder: RunFolder) -> None:
    """Say in the run folder who leads the run, and in the user's list where the folder is."""
    config = (request.spec.recipe or {}).get("config", {})
    head = this_head(
        request.spec.name,
        folder.path,
        target=request.spec.target,
        kind=request.spec.kind,
        hosts=tuple(host.name for host in request.hosts),
        detached=bool(request.options["detach"]),
        steps=config.get("train", {}).get("max_steps"),
    )
    folder.write_text(HEAD_FILE, head.to_json())
    failed = register_run(folder.path)
    if failed:
        click.echo(f"dcu-launch: note: ps will not list this run: {failed}", err=True)


@contextlib.contextmanager
def listening(run_dir: Path, inbox: Inbox) -> Iterator[Ear]:
    """Hear what other processes ask of the run while inside."""
    ear = Ear(run_dir, inbox)
    try:
        yield ear
    finally:
        ear.end()


@dataclass(frozen=True, slots=True)
class Outside:
    """What others wait for or ask of a run whose ranks are watched."""

    ear: Ear
    background: Background | None = None
    started: float = field(default_factory=time.time)

    def serve(self, supervisor: Supervisor) -> None:
        """Let the waiting terminal go when all ranks are started, and pass saves on; called some ten times a second."""
        if self.background is not None and supervisor.is_up:
            self.background.tell_up()
        if supervisor.spec.recipe is not None and not supervisor.can_save:
            return
        while (asked := self.ear.take_save()) is not None:
            _save(supervisor, asked)


def _save(supervisor: Supervisor, asked: Asked) -> None:
    """A recipe's ranks agree on the step after which they save; a script knows no such word."""
    refused = "" if supervisor.spec.recipe is not None else "a script decides itself when it saves"
    supervisor.folder.add_event(
        "request", data={"id": asked.id, "want": "save", "by": asked.by, "refused": refused}
    )
    if refused:
        return
    supervisor.view.status(f"save asked by {asked.by}")
    supervisor.nodes.send_all({"kind": "save"})


def detach(run_dir: Path) -> Background | Foreground:
    """Split the head from the terminal.

    Raises:
        UsageError: the run folder cannot be written, or another run is using it.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if is_locked(run_dir / LOCK_FILE):  # before our words go into the log of another run
            raise UsageError(f"run folder {run_dir}: another run is using it", "name another with --run-dir")
        return go_background(run_dir)
    except OSError as error:
        raise UsageError(f"run folder {run_dir}: {error.strerror}", "name another with --run-dir") from None


def watch_start(side: Foreground, request: Request) -> int:
    """On the terminal: wait until the ranks are up and say how to follow and to stop; or how it ended before."""
    code = side.wait_up()
    if code is not None:
        return code
    name, run_dir = request.spec.name, request.spec.run_dir
    click.echo(
        f"dcu-launch: {name} goes on in the background: process {side.pid} on {socket.gethostname()}\n"
        f"  run folder  {run_dir}\n"
        f"  its words   {run_dir}/{HEAD_LOG}\n"
        f"  follow      dcu-launch attach {name}    or dcu-launch logs -f {name}\n"
        f"  save, stop  dcu-launch save {name}      dcu-launch stop {name}"
    )
    return 0
