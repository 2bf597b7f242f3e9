"""``constraints``: with its file, pip leaves an installed torch alone; left to itself, it does not.

Every torch of DTK 23.04 to 26.10 that is known by its full version is planted as metadata, beside its triton, in an
environment of its own; a folder of empty wheels plays the index, public torch included. Old and new pip, no network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pip
import pytest

from launcher.base.errors import UsageError
from launcher.commands.constraints import write_constraints
from launcher.preflight.stack import choose_stack, is_older, is_pep440, read_stacks

OLD_PIPS = Path(sys.executable).parent.parent / "old-pip"
#: the oldest pip that runs here: before Python 3.12 one of 2021, which still reads any version
OLD_PIP = "21.3.1" if sys.version_info < (3, 12) else "24.0"

#: torch, and the triton that comes with it; full versions as their wheels have them
WHEELS = [
    ("1.13.1+git55d300e.abi0.dtk2304", "2.1.0+git3841f975.abi0.dtk2304"),
    ("1.13.1+git7d2dd01.abi0.dtk2310", "2.1.0+git3841f975.abi0.dtk2310"),
    ("2.1.0a0+git793d2b5.abi0.dtk2310", "2.1.0+git3841f975.abi0.dtk2310"),
    ("2.1.0+das1.0+git00661e0.abi0.dtk2404", "2.1.0+das1.0+git3841f975.abi0.dtk2404"),
    ("2.3.0+das.opt1.dtk24042", "2.1.0+das.opt1.dtk24042"),
    ("2.1.0+das.opt2.dtk24043", "2.1.0+das.opt1.dtk24043"),
    ("2.3.0+das.opt2.dtk24043", "2.1.0+das.opt1.dtk24043"),
    ("2.4.1+das.opt2.dtk2504", "3.0.0+das.opt4.dtk2504"),
    ("2.4.1+das.opt1.dtk25041", "3.0.0+das.opt1.dtk25041"),
    ("2.5.1+das.opt1.dtk25042", "3.1.0+das.opt1.dtk25042"),
    ("2.7.1+das.opt1.dtk25042", "3.1.0+das.opt1.dtk25042"),
    ("2.7.1+das.opt1.dtk2604", "3.1.0+das.opt1.dtk2604.torch251"),
    ("2.9.0+das.opt1.dtk2604", "3.5.1+das.opt1.dtk2604.torch290"),
    ("2.10.0+das.opt1.dtk2604.20260325.g6b060a", "3.3.0+das.opt1.dtk2604.torch290"),
    ("2.11.0+das.opt1.dtk2610.2609201632.gf74cd7", "3.5.1+das.opt1.dtk2604.torch290"),
]
PUBLIC_TORCH = "2.13.0"
TORCHES = [torch for torch, _ in WHEELS]


class Environment:
    """A virtual environment that can be made empty again, and the pips that work on it."""

    def __init__(self, folder: Path, index: Path) -> None:
        venv.create(folder / "env", with_pip=False)
        self.python = folder / "env" / "bin" / "python"
        self.site = next((folder / "env" / "lib").glob("python3*/site-packages"))
        self.index = index
        # each pip alone in a folder: nothing else of this environment may be seen
        self.pips = {"old": folder / "old-pip", "new": folder / "new-pip"}
        self.pips["new"].mkdir()
        (self.pips["new"] / "pip").symlink_to(Path(pip.__file__).parent)
        with zipfile.ZipFile(OLD_PIPS / f"pip-{OLD_PIP}-py3-none-any.whl") as wheel:
            wheel.extractall(self.pips["old"])

    def clear(self) -> None:
        """Nothing is installed."""
        for path in self.site.iterdir():
            subprocess.run(["rm", "-r", str(path)], check=True)

    def plant(self, name: str, version: str) -> None:
        """Make a package look installed, as by pip."""
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        (self.site / name).mkdir()
        (self.site / name / "__init__.py").write_text(f"# the vendor's {version}\n")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "WHEEL").write_text(
            "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp310-cp310-linux_x86_64\n"
        )
        (info / "INSTALLER").write_text("pip\n")
        files = [
            f"{name}/__init__.py",
            *(f"{info.name}/{part}" for part in ("METADATA", "WHEEL", "INSTALLER", "RECORD")),
        ]
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))

    def plant_metadata(self, versions: Mapping[str, str]) -> None:
        """Make many look installed, as far as pip looks."""
        for name, version in versions.items():
            info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def files_of(self, *names: str) -> dict[str, str]:
        """Every file of these packages, with its text."""
        paths = [path for name in names for path in self.site.glob(f"{name}*/*") if path.is_file()]
        return {str(path.relative_to(self.site)): path.read_text() for path in paths}

    def pip(self, which: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a pip on it that knows no index but the folder of wheels."""
        env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(self.pips[which])}
        options = [
            "--no-index",
            "--find-links",
            str(self.index),
            "--disable-pip-version-check",
            "--no-compile",
        ]
        command = [str(self.python), "-m", "pip", *words[:1], *options, *words[1:]]
        return subprocess.run(
            command, env=env | {"PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True, timeout=120
        )

    def version(self, name: str) -> str | None:
        """The version of an installed package by its metadata folder."""
        found = [
            path.name.split("-", 1)[1].removesuffix(".dist-info")
            for path in self.site.glob(f"{name}-*.dist-info")
        ]
        assert len(found) < 2, found
        return found[0] if found else None


def _make_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> None:
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    texts = {
        f"fake_{stem}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**texts, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of all that any stack names, of the public torch and its triton; what needs torch says so, as in truth."""
    folder = tmp_path_factory.mktemp("index")
    needs = {"accelerate": ["torch>=2.0.0"], "peft": ["torch>=1.13.0", "transformers", "accelerate"]}
    pins = {
        (name, version)
        for stack in read_stacks()
        for name, version in [
            *stack.packages.items(),
            *((name, pin.version) for name, pin in stack.beside.items()),
        ]
    }
    for name, version in sorted(pins):
        _make_wheel(folder, name, version, needs.get(name, ()))
    _make_wheel(folder, "torch", PUBLIC_TORCH, ["triton"])
    _make_wheel(folder, "triton", "3.7.0")
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, index: Path) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), index)


