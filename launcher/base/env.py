"""Which variable goes to which host: head's environment, config, env files, ``--env``, hostfile -> EnvPlan.

Runs on the head and reads env files, nothing else; each node's agent applies the plan as ``apply_ops`` does.

Later wins: the node's own environment; ``sent`` (by pattern); set-up scripts; ``named`` (config, env files,
``--env``, hostfile, in this order); DCU_DEFAULTS where unset on DCU nodes; the launcher's own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from launcher.base.env_file import EnvOp, make_op, parse_options, read_env_file
from launcher.base.errors import UsageError
from launcher.base.variable import (
    DCU_DEFAULTS,
    LAUNCHER_NAMES,
    LAUNCHER_PREFIXES,
    MASK,
    PROXY_NAMES,
    SENT_PATTERNS,
    is_inherited,
    is_launcher_name,
    is_secret,
    is_visibility,
    mask,
    mask_words,
    match_pattern,
    printable,
    why_not_sent,
    why_not_settable,
)

__all__ = [
    "DCU_DEFAULTS", "LAUNCHER_NAMES", "LAUNCHER_PREFIXES", "MASK", "PROXY_NAMES", "SENT_PATTERNS",
    "EnvGroup", "EnvOp", "EnvPlan", "EnvRow", "HostLike", "apply_ops", "explain_env", "is_launcher_name",
    "is_secret", "is_visibility", "mask", "mask_words", "plan_env", "plan_envs", "printable", "why_not_settable",
]  # fmt: skip


class HostLike(Protocol):
    """What is asked of a host here; ``launcher.hosts.host.Host`` has it."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def source(self) -> str: ...
    @property
    def is_local(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class EnvPlan:
    """The changes of one host's environment, in order.

    Attributes:
        sent: before the set-up scripts.
        named: after them.
        skipped: (name, why) of the head's variables that do not go there; on this machine the agent inherits
            all but the launcher's names.
    """

    sent: tuple[EnvOp, ...]
    named: tuple[EnvOp, ...]
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EnvRow:
    """One line of it; ``operation`` is set, prepend, unset, default or "not sent"; value masked."""

    name: str
    operation: str
    value: str
    when: str
    why: str


@dataclass(frozen=True, slots=True)
class EnvGroup:
    """Hosts with the same environment, by their place in the list, and what happens to it there."""

    hosts: tuple[int, ...]
    is_local: bool
    rows: tuple[EnvRow, ...]


def plan_env(
    environ: Mapping[str, str],
    config_env: Mapping[str, Any],
    env_files: Sequence[str | Path],
    env_options: Sequence[str],
    host: HostLike,
    all_hosts: Sequence[HostLike],
) -> EnvPlan:
    """Plan the environment of one host; raises one UsageError with all mistakes of config, files, options."""
    named = _name_ops(environ, config_env, env_files, env_options)
    return _plan_host(environ, named, host, _no_proxy_ops(all_hosts))


def plan_envs(
    environ: Mapping[str, str],
    config_env: Mapping[str, Any],
    env_files: Sequence[str | Path],
    env_options: Sequence[str],
    hosts: Sequence[HostLike],
) -> list[EnvPlan]:
    """Plan the environments of all hosts, with env files read once; raises as ``plan_env``."""
    named = _name_ops(environ, config_env, env_files, env_options)
    no_proxy = _no_proxy_ops(hosts)
    return [_plan_host(environ, named, host, no_proxy) for host in hosts]


def apply_ops(environ: Mapping[str, str], ops: Iterable[EnvOp]) -> dict[str, str]:
    """The environment after the changes: what the agent does on a node."""
    result = dict(environ)
    for op in ops:
        if op.if_any and not any(result.get(name) for name in op.if_any):
            continue
        if op.operation == "unset":
            result.pop(op.name, None)
        elif op.operation == "set":
            result[op.name] = op.value
        else:
            before = result.get(op.name) or result.get(op.fallback, "")
            # no separator at an open end: an empty item of a search path means the working folder
            result[op.name] = op.value + op.separator + before if before else op.value
    return result


def explain_env(plans: Sequence[EnvPlan], hosts: Sequence[HostLike]) -> list[EnvGroup]:
    """Say for each set of hosts with equal plans what goes there, from where, and why the rest does not."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for index, (plan, host) in enumerate(zip(plans, hosts, strict=True)):
        # where a line of the hostfile says the same as another, its place alone makes no difference
        ops = tuple((op.name, op.operation, op.value, _source(op.source, host)) for op in plan.named)
        members.setdefault((host.is_local, plan.sent, ops, plan.skipped), []).append(index)
    return [
        EnvGroup(
            tuple(indexes), hosts[indexes[0]].is_local, tuple(_rows(plans[indexes[0]], hosts[indexes[0]]))
        )
        for indexes in members.values()
    ]


def _name_ops(
    environ: Mapping[str, str],
    config_env: Mapping[str, Any],
    env_files: Sequence[str | Path],
    env_options: Sequence[str],
) -> list[EnvOp]:
    problems: list[str] = []
    ops: list[EnvOp] = []
    for key, value in config_env.items():
        if key == "setup":  # the config's set-up scripts, not a variable
            continue
        if isinstance(value, dict | list | tuple):
            problems.append(f"config env: {key!r}: expected one value, found {type(value).__name__}")
            continue
        op = make_op(str(key), _config_text(value), "config env", problems)
        ops += [op] if op else []
    for path in env_files:
        ops += read_env_file(path, problems)
    ops += parse_options(env_options, environ, problems)
    if problems:
        raise UsageError(
            "\n".join(problems),
            "NAME copies this machine's value, NAME=VALUE sets, NAME+=VALUE prepends, NAME- unsets",
        )
    return ops


def _config_text(value: object) -> str | None:
    """A YAML value as text: true and false in lower case as they were written, null unsets."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _plan_host(
    environ: Mapping[str, str], named: Sequence[EnvOp], host: HostLike, no_proxy: tuple[EnvOp, ...]
) -> EnvPlan:
    problems: list[str] = []
    own = [make_op(key, value, host.source or "hostfile", problems) for key, value in host.env.items()]
    if problems:
        raise UsageError("\n".join(problems), "the hostfile's env.NAME=")
    ops = (*named, *(op for op in own if op), *no_proxy)
    asked = {op.name for op in ops if op.source != _LAUNCHER}
    sent: list[EnvOp] = []
    skipped: list[tuple[str, str]] = []
    for name in sorted(environ):
        reason = why_not_sent(name, to_this_machine=host.is_local)
        if not reason:
            source = f"pattern {match_pattern(name)}" if match_pattern(name) else "cards of this machine"
            sent.append(EnvOp(name, "set", environ[name], source))
        elif name not in asked and not (host.is_local and is_inherited(name)):
            skipped.append((name, reason))
    return EnvPlan(tuple(sent), ops, tuple(skipped))


