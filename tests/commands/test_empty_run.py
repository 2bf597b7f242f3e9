"""An empty RUN, as of a variable that is not set, is no run: least of all the one that happens to go on."""

import pytest

from launcher.base.errors import UsageError
from launcher.cli import main
from launcher.commands.find_run import find_run
from launcher.train.source import find_source


@pytest.mark.parametrize("verb", ["stop", "save", "attach", "logs", "report", "diagnose"])
def test_verbs_refuse_it(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main([verb, ""]) == 2
    assert "RUN is empty" in capsys.readouterr().err


def test_it_names_nothing_to_load_either():
    with pytest.raises(UsageError, match="is empty"):
        find_source("")
    with pytest.raises(UsageError, match="RUN is empty"):
        find_run(" ", alive=True)
