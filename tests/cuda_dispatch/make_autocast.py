"""Dtypes and allocations of every operator on CUDA's autocast lists: makes tests/data/cuda_autocast.json.

Needs PyTorch's CUDA build and the cuda_dispatch runner (fake CUDA tensors with CUDA's own dispatch, no GPU):

    run tests/cuda_dispatch/make_autocast.py > tests/data/cuda_autocast.json
"""

import json
import pathlib
import sys

import torch
from cuda_dispatch import cuda_dispatch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.cuda_dispatch.operators import cases, run_case

torch.cuda.is_bf16_supported = lambda *args, **kwargs: True  # true of compute capability 8.6; asking needs a driver
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
table = {}
with cuda_dispatch():
    for name, group, case in cases():
        for dtype_name, dtype in HALF.items():
            for input_name, input_dtype in ((dtype_name, dtype), ("float32", torch.float32)):
                table[f"{group}: {name}, {dtype_name}, from {input_name}"] = run_case(
                    case, torch.device("cuda"), dtype, input_dtype)
lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
print(f'{{"torch": "{torch.__version__}", "cases": {{\n{lines}\n}}}}')
