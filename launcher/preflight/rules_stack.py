"""Rules on the ranks' Python and its packages: there, new enough, and of one set. Pure; runs on the head."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.preflight.codes import WARNING
from launcher.preflight.compat import merge_tables
from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport
from launcher.preflight.stack import is_older
from launcher.preflight.version import (
    compare_numbers,
    parse_wheel,
    read_dtk,
    read_numbers,
    same_dtk_release,
    same_hip_family,
)

#: ranks of recipes import launcher.train, which is written for this
OLDEST_RANK_PYTHON = (3, 10)
RECIPE_STACK = ("torch", "transformers", "peft", "accelerate", "datasets", "safetensors")
#: built against one torch, so that another one leaves undefined symbols
EXTENSIONS = (
    "torchvision",
    "torchaudio",
    "flash_attn",
    "xformers",
    "triton",
    "transformer_engine",
    "apex",
    "deepspeed",
)


def python_usable(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Each node has the interpreter that its ranks need."""
    found = []
    for report in reports:
        if report.python is None and report.python_error:
            found.append(make_finding("PYTHON_MISSING", report.host, f"{report.host}: {report.python_error}"))
        elif (
            (wanted.recipe or wanted.is_open)
            and report.python_version
            and read_numbers(report.python_version)[:2] < OLDEST_RANK_PYTHON
        ):
            text = f"{report.host}: {report.python} is Python {report.python_version}, recipes need 3.10"
            level = WARNING if wanted.is_open else ""
            found.append(make_finding("PYTHON_TOO_OLD", report.host, text, level=level))
    return found


def python_of_wheel(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """torch was built for this Python: a folder that nodes share may be read by another one."""
    found = []
    for report in reports:
        tags = {tag.split("-")[0] for tag in report.wheel_tags}
        if not tags or not report.python_version or any(tag.startswith("py") for tag in tags):
            continue
        own = "cp" + "".join(map(str, read_numbers(report.python_version)[:2]))
        if own not in tags:
            text = f"{report.host}: torch is a wheel for {', '.join(sorted(tags))}, {report.python} is {own}"
            found.append(make_finding("PYTHON_TAG_MISMATCH", report.host, text))
    return found


def stack_installed(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A recipe's ranks find the training stack."""
    if not wanted.recipe and not wanted.is_open:
        return []
    level, suffix = (WARNING, ": recipes cannot run there") if wanted.is_open else ("", "")
    found = []
    for report in reports:
        lacking = [name for name in RECIPE_STACK if name not in report.packages]
        if report.python is not None and lacking:
            text = f"{report.host}: {report.python} lacks {', '.join(lacking)}{suffix}"
            found.append(make_finding("STACK_MISSING", report.host, text, level=level))
    return found


def torch_of_dtk(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """torch is the vendor's wheel, for the DTK that is set up."""
    found = []
    for report in reports:
        text = report.packages.get("torch") or report.torch.version
        if not report.is_dcu or text is None:
            continue
        torch, dtk = parse_wheel(text), read_dtk(report.dtk.version or "")
        if torch.flavor == "rocm":
            message = f"{report.host}: torch {text} is a wheel for upstream ROCm, which a DTK cannot load"
            found.append(make_finding("ROCM_WHEEL_ON_DCU", report.host, message))
        elif torch.flavor in ("cuda", "cpu"):
            message = f"{report.host}: torch {text} is a {torch.flavor.upper()} build on a DCU node"
            found.append(make_finding("TORCH_NOT_HIP_BUILD", report.host, message))
        elif report.torch.file_known and report.torch.hip is None and torch.dtk is None:
            kind = f"CUDA {report.torch.cuda}" if report.torch.cuda else "CPU"
            message = f"{report.host}: torch {text} is a {kind} build on a DCU node"
            found.append(make_finding("TORCH_NOT_HIP_BUILD", report.host, message))
        elif torch.dtk and dtk and torch.dtk != dtk:
            near = same_dtk_release(torch.dtk, dtk)
            message = f"{report.host}: torch {text} is for DTK {torch.dtk}, {report.dtk.root} is DTK {dtk}"
            level = "warning" if near else "error"
            found.append(make_finding("TORCH_FOR_OTHER_DTK", report.host, message, level=level))
        else:
            found += _hip_family(report)
    return found


def _hip_family(report: NodeReport) -> list[Finding]:
    runtime = report.libraries.get("hip")
    if runtime is None or runtime.version is None or report.torch.hip is None:
        return []
    if same_hip_family(runtime.version, report.torch.hip):
        return []
    text = (
        f"{report.host}: torch was built with HIP {report.torch.hip}, {runtime.path} is HIP {runtime.version}"
    )
    return [make_finding("HIP_FAMILY_DIFFERS", report.host, text)]


def wheels_of_one_set(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Wheels name one DTK and this torch; triton is the vendor's."""
    found = []
    for report in reports:
        torch = parse_wheel(report.packages.get("torch", ""))
        if not report.is_dcu or torch.dtk is None:
            continue
        wheels = {name: parse_wheel(report.packages[name]) for name in EXTENSIONS if name in report.packages}
        mixed = [
            f"{name} {wheel.raw}" for name, wheel in wheels.items() if wheel.dtk and wheel.dtk != torch.dtk
        ]
        other = [
            f"{name} {wheel.raw}"
            for name, wheel in wheels.items()
            if wheel.torch and compare_numbers(read_numbers(wheel.torch)[:2], torch.numbers[:2])
        ]
        if mixed:
            text = f"{report.host}: torch is for DTK {torch.dtk}, but there is {', '.join(mixed)}"
            found.append(make_finding("WHEELS_OF_MIXED_DTK", report.host, text))
        if other:
            text = f"{report.host}: torch is {torch.base}, but there is {', '.join(other)}"
            found.append(make_finding("WHEEL_FOR_OTHER_TORCH", report.host, text))
        if "triton" in wheels and wheels["triton"].flavor != "dtk":
            text = f"{report.host}: triton {wheels['triton'].raw} is not the vendor's"
            found.append(make_finding("TRITON_NOT_OF_DTK", report.host, text))
        if read_numbers(report.packages.get("numpy", ""))[:1] >= (2,):
            text = f"{report.host}: numpy {report.packages['numpy']}; the vendor's wheels are built against NumPy 1"
            found.append(make_finding("NUMPY_TOO_NEW", report.host, text))
    return found


def packages_accept_torch(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """No package refuses the torch that is there; transformers does it without a word."""
    found = []
    for report in reports:
        torch = parse_wheel(report.packages.get("torch", ""))
        for row in merge_tables(wanted.compat)["needs"]:
            version = report.packages.get(row["package"])
            if version is None or not torch.numbers or row["package"] != "transformers":
                continue
            new = compare_numbers(read_numbers(version), read_numbers(row["from"])) >= 0
            if new and is_older(torch.base, row["torch"]):
                text = f"{report.host}: transformers {version} needs torch {row['torch']}, here is {torch.raw}: {row['why']}"
                found.append(make_finding("TRANSFORMERS_REFUSES_TORCH", report.host, text))
                break
    return found