@pytest.fixture
def environment(shared: Environment) -> Iterator[Environment]:
    yield shared
    shared.clear()


@pytest.mark.parametrize("which", ["old", "new"])
@pytest.mark.parametrize(("torch", "triton"), WHEELS, ids=TORCHES)
def test_with_the_file_torch_and_triton_stay(
    environment: Environment, tmp_path: Path, torch: str, triton: str, which: str
) -> None:
    for name, version in (("torch", torch), ("triton", triton), ("numpy", "1.24.4"), ("tqdm", "4.62.0")):
        environment.plant(name, version)
    before = environment.files_of("torch", "triton", "numpy")
    assert len(before) == 15
    stack = choose_stack(torch, sys.version_info[:2])
    assert stack is not None
    environment.plant_metadata(
        {name: pin.version for name, pin in stack.beside.items() if name not in ("numpy", "tqdm")}
    )
    file = tmp_path / "stack.txt"
    file.write_text(write_constraints(str(environment.python)))

    done = environment.pip(which, "install", "--no-deps", "-r", str(file))

    if not is_pep440(torch) and which == "new":
        # all is installed, then pip falls over the version in its closing words; the file says so, and the cure
        assert "InvalidVersion" in done.stderr
    else:
        assert done.returncode == 0, done.stdout + done.stderr
    assert environment.files_of("torch", "triton", "numpy") == before
    assert {name: environment.version(name.replace("-", "_")) for name in stack.packages} == stack.packages
    assert environment.version("tqdm") == stack.beside["tqdm"].version  # 4.62 is too old to stay


