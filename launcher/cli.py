"""The command line: options and one function a verb. Loads only what the verb needs; catches every error once.

``dcu-launch [--hosts FILE] [options] [TARGET] [ARGS...]``; the first word may be a verb instead.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

from launcher import __version__
from launcher.base.errors import LauncherError

TYPE_CHECKING = False  # typing's own takes longer to import than all of this
if TYPE_CHECKING:
    from types import FrameType

    import click

#: verb -> (module, name of its click command, one line of help); loaded only when used
VERBS = {
    "run": ("launcher.commands.run", "run", "the whole pipeline (what happens without a verb)"),
    "check": ("launcher.commands.check", "check", "preflight alone: what would fail, and the cure"),
    "hosts": ("launcher.commands.hosts", "hosts", "parse and print the hostfile"),
    "env": ("launcher.commands.env", "env", "which variable goes to which host, and why"),
    "constraints": (
        "launcher.commands.constraints",
        "constraints",
        "a pip file that keeps this node's torch",
    ),
    "submit": ("launcher.commands.submit", "submit", "run as a Slurm job; survives its time limit"),
    "ps": ("launcher.commands.ps", "ps", "your runs: how far they are, or how they ended"),
    "logs": ("launcher.commands.logs", "logs", "what the ranks of a run said; -f goes on"),
    "attach": ("launcher.commands.attach", "attach", "watch a run as on its own terminal"),
    "stop": ("launcher.commands.stop", "stop", "end a run, from any process"),
    "save": ("launcher.commands.stop", "save", "have a recipe's run write a checkpoint now"),
    "init": (
        "launcher.commands.init",
        "init",
        "a starter recipe, hostfile and batch script for this cluster",
    ),
    "generate": ("launcher.commands.generate", "generate", "answer questions with what a run learnt"),
    "merge": ("launcher.commands.merge", "merge", "a run's adapter and its base as one model"),
    "estimate": ("launcher.commands.estimate", "estimate", "the memory that a card needs"),
    "report": ("launcher.commands.report", "report", "a page of a run, or of several compared"),
    "diagnose": ("launcher.commands.diagnose", "diagnose", "why the loss does not fall, and what to try"),
}


class _StoppedEarly(BaseException):
    """SIGTERM or SIGHUP before a verb has its own handling: like KeyboardInterrupt, nothing on the way may catch it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no user's mistake ends in a traceback."""
    put_back = _hear_stops()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except _StoppedEarly as stop:
        number = int(stop.args[0])
        sys.stderr.write(f"dcu-launch: error: stopped by {signal.Signals(number).name}\n")
        return 128 + number
    except LauncherError as error:
        _tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    except Exception:  # what nobody foresaw is a bug of ours, and says so
        import traceback

        sys.stderr.write(traceback.format_exc())
        sys.stderr.write("dcu-launch: internal error: this is a bug, please report it with the lines above\n")
        return 70
    finally:
        put_back()


def _hear_stops() -> Callable[[], None]:
    """Have SIGTERM and SIGHUP end this program with a word, where they are not ignored; returns what undoes it."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # schedulers send it again and again
        raise _StoppedEarly(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    # a handler of somebody's own is one of a program that calls this function
    ours = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, stop)
    except ValueError:  # not in the main thread
        ours = []

    def put_back() -> None:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)

    return put_back


def _run(words: list[str]) -> int:
    # imported here, not above: Ctrl-C at any moment after the first lines of this file ends in 130, without a traceback
    import click

    verb = words.pop(0) if words and words[0] in VERBS else "run"
    if words[:1] == ["--version"]:
        click.echo(f"dcu-launch {__version__}")
        return 0
    if words[:1] == ["--completion"]:
        from launcher.commands.completion import make_completion

        known = {name: (load_command(name), meaning) for name, (_, _, meaning) in VERBS.items()}
        click.echo(make_completion(words[1] if len(words) > 1 else "", known), nl=False)
        return 0
    try:
        code = load_command(verb).main(
            words, prog_name=f"dcu-launch {verb}".removesuffix(" run"), standalone_mode=False
        )
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130


def load_command(verb: str) -> click.Command:
    """The click command of a verb, with the end of its help page."""
    import importlib

    from launcher.commands.examples import make_epilog

    module, name, _ = VERBS[verb]
    command: click.Command = getattr(importlib.import_module(module), name)
    command.epilog = command.epilog or make_epilog(verb)
    command.context_settings.setdefault("max_content_width", 100)
    return command


def _tell(error: LauncherError) -> None:
    import click

    for number, line in enumerate(error.message.split("\n")):
        click.echo(f"dcu-launch: error: {line}" if number == 0 else f"  {line}", err=True)
    for line in error.hint.split("\n") if error.hint else ():
        click.echo(f"  hint: {line}", err=True)


if __name__ == "__main__":
    sys.exit(main())
