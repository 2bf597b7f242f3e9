"""Version texts of DCU wheels, DTK, drivers and Python -> comparable records. Pure; runs on the head.

Wheels for DCU name their DTK behind the ``+``, in three generations of spelling, some of which PEP 440 refuses (two
``+``, no dot before ``git``): nothing here goes through ``packaging``. What is not understood stays None, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Numbers = tuple[int, ...]

_DAS = re.compile(r"das(\d+(?:\.\d+)*)?")
_DTK_IN_WHEEL = re.compile(r"dtk(\d{4,6})(?!\d)")
_TORCH_IN_WHEEL = re.compile(r"(?<![a-z])torch(\d{3,4}(?!\d)|\d\.\d+(?:\.\d)?(?!\d))")
_GIT = re.compile(r"(?:git|(?<=\.)g)([0-9a-f]{4,40})(?![0-9a-z])")
_TIMESTAMP = re.compile(r"(?<!\d)(20\d{6}|\d{10})(?!\d)")
_BUILD = re.compile(r"(?<=\.)(rc\d+|alpha|beta)(?=\.|$)")
_WHEEL_TAGS = re.compile(r"-((?:cp|py)\d[\w.]*)(?:-\w+)?(?:-[\w.]+?)?(?:\.whl)?$")
_DTK_TEXT = re.compile(r"(?:DTK[-_ ]?)?v?(\d{2}\.\d{2}(?:\.\d+)?)", re.IGNORECASE)
_DRIVER = re.compile(r"(?P<dotted>\d+(?:\.\d+)+)(?:[-_.]?V(?P<release>\d+(?:\.\d+)*)(?P<suffix>[a-z]?))?")


@dataclass(frozen=True, slots=True)
class WheelVersion:
    """What the version of a wheel tells.

    Attributes:
        base: the upstream version, ``2.1.0a0`` of ``2.1.0a0+git793d2b5.abi0.dtk2310``.
        das: release of the vendor's package set, where it is named (1.0 and 1.1 only); empty for a later one.
        opt: the vendor's count of optimisations.
        dtk: the DTK it was built for, ``24.04.3``.
        torch: the torch it was built for, ``2.10.0``.
        git: commit.
        timestamp: ``YYYYMMDD`` or ``YYMMDDhhmm``.
        abi: 0 or 1, of the C++ library.
        build: ``rc2`` or ``alpha``.
        python: tag of a wheel's file name, ``cp310``.
        flavor: ``dtk``, ``rocm``, ``cuda``, ``cpu``, or empty where the text does not tell.
    """

    raw: str
    base: str
    das: str | None = None
    opt: int | None = None
    dtk: str | None = None
    torch: str | None = None
    git: str | None = None
    timestamp: str | None = None
    abi: int | None = None
    build: str | None = None
    python: str | None = None
    flavor: str = ""

    @property
    def numbers(self) -> Numbers:
        """Numbers of the base version, for comparing: (2, 10, 0)."""
        return read_numbers(self.base)


def parse_wheel(text: str) -> WheelVersion:
    """Take a version, or the part of a wheel's file name behind the package, apart."""
    raw = text.strip()
    tags = _WHEEL_TAGS.search(raw)
    version = raw[: tags.start()] if tags else raw
    base, _, local = version.partition("+")
    das, opt = _DAS.search(local), re.search(r"opt(\d+)", local)
    dtk, torch = _DTK_IN_WHEEL.search(local), _TORCH_IN_WHEEL.search(local)
    git, timestamp = _GIT.search(local), _TIMESTAMP.search(local)
    abi, build = re.search(r"abi([01])", local), _BUILD.search(local)
    return WheelVersion(
        raw=raw,
        base=base,
        das=(das.group(1) or "") if das else None,
        opt=int(opt.group(1)) if opt else None,
        dtk=expand_dtk(dtk.group(1)) if dtk else None,
        torch=_expand_torch(torch.group(1)) if torch else None,
        git=git.group(1) if git else None,
        timestamp=timestamp.group(1) if timestamp else None,
        abi=int(abi.group(1)) if abi else None,
        build=build.group(1) if build else None,
        python=tags.group(1) if tags else None,
        flavor=_flavor(local),
    )


