"""A DTK that is not one: the files, programs and libraries by which a node is recognised, without any card.

Its librccl and HIP runtime are compiled and really answer ncclGetVersion and hipRuntimeGetVersion through the dynamic
loader, so version skew and the order of search paths are as on a node; what RCCL does is not there.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".work" / "test-cache" / "fakedtk"

_RCCL = """
int ncclGetVersion(int *v) { if (!v) return 4; *v = %d; return 0; }
const char *ncclGetErrorString(int r) { return r ? "unhandled cuda error" : "no error"; }
"""
_HIP = """
int hipRuntimeGetVersion(int *v) { *v = %d; return 0; }
int hipDriverGetVersion(int *v) { *v = %d; return 0; }
int hipGetDeviceCount(int *n) { *n = 0; return 100; }
"""
#: loaded before everything else, it moves the wall clock and no other
_CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    int r = syscall(SYS_clock_gettime, id, t);
    if (r == 0 && id == CLOCK_REALTIME) t->tv_sec += %d;
    return r;
}
time_t time(time_t *p) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (p) *p = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval *v, void *z) {
    struct timespec t; clock_gettime(CLOCK_REALTIME, &t); v->tv_sec = t.tv_sec; v->tv_usec = t.tv_nsec / 1000; return 0;
}
"""
_ENV = """\
# reads unset variables, as the real one does
export ROCM_PATH={root} DTKROOT={root} HIP_PATH={root}/hip HYHAL_PATH=/opt/hyhal
export LD_LIBRARY_PATH={root}/hip/lib:{root}/lib:/opt/hyhal/lib:$LD_LIBRARY_PATH
export PATH={root}/bin:/opt/hyhal/bin:$PATH
"""


def compile_library(soname: str, source: str) -> bytes:
    """A shared library of this source; compiled once."""
    name = f"{soname}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    made = CACHE / name
    if not made.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        aside = made.with_suffix(".partial")
        words = ["gcc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{soname}", "-x", "c", "-o", str(aside), "-"]
        subprocess.run(words, input=source.encode(), check=True)
        aside.replace(made)
    return made.read_bytes()


def rccl_library(code: int) -> bytes:
    """A librccl that tells this version."""
    return compile_library("librccl.so.1", _RCCL % code)


def clock_library(seconds: int) -> bytes:
    """What, preloaded, puts the wall clock forward."""
    return compile_library("libclock.so", _CLOCK % seconds)


