"""The errors a user can meet, each with the exit code it leads to and a cure.

Tree::

    LauncherError               70   a bug of ours when raised bare
    +-- UsageError               2   wrong use of the command line
    |   +-- ConfigError          2   recipe file or key=value
    |   +-- HostfileError        2   hostfile lines
    +-- PreflightError           3   the cluster was refused before a rank started
    +-- UnreachableError         4   a host could not be reached, or could not start the agent
    +-- NodeLostError            5   a node or the head was lost during the run
    +-- RankFailedError          n   a rank failed: its own code, or 128 + signal
    +-- ResultError              1   the ranks ended well, but their result did not reach the head
    +-- StoppedError       128 + n   the user, Slurm or the system asked for the end

Raised anywhere, caught once, in ``launcher.cli``. ``message`` says what and where; ``hint`` says the cure.
"""

from __future__ import annotations


class LauncherError(Exception):
    """Base of all errors that end in one clear message instead of a traceback.

    Args:
        message: what is wrong and where; several lines where several things of one kind are wrong.
        hint: what to do about it, shown on its own line after ``hint:``; empty for none.
    """

    exit_code = 70

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LauncherError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class ConfigError(UsageError):
    """A recipe file or an override is wrong."""


class HostfileError(UsageError):
    """A hostfile is missing or has lines that cannot be used."""


class PreflightError(LauncherError):
    """The nodes do not fit the run; no rank was started."""

    exit_code = 3


class UnreachableError(LauncherError):
    """At least one host could not be reached or could not start the agent; all of them are listed.

    Attributes:
        nodes: their places in the list of hosts, where several were tried together.
    """

    exit_code = 4
    nodes: tuple[int, ...] = ()


class NodeLostError(LauncherError):
    """A node stopped answering during the run."""

    exit_code = 5


class RankFailedError(LauncherError):
    """A rank ended with a failure.

    Args:
        code: the exit code of dcu-launch: the rank's own, or 128 + signal number.
    """

    def __init__(self, message: str, code: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.exit_code = code if 0 < code < 256 else 1


class ResultError(LauncherError):
    """The ranks ended well, but their result could not be brought to the head whole: it stays on the node."""

    exit_code = 1


class SmokeError(LauncherError):
    """A smoke run went through, but something of it is not as it should be."""

    exit_code = 1


class StoppedError(LauncherError):
    """The run was asked to end by a signal.

    Args:
        signal_number: 1, 2 or 15, or 10 (SIGUSR1: save and end); the exit code is 128 + that.
    """

    def __init__(self, message: str, signal_number: int, hint: str = "") -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signal_number