def _flavor(local: str) -> str:
    if "dtk" in local or local.startswith("das"):
        return "dtk"
    for mark, flavor in (("rocm", "rocm"), ("cu", "cuda"), ("cpu", "cpu")):
        if re.match(rf"{mark}(\d|$)", local):
            return flavor
    return ""


def expand_dtk(digits: str) -> str:
    """``24043`` -> ``24.04.3``: two digits of the year, two of the month, the rest is the patch."""
    return ".".join(part for part in (digits[:2], digits[2:4], digits[4:]) if part)


def _expand_torch(text: str) -> str:
    """``251`` -> ``2.5.1``, ``2100`` -> ``2.10.0``; ``1.13`` as it is."""
    if "." in text or len(text) < 3:
        return text
    return f"{text[0]}.{int(text[1:-1])}.{text[-1]}"


def read_dtk(text: str) -> str | None:
    """The version of a DTK's own file: ``DTK-26.04-rc4`` -> ``26.04``; None when there is none in it."""
    match = _DTK_TEXT.match(text.strip())
    return match.group(1) if match else None


def read_numbers(text: str) -> Numbers:
    """The dotted numbers at the head of a text: ``2.10.0a0`` -> (2, 10, 0)."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def compare_numbers(left: Numbers, right: Numbers) -> int:
    """-1, 0 or 1; missing numbers at the end count as 0."""
    length = max(len(left), len(right))
    a, b = left + (0,) * (length - len(left)), right + (0,) * (length - len(right))
    return (a > b) - (a < b)


def same_dtk_release(left: str, right: str) -> bool:
    """Whether two DTK versions agree in year and month."""
    return read_numbers(left)[:2] == read_numbers(right)[:2]


@dataclass(frozen=True, slots=True)
class DriverVersion:
    """A driver version: dotted number first, release behind ``V`` second.

    Attributes:
        dotted: (6, 3, 28) of ``6.3.28-V1.3.0b``.
        release: (1, 3, 0); empty when not told.
        suffix: ``b``.
    """

    raw: str
    dotted: Numbers
    release: Numbers = ()
    suffix: str = ""


def parse_driver(text: str) -> DriverVersion | None:
    """Read ``6.3.28-V1.3.0b``, also out of an installer's name; None when there is no number in it.

    Of an installer with two numbers, ``rock-5.7.1-6.2.26-V1.5.aio.run``, the last one counts: it is what the kernel
    module and hy-smi say.
    """
    found = list(_DRIVER.finditer(re.sub(r"(?<=\d)-\d+(?=-V)", "", text.strip())))
    if not found:
        return None
    match = next((each for each in found if each.group("release")), found[-1])
    return DriverVersion(
        text.strip(),
        tuple(map(int, match.group("dotted").split("."))),
        tuple(map(int, match.group("release").split("."))) if match.group("release") else (),
        match.group("suffix") or "",
    )


def compare_drivers(left: DriverVersion, right: DriverVersion) -> int | None:
    """-1, 0 or 1: dotted numbers first, so that V1.12.0a of 6.3.13 is older than V1.3.0b of 6.3.28.

    None: the dotted numbers are equal and one text has no release.
    """
    dotted = compare_numbers(left.dotted, right.dotted)
    if dotted:
        return dotted
    if bool(left.release) != bool(right.release):
        return None
    return compare_numbers(left.release, right.release) or (left.suffix > right.suffix) - (
        left.suffix < right.suffix
    )


def format_library_version(code: int) -> str:
    """``ncclGetVersion``'s number as text: 22203 -> ``2.22.3``, and 2708 -> ``2.7.8`` of before 2.9."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def format_hip_version(code: int) -> str:
    """``hipRuntimeGetVersion``'s number as text: 60326113 -> ``6.3.26113``."""
    return f"{code // 10000000}.{code % 10000000 // 100000}.{code % 100000}"


def same_hip_family(left: str, right: str) -> bool:
    """Whether two HIP versions agree in their first two numbers."""
    return read_numbers(left)[:2] == read_numbers(right)[:2]
