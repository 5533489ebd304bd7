"""A counter whose pace depends on its GPUs: ``paced.py STEPS SAVE_EVERY {GPUS: STEPS_PER_S}``."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

steps, save_every, speeds = sys.argv[1:]
step_s = 1 / json.loads(speeds)[os.environ["HPCEXT_NUM_GPUS"]]
counter = Path(__file__).parents[1] / "faults" / "counter.py"
sys.argv = [str(counter), steps, str(step_s), save_every]
runpy.run_path(str(counter), run_name="__main__")
