"""What a script has done before PyTorch was there, and whether it may be there when it begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcext import protocol

ROOT = str(Path(__file__).parents[2])
SAYS = "import json\nfrom hpcext.training import imported\nprint(json.dumps(imported.beforehand()))"
SESSION = "from hpcext.training.torch import Session\n"


def said(tmp_path: Path, text: str, **environ: str) -> dict[str, Any]:
    """What is found by a script."""
    script = tmp_path / "train.py"
    script.write_text(f"{text}\n{SAYS}\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": ROOT, **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


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
    found = said(tmp_path, text, **more)
    assert found["modules"] == ["torch", "hpcext.training.torch"]
    assert found["environ"] == {}
    assert "torch" in found["compiled"]


def test_without_a_session_it_is_pytorch_alone(tmp_path: Path) -> None:
    assert said(tmp_path, "import torch")["modules"] == ["torch"]


IN_PLACE_OF = "import sys, types\nsys.modules['hpcext.training.{0}'] = types.ModuleType('{0}')\n"
"""A session of which only the name matters."""


@pytest.mark.parametrize(
    ("sessions", "framework"),
    [
        (["tensorflow"], "tensorflow"),
        (["jax"], "jax"),
        # Keras has imported the other one, and may be on any of them.
        (["tensorflow", "keras"], "keras"),
        (["torch", "keras"], "keras"),
    ],
)
def test_of_other_frameworks_it_is_that_of_the_session(
    tmp_path: Path, sessions: list[str], framework: str
) -> None:
    text = "".join(f"import {name}\n{IN_PLACE_OF.format(name)}" for name in sessions)
    for name in sessions:
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(
            "import os\nos.environ['SET_BY_IMPORT'] = '1'\n"
        )
    found = said(tmp_path, text, PYTHONPATH=f"{tmp_path / 'packages'}{os.pathsep}{ROOT}")
    assert found == {
        "modules": [framework, f"hpcext.training.{framework}"],
        "environ": {"SET_BY_IMPORT": protocol.digest("1")},
        "compiled": [],
    }


def test_what_a_script_does_first_is_said(tmp_path: Path) -> None:
    """The process that imports the framework does not explain it."""
    before = "import os, msgspec\nos.environ['OMP_NUM_THREADS'] = '7'\ndel os.environ['HOME']\n"
    found = said(tmp_path, f"{before}import torch")
    # Whoever reads a report learns no value: it may be a secret.
    assert found["environ"] == {"HOME": None, "OMP_NUM_THREADS": protocol.digest("7")}
    assert "msgspec" in found["compiled"]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "text",
    [
        "",
        # Another module of a name that PyTorch itself imports.
        f"import tqdm\n{SESSION}",
        f"import typing_extensions\n{SESSION}",
        # Another PyTorch.
        "import sys\nsys.path.insert(0, 'elsewhere')\nimport torch",
    ],
    ids=["none", "hidden", "hidden file", "another"],
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
    assert said(tmp_path, text) == {}
