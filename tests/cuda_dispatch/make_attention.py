"""Kernel and allocations of many calls of attention on CUDA's dispatch: makes tests/data/cuda_attention_86.json.

Needs PyTorch's CUDA build and the cuda_dispatch runner (fake CUDA tensors with CUDA's own dispatch, no GPU), which says
that the card's compute capability is 8.6:

    run tests/cuda_dispatch/make_attention.py > tests/data/cuda_attention_86.json

tests/data/cuda_attention_kernels.json comes from the same script, once for each capability, with a runner that was
built to name that capability instead, and holds only which kernel ran:

    run tests/cuda_dispatch/make_attention.py kernels 75 80 89 90 100 120 > tests/data/cuda_attention_kernels.json
"""

import json
import os
import pathlib
import subprocess
import sys
import warnings

import torch
from cuda_dispatch import cuda_dispatch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.cuda_dispatch.attentions import kernel, run_case, settings


def calls() -> dict[str, list]:
    warnings.simplefilter("ignore")  # of kernels that a setting does not allow
    with cuda_dispatch():
        return {json.dumps(setting): run_case(torch.device("cuda"), **setting) for setting in settings()}


def print_table(rows_of: dict[str, list]) -> None:
    operators = sorted({row[0] for rows in rows_of.values() for row in rows if isinstance(row, list)})
    print(f'{{"torch": "{torch.__version__}", "operators": {json.dumps(operators)}, "calls": [')
    lines = []
    for setting, rows in rows_of.items():
        rows = [[operators.index(row[0]), *row[1:]] if isinstance(row, list) else row for row in rows]
        lines.append(f'[{setting}, {json.dumps(rows, separators=(",", ":"))}]')
    print(",\n".join(lines) + "\n]}")


if sys.argv[1:2] == ["kernels"]:
    table = {}
    for capability in sys.argv[2:]:
        # The process may abort at its very end, when PyTorch's threads look for a driver: what it printed is whole.
        answer = subprocess.run([sys.executable, __file__, "names"], capture_output=True, text=True, check=False,
                                env={**os.environ, "CUDA_CAPABILITY": capability})
        for setting, name in json.loads(answer.stdout).items():
            table.setdefault(setting, {})[capability] = name
    lines = ",\n".join(f"[{setting}, {json.dumps(names)}]" for setting, names in table.items())
    print(f'{{"torch": "{torch.__version__}", "calls": [\n{lines}\n]}}')
elif sys.argv[1:2] == ["names"]:
    print(json.dumps({setting: kernel(rows) for setting, rows in calls().items()}), flush=True)
else:
    print_table(calls())
