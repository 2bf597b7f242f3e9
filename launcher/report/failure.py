"""Failed ranks -> which one began it, and the text that says so. Runs on the head; pure.

When a rank dies, its peers fail a moment later with connection errors, and the head may hear of those first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.launch.outcome import RankExit
from launcher.report.error_text import ErrorText, find_error, last_lines
from launcher.report.fold import format_ranks
from launcher.report.known_errors import KNOWN_SIGNALS, find_known

#: what an agent says for a rank that it could not start; such a one has no log
NOT_STARTED = 127
#: kinds of follow-on errors listed at most
MAX_GROUPS = 6
#: hosts named in a line at most
MAX_HOSTS = 4
#: lines of log shown for a rank that told no error
LOG_LINES = 10

#: what a rank says when another one is gone, or late for ever
_FOLLOW_ON = re.compile(
    r"[Cc]onnection closed by (?:remote )?peer|[Cc]onnection reset by (?:remote )?peer|[Cc]onnection refused"
    r"|[Bb]roken pipe|[Ss]ocket (?:closed|[Tt]imeout)|[Ff]ailed to recv, got 0 bytes"
    r"|(?:recv|send)(?:Value|Bytes)\w* failed|DistBackendError|DistNetworkError|DistStoreError"
    r"|NCCL error: remote process exited|remote process exited or there was a network error|ncclRemoteError"
    r"|Work Request Flushed Error|Timed out waiting|Timed out after|[Ww]ait timeout after"
    r"|client socket has (?:timed out|failed)|Watchdog caught collective operation timeout"
    r"|NCCL communicator (?:was )?aborted|Application timeout caused pair closure"
    r"|monitoredBarrier|killed by signal: (?:Terminated|Killed)"
)
_ADDRESS = re.compile(r"\[[\w.:]+\]:\d+|<\d+>|\b\d+\b")
#: what a rank tells that ends because it was asked to
_ENDINGS = ("KeyboardInterrupt", "SystemExit", "terminate called without an active exception")
_OWN_STOP = (signal.SIGTERM, signal.SIGKILL)

_PRIMARY, _FOLLOWING, _UNCLEAR, _STOPPED = range(4)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A rank's end, read: how it ranks among suspects (lower began it), its error, its one line."""

    end: RankExit
    suspicion: int
    error: ErrorText | None
    summary: str


def guilty(failures: Sequence[RankExit]) -> RankExit:
    """The rank whose failure began it: the first with an error of its own; raises ValueError when there is none."""
    return _find_guilty([_read(end) for end in failures]).end


def describe_failures(failures: Sequence[RankExit], run_dir: str | Path = "") -> str:
    """What failed first, where its log is, what followed from it, and the cure where one is known.

    Args:
        failures: ranks that failed; those that ended well before may be among them.
        run_dir: folder that relative log paths start from.
    """
    read = [_read(end) for end in failures]
    first = _find_guilty(read)
    lines = [f"rank {first.end.rank} on {first.end.host} failed: {first.summary}"]
    lines += [f"    {line}" for line in _show_end(first)]
    if first.error and first.error.first_line not in "\n".join((first.summary, *first.error.lines)):
        lines.append(f"  began with: {_shorten(first.error.first_line)}")
    if first.end.log_path:
        lines.append(f"  log: {Path(run_dir) / first.end.log_path}")
    others = [
        failure
        for failure in read
        if failure.end is not first.end and failure.suspicion in (_PRIMARY, _FOLLOWING)
    ]
    lines += _describe_others(first, others)
    hint = _find_hint(first, read)
    return "\n".join([*lines, f"hint: {hint}"] if hint else lines)


def _read(end: RankExit) -> _Failure:
    error = None
    if end.signal not in _OWN_STOP:
        error = find_error(end.tail)
    return _Failure(end, _suspect(end, error), error, _summarize(end, error))


def _suspect(end: RankExit, error: ErrorText | None) -> int:
    if end.code == 0:
        return _STOPPED
    if end.after_stop and (end.signal in _OWN_STOP or end.code in (143, 137)):
        return _STOPPED
    if error is None:
        return _UNCLEAR if end.after_stop else _PRIMARY
    kind = error.root.partition(":")[0].strip()
    if end.after_stop and kind in _ENDINGS:
        return _STOPPED
    # requests.exceptions.ConnectionError and the like are of the outer world, not of a peer
    is_foreign = "." in kind and not kind.startswith("torch.") and " " not in kind
    if _FOLLOW_ON.search(error.root) and not is_foreign:
        return _FOLLOWING
    return _PRIMARY


