"""The end of a rank's log -> the error that ended it. Runs on the head; pure.

Logs end with anything: warnings of a resource tracker, exceptions "ignored in" finalizers, C++ stack frames. The
error is the last traceback that can have ended the process, not the last line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.report.rank_lines import clean_line

MAX_LINES = 30
MAX_MESSAGE_LINES = 12
MAX_SUMMARY = 300

_HEADER = "Traceback (most recent call last)"
# torch writes tracebacks of ranks as "[rank3]: Traceback ...", its own log lines as "[rank3]:[W...]"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?(?!\[[A-Z])")
_CHAIN = re.compile(
    r"The above exception was the direct cause of|During handling of the above exception|Original Traceback"
)
_NOISE = re.compile(
    r"^(?:\[rank\d+\]:)?\[[WIEF][ \d]"  # c10 log lines
    r"|^[WIEF]\d{4} \d\d:\d\d"  # torch's own log lines
    r"|^\S+:\d+: \w*Warning:|^\s+warnings\.warn\("
    r"|^Exception ignored in|^Error in (?:atexit|sys\.)|^\s*frame #\d+:|^Exception raised from .* at "
    r"|^Extension modules:|ChildFailedError|error_file: <N/A>|torch\.distributed\.elastic"
    r"|traceback : To enable traceback see:|^[*=\-\s]{20,}$"
)
_IGNORED = re.compile(r"^(?:Exception ignored (?:in|while)|Error in (?:atexit|sys\.))")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b(?::|$)")
_TERMINATE = re.compile(
    r"^terminate called (?:after throwing an instance of '([\w:]+)|without an active exception)"
)
_FATAL = re.compile(r"^Fatal Python error: ")
_PLAIN = re.compile(r"^\S+: (?:error: |can't open file |No module named |Error while finding module )")
_OWN = "dcu-launch: error: "
_SOURCE = re.compile(r"\[[^\]\s]*\.(?:cc|cpp|h|hpp):\d+\] ?")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error as a rank told it.

    Attributes:
        summary: one line, ``ValueError: bad row``.
        root: the first exception of a chain with its message; the same error as ``summary`` without a chain.
        lines: the traceback, at most MAX_LINES lines.
        hint: the cure, where the rank itself told one.
    """

    summary: str
    root: str
    lines: tuple[str, ...]
    hint: str = ""

    @property
    def first_line(self) -> str:
        """The first exception of the chain without the further lines of its message."""
        return self.root.partition("\n")[0]


@dataclass(slots=True)
class _Block:
    start: int
    exception: int
    end: int
    is_last_resort: bool


def find_error(tail: str) -> ErrorText | None:
    """The error that the end of a log tells, or None when it tells of none."""
    lines = split_log(tail)
    own = _find_own(lines)
    if own:
        return own
    blocks = [block for block in _find_blocks(lines) if not _is_noise(lines[block.exception])]
    blocks = [block for block in blocks if not block.is_last_resort] or blocks
    if blocks:
        return _read_chain(lines, _last_chain(lines, blocks))
    return _find_abort(lines) or _find_bare(lines)


def last_lines(tail: str, count: int) -> list[str]:
    """The last lines of a log that say something."""
    lines = [line for line in split_log(tail) if line.strip() and not _is_noise(line)]
    return [line[:MAX_SUMMARY] for line in lines[-count:]]