@pytest.mark.parametrize("which", ["old", "new"])
@pytest.mark.parametrize("torch", TORCHES)
def test_left_to_itself_pip_takes_the_public_torch_or_a_stack_that_refuses_the_vendors(
    environment: Environment, torch: str, which: str
) -> None:
    """The control: without it, the test above would also pass if pip never touched torch."""
    environment.plant("torch", torch)
    environment.plant("triton", "1.0")
    done = environment.pip(which, "install", "transformers", "peft", "accelerate")
    if not is_pep440(torch) and which == "new":
        assert done.returncode != 0
        assert "invalid version" in done.stderr.lower()
        return
    assert done.returncode == 0, done.stderr
    # accelerate asks for torch 2.0; what an old pip cannot read is to it older than all
    is_replaced = is_older(torch, "2.0") or not is_pep440(torch)
    assert environment.version("torch") == (PUBLIC_TORCH if is_replaced else torch)
    newest = read_stacks()[0].packages["transformers"]
    assert environment.version("transformers") == newest
    refused = is_older(torch, "2.6")
    assert refused == (choose_stack(torch, (3, 11)) is not read_stacks()[0])


def test_the_file_in_full(environment: Environment) -> None:
    for name, version in {
        "torch": "2.4.1+das.opt2.dtk2504",
        "deepspeed": "0.14.2+das.opt2.dtk2504",
        "lightop": "0.4+das.dtk2504",
        "something_new": "1.0+das.opt1.dtk2504",
        "numpy": "1.24.4",
        "tqdm": "4.67.0",
        "requests": "2.0",
    }.items():
        environment.plant(name, version)
    lines = write_constraints(str(environment.python)).splitlines()
    assert f"{environment.python} -m pip install --no-deps -r" in lines[1]
    sections = "\n".join(lines).split("\n\n")
    assert sections[1].splitlines()[1:] == [
        "deepspeed==0.14.2+das.opt2.dtk2504",
        "lightop==0.4+das.dtk2504",
        "numpy==1.24.4",
        "something-new==1.0+das.opt1.dtk2504",
        "torch==2.4.1+das.opt2.dtk2504",
    ]
    assert "trained with torch 2.4.1" in sections[2]
    assert "transformers==5.13.1" in sections[2].splitlines()
    assert sections[3].splitlines()[1:] == ["tqdm==4.67.0"]
    assert "pyarrow==25.0.1" in sections[4].splitlines()
    assert not [line for line in lines if line.startswith(("numpy==1.26", "requests"))]


@pytest.mark.parametrize("which", ["old", "new"])
def test_versions_that_pip_cannot_read_are_no_pins_and_have_a_cure(
    environment: Environment, tmp_path: Path, which: str
) -> None:
    environment.plant("torch", "2.1.0+das1.0+git00661e0.abi0.dtk2404")
    environment.plant("triton", "2.1.0+das1.0+git3841f975.abi0.dtk2404")
    lines = write_constraints(str(environment.python)).splitlines()
    assert not [line for line in lines if line.startswith(("torch", "triton"))]
    cure = [line.removeprefix("#") for line in lines if line.startswith("#   ")]
    assert len(cure) == 4

    subprocess.run(["bash", "-euc", "\n".join(cure)], check=True)

    file = tmp_path / "stack.txt"
    file.write_text(write_constraints(str(environment.python)))
    assert {
        "torch==2.1.0+das1.0.git00661e0.abi0.dtk2404",
        "triton==2.1.0+das1.0.git3841f975.abi0.dtk2404",
    } <= set(file.read_text().splitlines())
    before = environment.files_of("torch", "triton")
    done = environment.pip(which, "install", "--no-deps", "-r", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert environment.files_of("torch", "triton") == before


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        (None, "has no torch"),
        ("1.10.0a0+git2040069.dtk2210", "has torch 1.10.0a0.*no training stack is known"),
    ],
)
def test_where_there_is_no_stack_it_says_so(
    environment: Environment, torch: str | None, message: str
) -> None:
    if torch:
        environment.plant("torch", torch)
    with pytest.raises(UsageError, match=message):
        write_constraints(str(environment.python))


def test_an_interpreter_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"--python /no/such/python: .*No such file"):
        write_constraints("/no/such/python")
    with pytest.raises(UsageError, match=r"--python /bin/false: exit 1"):
        write_constraints("/bin/false")
