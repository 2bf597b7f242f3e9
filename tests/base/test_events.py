"""Event: one JSON object a line, whatever the numbers are."""

import json

from launcher.base.events import EVENT_VERSION, Event


def test_an_event_is_one_line_with_what_is_known():
    line = Event("note", 1.5, "run", 0, "node01", None, 3, {"message": "两行\nhere"}).to_json()
    assert "\n" not in line
    assert json.loads(line) == {
        "kind": "note", "time": 1.5, "run": "run", "attempt": 0, "host": "node01", "step": 3,
        "data": {"message": "两行\nhere"}, "version": EVENT_VERSION,
    }  # fmt: skip


def test_numbers_that_json_has_not_are_spelled_out():
    data = {"loss": float("nan"), "norms": [1.0, float("inf")], "deep": {"x": float("-inf")}}
    read = json.loads(Event("metric", 0.0, data=data).to_json(), parse_constant=lambda word: 1 / 0)
    assert read["data"] == {"loss": "nan", "norms": [1.0, "inf"], "deep": {"x": "-inf"}}
