"""What a script has done before PyTorch was there, and whether it may be there when it begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = "from hpcext.training import imported\nprint(*imported.beforehand())"
SESSION = "from hpcext.training.torch import Session\n"


def said(tmp_path: Path, text: str, **environ: str) -> list[str]:
    """What is found by a script."""
    script = tmp_path / "train.py"
    script.write_text(f"{text}\n{SAYS}\n")
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": root, **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "text",
    [
        SESSION,
        f"import numpy, json, own\n{SESSION}",
        # Python sets a variable itself where there is no locale.
        pytest.param(SESSION, id="no locale"),
    ],
)
def test_an_ordinary_script_finds_it_as_it_would_import_it(
    tmp_path: Path, text: str, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "own.py").write_text("import torch\n")
    more = {}
    if request.node.callspec.id == "no locale":
        more = {"LC_ALL": "", "LANG": "", "LC_CTYPE": ""}
    assert said(tmp_path, text, **more) == ["torch", "hpcext.training.torch"]


def test_without_a_session_it_is_pytorch_alone(tmp_path: Path) -> None:
    assert said(tmp_path, "import torch") == ["torch"]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os\nos.environ['OMP_NUM_THREADS'] = '7'\nimport torch",
        "import os\ndel os.environ['HOME']\nimport torch",
        # A library that was loaded first.
        "import msgspec\nimport torch",
        # Another module of a name that PyTorch itself imports.
        f"import tqdm\n{SESSION}",
        f"import typing_extensions\n{SESSION}",
        # Another PyTorch.
        "import sys\nsys.path.insert(0, 'elsewhere')\nimport torch",
    ],
    ids=["none", "set", "removed", "compiled", "hidden", "hidden file", "another"],
)
def test_what_could_make_a_difference_is_a_reason_not_to(
    tmp_path: Path, text: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.callspec.id == "hidden":
        (tmp_path / "tqdm.py").write_text("def tqdm(*_): pass\ntrange = auto = tqdm\n")
    if request.node.callspec.id == "hidden file":
        from_there = "import importlib.util, sysconfig; place = sysconfig.get_paths()['purelib']\n"
        (tmp_path / "typing_extensions.py").write_text(
            f"{from_there}exec(open(f'{{place}}/typing_extensions.py').read())\n"
        )
    (tmp_path / "elsewhere" / "torch").mkdir(parents=True)
    (tmp_path / "elsewhere" / "torch" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert said(tmp_path, text) == []
