"""The page in a real browser: pictures in light, dark and Chinese, of three runs compared, and its script at work.

The pictures are kept in .work/pictures, for people to look at.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.report.page.build import build_page
from launcher.report.run_record import read_records
from tests.report.folders import EVIL, event, make_events, make_folder, make_lines, make_losses, make_metrics

pytestmark = pytest.mark.soak

PICTURES = Path(__file__).resolve().parents[3] / ".work" / "pictures"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,2600",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"
VALIDATION = (0xD9, 0x54, 0x1E)
LIGHT_BACK, DARK_BACK = (0xF6, 0xF7, 0xF9), (0x10, 0x14, 0x18)

Browse = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Opens a page; returns what the browser wrote."""

    def run(page: Path, *flags: str) -> str:
        words = ["chromium", *FLAGS, f"--user-data-dir={tmp_path}/profile", *flags, page.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "Refused to" not in done.stderr
        return done.stdout

    return run


def write(folder: Path, name: str, *runs: Path, language: str = "en") -> Path:
    path = folder / f"{name}.html"
    path.write_text(build_page(read_records(runs), language), encoding="utf-8")
    return path


def whole_run(folder: Path, **changes: Any) -> Path:
    """A run with all that a page can show."""
    samples = [
        {"step": step, "prompt": prompt, "answer": f"{answer} ({step})"}
        for step in (0, 20, 40)
        for prompt, answer in (
            ("What is a DCU?", "A card."),
            ("\u4e2d\u56fd\u7684\u9996\u90fd\uff1f", "\u5317\u4eac\u3002"),
        )
    ]
    files = {"samples.jsonl": make_lines(samples), **changes.pop("files", {})}
    metrics = make_metrics(make_losses(400, noise=0.12), evals={20: 1.6, 200: 1.4, 400: 1.35}, **changes)
    return make_folder(folder, metrics, files=files, train={"max_steps": 400})


def take(browse: Browse, page: Path, *flags: str) -> Any:
    """A picture as an array [height, width, 4] of 0 to 255."""
    from matplotlib.image import imread

    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{page.stem}.png"
    path.unlink(missing_ok=True)
    browse(page, f"--screenshot={path}", *flags)
    return (imread(path) * 255).round().astype(int)


def count_colors(picture: Any) -> int:
    return len({tuple(pixel) for row in picture[::5] for pixel in row[::5]})


def test_pictures_in_light_dark_and_chinese(tmp_path: Path, browse: Browse) -> None:
    run = whole_run(tmp_path / "lora-7b")
    for name, flags, back, language in (
        ("light", (), LIGHT_BACK, "en"),
        ("dark", (DARK,), DARK_BACK, "en"),
        ("chinese", (), LIGHT_BACK, "zh"),
    ):
        picture = take(browse, write(tmp_path, name, run, language=language), *flags)
        assert picture.shape[:2] == (2600, 1200)
        assert tuple(picture[5, 5][:3]) == back
        assert count_colors(picture) > 40


def test_pictures_of_three_runs_and_of_a_failure(tmp_path: Path, browse: Browse) -> None:
    runs = []
    for rate, end in ((1e-5, 1.6), (2e-4, 1.2), (1e-3, 1.4)):
        rows = make_metrics(make_losses(200, end=end, noise=0.08), evals={100: end + 0.3, 200: end})
        runs.append(
            make_folder(tmp_path / f"rate-{rate}", rows, train={"learning_rate": rate, "max_steps": 200})
        )
    assert count_colors(take(browse, write(tmp_path, "compared", *runs))) > 40
    message = f"rank 3 on node02 failed: RuntimeError: HIP error: illegal memory access (exit code 1)\n{EVIL}"
    events = [*make_events()[:-5], event("rank_exit", 61, host="node02", rank=3, data={"status": 1})]
    files = {
        "summary.json": json.dumps({"exit": 1, "kind": "rank_failed", "message": message}),
        "events.jsonl": make_lines(events),
    }
    failed = whole_run(tmp_path / "failed", files=files, facts={"bytes_per_token": 1.02})
    assert count_colors(take(browse, write(tmp_path, "failed", failed))) > 40
    narrow = take(browse, write(tmp_path, "narrow", failed), "--window-size=420,2600")
    assert count_colors(narrow) > 40
    orange = (abs(narrow[:, :, :3] - VALIDATION).max(axis=2) < 8).any(axis=0).nonzero()[0]
    assert 380 < orange.max() < 410  # its last point: the whole curve is seen without scrolling


def test_the_button_and_the_pointer_work_and_nothing_else_runs(tmp_path: Path, browse: Browse) -> None:
    sample = {"step": 1, "prompt": EVIL, "answer": "<img src=x onerror=document.title='hacked'>"}
    page = write(tmp_path, "page", whole_run(tmp_path / "a", files={"samples.jsonl": make_lines([sample])}))
    act = """<script>
    document.getElementById("theme").click();
    const svg = document.querySelector("figure.chart svg"), box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 50}));
    </script>"""
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", act + "</body>"), encoding="utf-8")
    found = browse(page, "--dump-dom", "--virtual-time-budget=2000")
    assert 'data-theme="dark"' in found
    tip = re.search(r'<div class="tip"[^>]*>(.*?)</div></div>', found)
    assert tip
    assert re.search(r"<b>189</b>", tip[1])
    assert "training, smoothed" in tip[1]
    assert "<title>Run a</title>" in found