def split_log(tail: str) -> list[str]:
    """Lines as a person sees them: last state of progress bars, no colours, without torch's rank prefix."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in tail.split("\n"))
    return [_RANK_PREFIX.sub("", clean_line(line, color=False)) for line in lines]


def _is_noise(line: str) -> bool:
    return _NOISE.search(line) is not None


def _find_blocks(lines: Sequence[str]) -> Iterator[_Block]:
    for start, line in enumerate(lines):
        if _HEADER not in line:
            continue
        margin = "  | " if "+ Exception Group" in line else line[: len(line) - len(line.lstrip())]
        exception = next(
            (index for index in range(start + 1, len(lines)) if _ends_frames(lines[index], margin)), None
        )
        if exception is None or _HEADER in lines[exception]:
            continue
        before = [text for text in lines[max(0, start - 3) : start] if text.strip()][-2:]
        if any(_IGNORED.search(text) for text in before):
            continue
        in_thread = bool(before) and before[-1].startswith("Exception in thread")
        yield _Block(start, exception, _end_of_message(lines, exception), in_thread)


def _ends_frames(line: str, margin: str) -> bool:
    # frames stand deeper than their header; the boxes of rich's tracebacks start with a frame character
    text = line.removeprefix(margin)
    return bool(text.strip()) and not text[0].isspace() and text[0] not in "\u2502\u256d\u2570|"


def _end_of_message(lines: Sequence[str], exception: int) -> int:
    end = exception + 1
    while end < len(lines) and end - exception < MAX_MESSAGE_LINES:
        line = lines[end]
        if not line.strip() or _is_noise(line) or _CHAIN.search(line) or _HEADER in line:
            break
        if _TERMINATE.search(line):
            break
        end += 1
    return end


def _last_chain(lines: Sequence[str], blocks: Sequence[_Block]) -> list[_Block]:
    chain = [blocks[-1]]
    for block in reversed(blocks[:-1]):
        between = lines[block.exception + 1 : chain[0].start + 1]
        if not any(_CHAIN.search(line) for line in between):
            break
        chain.insert(0, block)
    return chain


def _read_chain(lines: Sequence[str], chain: Sequence[_Block]) -> ErrorText:
    start, last = chain[-1].start, chain[-1]
    # a data worker's own traceback stands inside the message of its parent's
    if "Original" in lines[start] and len(chain) > 1:
        start, chain = chain[-2].start, chain[-1:]
    first = chain[0]
    return ErrorText(
        _summarize(lines, last.exception, last.end),
        "\n".join(line.strip(" |\t") for line in lines[first.exception : first.end]),
        _shorten(lines[start : last.end]),
    )


def _find_own(lines: Sequence[str]) -> ErrorText | None:
    """A mistake of the user's that a recipe's rank told in our own words."""
    told = [index for index, line in enumerate(lines) if line.startswith(_OWN)]
    if not told:
        return None
    start = end = told[-1]
    while start - 1 in told:
        start -= 1
    text = [line.removeprefix(_OWN) for line in lines[start : end + 1]]
    after = next(iter(lines[end + 1 : end + 2]), "").lstrip()
    hint = after.removeprefix("hint: ") if after.startswith("hint: ") else ""
    return ErrorText(text[0][:MAX_SUMMARY], text[0], _shorten(text), hint)


def _find_abort(lines: Sequence[str]) -> ErrorText | None:
    """An error below Python: C++ that gave up, or a crash as faulthandler tells it, which tells of the former too."""
    crash = _find_last(_FATAL, lines)
    stack: list[str] = []
    if crash is not None:
        end = next((index for index in range(crash + 1, len(lines)) if _is_noise(lines[index])), len(lines))
        stack = [line for line in lines[crash:end] if line.strip()]
    given_up = _find_last(_TERMINATE, lines)
    if given_up is None:
        return ErrorText(stack[0][:MAX_SUMMARY], stack[0], tuple(stack[:MAX_LINES])) if stack else None
    kind = _TERMINATE.match(lines[given_up])
    what = next((line for line in lines[given_up + 1 : given_up + 6] if "what():" in line), "")
    summary = lines[given_up]
    if kind and kind[1]:
        summary = f"{kind[1]}: {_SOURCE.sub('', what.partition('what():')[2]).strip()}".rstrip(": ")
    told = [*lines[given_up : given_up + (2 if what else 1)], *stack]
    return ErrorText(summary[:MAX_SUMMARY], summary, tuple(told[:MAX_LINES]))


def _find_last(pattern: re.Pattern[str], lines: Sequence[str]) -> int | None:
    return next((index for index in range(len(lines) - 1, -1, -1) if pattern.search(lines[index])), None)


def _find_bare(lines: Sequence[str]) -> ErrorText | None:
    """An error without a traceback: SyntaxError of the script itself, argparse, a traceback cut off above."""
    for pattern in (_EXCEPTION, _PLAIN):
        for index in range(len(lines) - 1, -1, -1):
            if pattern.search(lines[index]) and not _is_noise(lines[index]):
                end = _end_of_message(lines, index)
                context = [line for line in lines[max(0, index - 4) : end] if line.strip()]
                return ErrorText(
                    _summarize(lines, index, end), "\n".join(lines[index:end]), _shorten(context)
                )
    return None


def _summarize(lines: Sequence[str], exception: int, end: int) -> str:
    # gloo's advice to look into another worker's log is what the report does
    text = _SOURCE.sub("", lines[exception].strip(" |\t")).partition(". This is typically caused by")[0]
    if text.endswith(":") and exception + 1 < end:
        text += " " + lines[exception + 1].strip()
    return text if len(text) <= MAX_SUMMARY else text[: MAX_SUMMARY - 3] + "..."


def _shorten(lines: Sequence[str]) -> tuple[str, ...]:
    kept = [line[:1000] for line in lines if not _is_noise(line)]
    if len(kept) > MAX_LINES:
        kept = [kept[0], "  ...", *kept[len(kept) - MAX_LINES + 2 :]]
    return tuple(kept)
