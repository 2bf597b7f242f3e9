"""Tables of compatibility: every driver and version in them is understood; a site's file is merged over ours or refused."""

import json

import pytest

from launcher.base.errors import ConfigError
from launcher.preflight.compat import judge_driver, merge_tables, read_site_table
from launcher.preflight.version import parse_driver, read_dtk, read_numbers


def test_everything_in_the_table_is_understood():
    table = merge_tables(())
    assert len(table["dtk"]) >= 14
    for dtk, row in table["dtk"].items():
        assert read_dtk(dtk) == dtk
        assert all(parse_driver(driver) for driver in row.get("driver", {}).values())
        assert all(read_numbers(torch) for torch in row["torch"])
    assert all(parse_driver(need["driver"]) and read_dtk(need["dtk"]) for need in table["cards"].values())


@pytest.mark.parametrize(
    ("driver", "dtk", "word"),
    [
        ("6.3.16-V1.1.0a", "25.04.2", "good"), ("6.3.16-V1.1.0", "25.04.2", "old"), ("6.3.28-V1.3.0b", "25.04.2", "good"),
        ("6.3.16", "25.04.2", "unknown"), ("6.2.26-V1.5", "24.04.3", "good"), ("6.2.26-V1.7", "24.04.3", "new"),
        ("6.2.26-V1.5", "25.04", "old"), ("6.2.30-V1.7.0", "25.04", "good"), ("6.3.3-V1.8.0", "25.04", "good"),
        ("6.3.32-V1.6.0", "26.04", "good"), ("5.16.18", "23.10", "unknown"), ("garbage", "26.04", "unknown"),
        ("6.3.16-V1.1.0a", "99.99", "unknown"),
    ],
)  # fmt: skip
def test_drivers(driver, dtk, word):
    assert judge_driver(merge_tables(()), driver, dtk).word == word


def test_a_site_changes_single_values_and_adds_rows(tmp_path):
    file = tmp_path / "site.json"
    file.write_text(json.dumps({"dtk": {"25.04.2": {"driver": {"minimum": "6.3.13"}}, "25.04.4": {}},
                                "needs": [{"package": "transformers", "from": "4.50", "torch": "2.1"}]}))  # fmt: skip
    table = merge_tables([read_site_table(str(file))])
    assert judge_driver(table, "6.3.13-V1.12.0a", "25.04.2").word == "unknown"
    assert judge_driver(table, "6.3.14", "25.04.2").word == "good"
    assert table["dtk"]["25.04.2"]["driver"]["recommended"] == "rock-6.3.16-V1.1.0a"
    assert "25.04.4" in table["dtk"]
    assert len(table["needs"]) == len(merge_tables(())["needs"]) + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "JSON"),
        ('{"dtks": {}}', "dtks"),
        ('{"dtk": []}', "dtk"),
        ("[]", "the whole"),
        ("[" * 200_000, "recursion"),
        ('{"needs": [1]}', "needs[0]"),
        ('{"needs": [{"package": "transformers"}]}', "needs[0] (needs from, package, torch)"),
        ('{"dtk": {"25.04": []}}', "dtk.25.04"),
        ('{"dtk": {"99.01": {"driver": {"minimum": 6}}}}', "dtk.99.01.driver.minimum"),
        ('{"driver_series": {"6.2": 5}}', "driver_series.6.2"),
        ('{"cards": {"gfx936": [[[]]]}}', "cards.gfx936"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, said):
    file = tmp_path / "site.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_site_table(str(file))
    assert said in caught.value.message or said in caught.value.hint
