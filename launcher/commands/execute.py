"""A request carried out: sessions, reports, findings, meeting, plan, ranks, end. Runs on the head."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from launcher.base.config import ROW_SUFFIXES
from launcher.base.errors import LauncherError, StoppedError, UsageError
from launcher.commands.attempt import watch_attempt
from launcher.commands.conclude import conclude, summarize_error, write_report
from launcher.commands.judge import judge, read_reports, refuse
from launcher.commands.outside import Outside, detach, enlist, listening, watch_start
from launcher.commands.request import Request
from launcher.commands.resume_place import check_resume
from launcher.commands.torch_check import TorchCheck
from launcher.commands.transfer import bring_folder, fetch_result
from launcher.hosts.host import Host
from launcher.hosts.target import fold_names
from launcher.launch.background import Foreground
from launcher.launch.gate import Gate
from launcher.launch.meeting import arrange_meeting
from launcher.launch.nodes import Nodes
from launcher.launch.order import LaunchPlan, NodeOrder
from launcher.launch.plan import make_plan
from launcher.launch.run_folder import RunFolder, claim_folder
from launcher.launch.signals import signals_to
from launcher.preflight.finding import Finding
from launcher.preflight.report import NodeReport
from launcher.remote.fanout import open_sessions
from launcher.remote.options import RemoteOptions
from launcher.remote.session import Inbox
from launcher.report.lasting import outlast_readers
from launcher.report.plan_text import show_plan

MAX_ATTEMPTS = 4  # three more, where somebody took the port
WAITING_EVERY_S = 5.0
#: variables that libraries read while they are imported, where the user set nothing
IMPORT_DEFAULTS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}


def execute(request: Request, only_plan: bool) -> int:
    """Run the request; with ``only_plan`` print the plan and start nothing. Returns the exit code."""
    if only_plan:
        outlast_readers()
        with signals_to(inbox := Inbox()), open_nodes(request, inbox, None) as nodes:
            reports = read_reports(nodes, request)
            judge(request, reports)
            show_plan(plan_run(nodes, request, reports, 0))
        return 0
    request = _claim_run_folder(request)
    background = None
    if request.options["detach"]:
        side = detach(Path(request.spec.run_dir))
        if isinstance(side, Foreground):
            return watch_start(side, request)
        background = side
    outlast_readers()
    with (
        signals_to(inbox := Inbox()),
        _run_folder(request) as folder,
        listening(folder.path, inbox) as ear,
        open_nodes(request, inbox, folder) as nodes,
    ):
        reports = read_reports(nodes, request)
        findings = judge(request, reports, folder)
        check_resume(nodes, request, reports)
        return run_ranks(nodes, request, reports, folder, findings, Outside(ear, background))


def _claim_run_folder(request: Request) -> Request:
    """A folder of this run's own, unless the user named one."""
    if request.options["run_dir"]:
        _refuse_recipes_folder(request)
        return request
    path = claim_folder(Path(request.spec.run_dir))
    return replace(request, spec=replace(request.spec, run_dir=str(path), name=path.name))


def _refuse_recipes_folder(request: Request) -> None:
    """A script's run would overwrite the summary and the plan of a recipe's, which can still be resumed."""
    path = Path(request.spec.run_dir)
    if request.recipe is None and (path / "config.yaml").exists():
        raise UsageError(
            f"run folder {path}: holds the run of a recipe (config.yaml)",
            "a folder of its own for this script: another --run-dir",
        )


@contextmanager
def _run_folder(request: Request) -> Iterator[RunFolder]:
    folder = RunFolder(Path(request.spec.run_dir), request.spec.name)
    try:
        enlist(request, folder)
        folder.add_event(
            "start", data={"target": request.spec.target, "hosts": [host.name for host in request.hosts]}
        )
        if request.recipe is not None:
            from launcher.base.recipe import to_yaml

            folder.write_text("config.yaml", to_yaml(request.recipe))
        yield folder
    except LauncherError as error:
        if not folder.has_summary:
            summary = summarize_error(error)
            folder.add_event("end", data={"exit": summary["exit"], "kind": summary["kind"]})
            folder.write_json("summary.json", summary)
            write_report(folder)
        raise
    finally:
        folder.close()
        if folder.fault:
            click.echo(f"dcu-launch: warning: run folder {folder.path}: {folder.fault}", err=True)


@contextmanager
def open_nodes(request: Request, inbox: Inbox, folder: RunFolder | None) -> Iterator[Nodes]:
    """Sessions to all hosts, each agent already told what to prepare; all agents are ended on the way out."""
    options = request.options
    remote = RemoteOptions(
        transport=options["transport"],
        connect_timeout=options["connect_timeout"],
        accept_new_host_keys=options["accept_new_host_keys"],
        fanout=options["fanout"],
    )
    orders = _prepare_messages(request, folder)
    brings = request.spec.sync and folder is not None  # a dry run leaves the nodes as they are
    greetings = [(secrets.token_hex(16), {"kind": "ping"} if brings else order) for order in orders]
    sessions = open_sessions(request.hosts, remote, inbox, greetings, _stop_on_signal(inbox))
    nodes = Nodes(sessions, inbox, options["lost_after"], tick=lambda: None)
    try:
        if brings:
            bring_folder(nodes, request.spec)
            for node, order in enumerate(orders):
                nodes.send(node, order)
        yield nodes
    finally:
        end_nodes(nodes)