def _summarize(end: RankExit, error: ErrorText | None) -> str:
    if end.signal is not None:
        how = f"killed by {_name_signal(end.signal)}"
    else:
        how = "no exit code" if end.code is None else f"exit code {end.code}"
    if error is None:
        if end.code == NOT_STARTED and not end.log_path:
            return "not started"
        said = last_lines(end.tail, 1) if end.code == 1 else []  # as sys.exit("why") leaves it
        return f"{how}; last line: {said[0]}" if said else how
    # closing the process group in a finally block fails too, and hides what was raised first
    hidden = _FOLLOW_ON.search(error.summary) and not _FOLLOW_ON.search(error.root)
    return f"{_shorten(error.first_line) if hidden else error.summary} ({how})"


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _find_guilty(failures: Sequence[_Failure]) -> _Failure:
    if not failures:
        raise ValueError("no rank failed")
    ordered = sorted(failures, key=lambda failure: (failure.suspicion, failure.end.seq))
    first = ordered[0]
    if first.error is None and first.end.signal is None:
        # ranks that share a mistake leave it to one of them to say so, which need not be the first to end
        for other in ordered:
            if other.error is not None and (other.suspicion, other.end.code) == (
                first.suspicion,
                first.end.code,
            ):
                return other
    return first


def _show_end(failure: _Failure) -> Sequence[str]:
    if failure.error is None:
        return last_lines(failure.end.tail, LOG_LINES)
    # a single line would only repeat the summary
    return failure.error.lines if len(failure.error.lines) > 1 else ()


def _describe_others(first: _Failure, others: Sequence[_Failure]) -> list[str]:
    groups: dict[tuple[bool, str], list[_Failure]] = {}
    for failure in sorted(others, key=lambda failure: (failure.suspicion, failure.end.seq)):
        # addresses and ports differ from rank to rank, the error is the same
        key = (failure.suspicion == _FOLLOWING, _ADDRESS.sub("#", failure.summary))
        groups.setdefault(key, []).append(failure)
    lines = []
    for (is_follow_on, text), members in list(groups.items())[:MAX_GROUPS]:
        where = _name_ranks([member.end for member in members])
        if not is_follow_on and text == _ADDRESS.sub("#", first.summary):
            lines.append(f"the same: {where}")
        else:
            mark = " (follow-on)" if is_follow_on else ""
            summary = members[0].error.summary if members[0].error else members[0].summary
            lines.append(f"after it: {where}: {_shorten(summary)}{mark}")
    if len(groups) > MAX_GROUPS:
        lines.append(f"after it: {len(groups) - MAX_GROUPS} more kinds of errors, see the logs")
    return lines


def _name_ranks(ends: Sequence[RankExit]) -> str:
    hosts = list(dict.fromkeys(end.host for end in sorted(ends, key=lambda end: end.rank)))
    named = ", ".join(hosts[:MAX_HOSTS])
    if len(hosts) > MAX_HOSTS:
        named += f" and {len(hosts) - MAX_HOSTS} more"
    return f"{'rank' if len(ends) == 1 else 'ranks'} {format_ranks(end.rank for end in ends)} on {named}"


def _shorten(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _find_hint(first: _Failure, read: Sequence[_Failure]) -> str:
    if first.error and first.error.hint:
        return first.error.hint
    text = "\n".join([first.error.summary if first.error else "", *_show_end(first)])
    known = find_known(text, first.end.tail)
    if known:
        return f"{known.cause}; {known.cure}"
    if first.end.signal is not None and first.end.signal in KNOWN_SIGNALS:
        return f"on {first.end.host}: {KNOWN_SIGNALS[first.end.signal]}"
    if first.suspicion != _FOLLOWING:
        return ""
    early = [failure.end for failure in read if failure.end.code == 0 and failure.end.seq < first.end.seq]
    if early:
        return f"{_name_ranks(early)} had ended before, with exit code 0: all must make the same collective calls"
    return "no rank shows an error of its own: one may hang, or the network between them failed"