_LAUNCHER = "launcher: all hosts of the run"


def _no_proxy_ops(hosts: Sequence[HostLike]) -> tuple[EnvOp, ...]:
    """Where a node has a proxy, traffic between nodes must not go through it."""
    names = ["localhost", "127.0.0.1", "::1"]
    for host in hosts:
        names += [name for name in (host.name, host.address) if name]
    value = ",".join(dict.fromkeys(names))
    return (
        # Most programs read no_proxy first: what stands only in NO_PROXY must not get lost behind it.
        EnvOp("no_proxy", "prepend", value, _LAUNCHER, ",", fallback="NO_PROXY", if_any=PROXY_NAMES),
        EnvOp("NO_PROXY", "prepend", value, _LAUNCHER, ",", if_any=("NO_PROXY",)),
    )


def _source(source: str, host: HostLike) -> str:
    return "hostfile" if source and source == host.source else source


def _rows(plan: EnvPlan, host: HostLike) -> Iterable[EnvRow]:
    last = {op.name: op for op in plan.named if op.operation != "prepend"}
    for op in plan.sent:
        why = (
            op.source
            if op.name not in last
            else f"{op.source}; then {_source(last[op.name].source, host)} wins"
        )
        yield EnvRow(op.name, op.operation, mask(op.name, op.value), "before set-up", why)
    for op in plan.named:
        why = _source(op.source, host)
        if op.if_any:
            why += f" (where {'a proxy' if op.if_any == PROXY_NAMES else op.if_any[0]} is set)"
        yield EnvRow(op.name, op.operation, mask(op.name, op.value), "after set-up", why)
    named = {op.name for op in plan.named} | {op.name for op in plan.sent}
    for name, value in DCU_DEFAULTS.items():
        if name not in named:
            yield EnvRow(name, "default", value, "after all", "on DCU nodes, where still unset")
    for name, reason in plan.skipped:
        yield EnvRow(name, "not sent", "", "", reason)