def end_nodes(nodes: Nodes) -> None:
    """Have all agents end, and name those that did not say that nothing is left."""
    unconfirmed = nodes.end()
    if unconfirmed:
        click.echo(f"dcu-launch: warning: no word of a clean end from {', '.join(unconfirmed)}", err=True)


def _stop_on_signal(inbox: Inbox) -> Callable[[list[str]], None]:
    """While sessions open: Ctrl-C ends at once, and slow hosts are named now and then."""
    begun = time.monotonic()
    told = [begun]

    def tick(waiting: list[str]) -> None:
        while (arrival := inbox.get(0)) is not None:
            if arrival.signal_number:
                raise StoppedError("stopped while the hosts were being reached", arrival.signal_number)
            kept.append(arrival)
        for arrival in kept:
            inbox.put(arrival)
        kept.clear()
        if time.monotonic() - told[0] > WAITING_EVERY_S:
            told[0] = time.monotonic()
            click.echo(f"dcu-launch: waiting for {fold_names(waiting)}", err=True)

    kept: list[Any] = []
    return tick


def _prepare_messages(request: Request, folder: RunFolder | None) -> list[dict[str, Any]]:
    """What each agent is told to make ready, in the order of node ranks."""
    plan = make_plan(request.spec, request.hosts, request.env_plans, [None] * len(request.hosts), None)
    return [
        _prepare_message(request, host, order, folder)
        for host, order in zip(request.hosts, plan.nodes, strict=True)
    ]


def _prepare_message(
    request: Request, host: Host, order: NodeOrder, folder: RunFolder | None
) -> dict[str, Any]:
    spec = request.spec
    return {
        "kind": "prepare",
        "lost_after": request.options["lost_after"],
        "python": host.python or spec.python,
        "like_head": sys.executable,
        "sent": [dict(op) for op in order.sent],
        "named": [dict(op) for op in order.named],
        "setup": list(order.setup),
        "start": spec.start if spec.start != "auto" or spec.kind == "recipe" else "spawn",
        "modules": list(spec.modules),
        "import_defaults": IMPORT_DEFAULTS,
        "slots": host.slots or spec.ranks_per_host,
        "bind": spec.bind,
        "workdir": spec.workdir,
        "must_exist": must_exist(request),
        "run_dir": spec.run_dir,
        "run_dir_token": folder.token if folder else "",
    }


def must_exist(request: Request) -> list[str]:
    """Paths that every node must have: the script, and the model and data folders of a recipe."""
    spec = request.spec
    if spec.recipe is None:
        return [*([spec.target] if spec.kind == "script" else []), *spec.files]
    config = spec.recipe["config"]
    named = [config["model"].get("path"), config["data"].get("path"), config["data"].get("eval_path")]
    return [str(path) for path in named if path and _is_path(str(path))]


def _is_path(text: str) -> bool:
    """Whether it can only mean a file or folder: no name of a model, nor the built-in demo."""
    return text.startswith(("/", "./", "../")) or text.lower().endswith(ROW_SUFFIXES)


def plan_run(nodes: Nodes, request: Request, reports: Sequence[NodeReport], attempt: int) -> LaunchPlan:
    """Arrange where ranks meet and decide everything."""
    wanted = request.spec.master_port if attempt == 0 else None
    meeting = arrange_meeting(nodes, request.spec, request.hosts, reports, wanted)
    return make_plan(request.spec, request.hosts, request.env_plans, reports, meeting, attempt)


def run_ranks(
    nodes: Nodes,
    request: Request,
    reports: Sequence[NodeReport],
    folder: RunFolder,
    findings: Sequence[Finding],
    outside: Outside,
) -> int:
    """Start the ranks, again with another port where somebody took it, and tell how it ended.

    Args:
        findings: that preflight has told.
    """
    for attempt in range(MAX_ATTEMPTS):
        plan = plan_run(nodes, request, reports, attempt)
        folder.write_json("plan.json", plan.to_dict())
        if attempt == 0:
            _tell_bindings(plan)
        gate = _make_gate(request, reports, findings, folder)
        outcome = watch_attempt(nodes, request, reports, folder, plan, gate, outside)
        if not outcome.started_again or attempt == MAX_ATTEMPTS - 1 or request.spec.master_port:
            break
        folder.add_event("retry", attempt=attempt, data={"why": f"port {plan.master_port} was taken"})
        click.echo(f"dcu-launch: port {plan.master_port} was taken in the meantime, starting again", err=True)
    fetched = fetch_result(nodes, request, reports, outcome)
    end_nodes(nodes)
    refusal = refuse(gate.errors) if isinstance(gate, TorchCheck) and gate.errors else None
    return conclude(outcome, request, folder, fetched, refusal)


def _make_gate(
    request: Request, reports: Sequence[NodeReport], findings: Sequence[Finding], folder: RunFolder
) -> Gate:
    return Gate() if request.options["no_torch_check"] else TorchCheck(request, reports, findings, folder)


def _tell_bindings(plan: LaunchPlan) -> None:
    """One line for all nodes whose ranks are bound alike."""
    alike: dict[str, list[str]] = {}
    for order in plan.nodes:
        if order.binding:
            alike.setdefault(order.binding, []).append(order.host)
    for text, names in alike.items():
        click.echo(f"dcu-launch: {fold_names(names)}: {text}", err=True)