@dataclass(frozen=True)
class FakeNode:
    """A DCU node as its files show it.

    Attributes:
        dtk: version of its DTK.
        place: the DTK's folder.
        rccl: ncclGetVersion's number.
        hip: hipRuntimeGetVersion's number.
        cards: how many the kernel and hy-smi tell of.
        used_percent: of each card's memory.
    """

    dtk: str = "25.04.2"
    place: str = "/opt/dtk"
    rccl: int = 22203
    hip: int = 60325422
    driver: str = "6.3.16-V1.1.0a"
    cards: int = 8
    model: str = "BW"
    gfx: str = "gfx936"
    memory_mib: int = 65520
    used_percent: float = 0.0
    hyhal: bool = True
    kfd: bool = True
    loaded: bool = True
    hcas: Sequence[str] = field(default=())

    def write(self, root: Path) -> None:
        """Put everything below a folder that stands for ``/``."""
        self.write_opt(root)
        self.write_system(root)

    def write_opt(self, root: Path) -> None:
        """DTK and hyhal."""
        dtk = root / self.place.lstrip("/")
        for folder in ("lib", "bin", "hip/lib", ".info"):
            (dtk / folder).mkdir(parents=True)
        (dtk / ".info" / "version").write_text(f"{self.dtk}\n")
        (dtk / "env.sh").write_text(_ENV.format(root=self.place))
        (dtk / "lib" / "librccl.so.1.0").write_bytes(rccl_library(self.rccl))
        for link in ("librccl.so.1", "librccl.so"):
            (dtk / "lib" / link).symlink_to("librccl.so.1.0")
        hip = compile_library("libgalaxyhip.so.5", _HIP % (self.hip, self.hip))
        (dtk / "hip" / "lib" / "libgalaxyhip.so.5").write_bytes(hip)
        _program(dtk / "bin" / "rocminfo", f"cat <<'END'\n{self._rocminfo()}END\n")
        if self.hyhal:
            (root / "opt/hyhal/bin").mkdir(parents=True)
            (root / "opt/hyhal/lib").mkdir()
            _program(root / "opt/hyhal/bin/hy-smi", self._smi())

    def write_system(self, root: Path) -> None:
        """What the kernel shows of driver, cards and adapters."""
        for path in (
            "sys/module",
            "sys/bus/pci/devices",
            "sys/class/kfd/kfd/topology/nodes",
            "sys/class/infiniband",
        ):
            (root / path).mkdir(parents=True)
        if self.loaded:
            (root / "sys/module/hycu").mkdir()
            (root / "sys/module/hycu/version").write_text(self.driver + "\n")
            (root / "sys/module/hycu/initstate").write_text("live\n")
        for number in range(self.cards):
            pci = root / f"sys/bus/pci/devices/0000:{number + 9:02x}:00.0"
            pci.mkdir()
            for name, text in (("vendor", "0x1d94"), ("device", "0x6320"), ("numa_node", str(number // 4))):
                (pci / name).write_text(text + "\n")
        if self.kfd and self.loaded:
            (root / "dev").mkdir(exist_ok=True)
            (root / "dev/kfd").touch()
            (root / "dev/dri").mkdir()
            (root / "dev/dri/renderD128").touch()
            self._write_topology(root / "sys/class/kfd/kfd/topology/nodes")
        for hca in self.hcas:
            port = root / "sys/class/infiniband" / hca / "ports" / "1"
            port.mkdir(parents=True)
            (port / "state").write_text("4: ACTIVE\n")
            (port / "rate").write_text("400 Gb/sec (4X NDR)\n")

    def _write_topology(self, nodes: Path) -> None:
        for number in range(self.cards + 1):
            (nodes / str(number) / "mem_banks" / "0").mkdir(parents=True)
            simd = 0 if number == 0 else 320
            target = int(self.gfx[3]) * 10000 + int(self.gfx[4], 16) * 100 + int(self.gfx[5], 16)
            lines = [
                f"simd_count {simd}",
                f"location_id {(number + 8) << 8}",
                "domain 0",
                f"gfx_target_version {target}",
            ]
            (nodes / str(number) / "properties").write_text("\n".join(lines) + "\n")
            size = self.memory_mib << 20
            (nodes / str(number) / "mem_banks" / "0" / "properties").write_text(
                f"heap_type 1\nsize_in_bytes {size}\n"
            )

    def _smi(self) -> str:
        head = "HCU     Temp     AvgPwr     Perf     PwrCap     VRAM%      HCU%      Mode"
        row = f"40.0C    90.0W      auto     400.0W     {self.used_percent:g}%         0.0%      Normal"
        table = "\n".join([head, *(f"{number}       {row}" for number in range(self.cards))])
        used = int(self.memory_mib * self.used_percent / 100)
        facts = {
            f"card{number}": {
                "Card Series": self.model,
                "PCI Bus": f"0000:{number + 9:02x}:00.0",
                "vram Total Memory (MiB)": str(self.memory_mib),
                "vram Total Used Memory (MiB)": str(used),
            }
            for number in range(self.cards)
        }
        return (
            f"case $1 in --showdriverversion) echo 'Driver Version: {self.driver}';;\n"
            "--showpids) echo 'No KFD PIDs currently running';;\n--showtopo) ;;\n"
            f"--showproductname) echo '{json.dumps(facts)}';;\n*) cat <<'END'\n{table}\nEND\n;; esac\n"
        )

    def _rocminfo(self) -> str:
        agent = "*******\nAgent {n}\n*******\n  Name:                    {gfx}\n  Marketing Name:          {model}\n"
        agent += "  Device Type:             HCU\n"
        return "".join(agent.format(n=n + 1, gfx=self.gfx, model=self.model) for n in range(self.cards))


def _program(path: Path, text: str) -> None:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
