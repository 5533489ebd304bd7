"""A real notebook, run by a real kernel."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from site_of_test import Site, wait_for

from hpcext.notebook import Pilot

JOINED = """
import threading
[each.join() for each in threading.enumerate() if each.name == "hpcext-notebook"]
"""


def test_a_notebook_shows_pilots_and_leaves_one_behind(
    here: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Each process that runs tests would import them, whether it runs this one or not.
    import nbclient
    import nbformat

    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    here.write_jobs(here.counter("a"))
    cells = [
        "from hpcext.notebook import Pilot\npilot = Pilot('jobs.toml', gpus=1)\npilot",
        "pilot.wait()",
        JOINED,
        "pilot.cancel('b')",
        f"%load_ext hpcext.notebook\nleft = Pilot(gpus=1, name='left')\n"
        f"left.submit([{sys.executable!r}, '-c', 'print(1)'], name='one')",
        "%%hpcext_jobs --gpus 1 --name magic\n[[job]]\nname = 'm'\ncommand = 'true'\n",
        "%%hpcext_jobs --gpus 1\n[[job]]\nname = 'm'\n",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    client = nbclient.NotebookClient(
        notebook, timeout=240, allow_errors=True, resources={"metadata": {"path": str(here.path)}}
    )
    client.execute()
    shown, waited, _, refused, submitted, magic, bad = (cell.outputs for cell in notebook.cells)
    # The first cell was changed while others ran.
    (only,) = shown
    assert only.output_type == "display_data"
    assert re.search(r"a +completed", only.data["text/plain"])
    assert '<td data-label="State">completed</td>' in only.data["text/html"]
    assert waited[0].data["text/plain"] == "1 job completed"
    assert "this pilot is over" in refused[0].evalue
    assert refused[0].traceback == [f"{refused[0].ename}: {refused[0].evalue}"]
    assert submitted[0].data["text/plain"] == "submitted 1 (one)"
    assert "magic" in magic[0].data["text/html"]
    assert bad[0].traceback == [
        'InputError: notebook: [[job]] 1 (m): command is missing; add command = "..."'
    ]
    # The kernel has ended, and the pilot has not.
    left = Pilot.attach("left")
    assert "managed" in left._repr_html_()
    assert left.submit("true", name="two") == "submitted 2 (two)"
    assert left.wait() == "2 jobs completed"
    left.drain()
    wait_for(lambda: "■ ended" in left._repr_html_(), "its end")
