"""Every allocation of two training steps of small networks: makes tests/data/cuda_networks.json.

Needs PyTorch's CUDA build and the cuda_dispatch runner (fake CUDA tensors with CUDA's own dispatch, no GPU):

    run tests/cuda_dispatch/make_networks.py > tests/data/cuda_networks.json
"""

import json
import pathlib
import sys

import torch
from cuda_dispatch import cuda_dispatch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from helpers.simulation.session import foreach_by_default, lift_only_cpu_tensors
from tests.cuda_dispatch.allocations import Allocations
from tests.cuda_dispatch.networks import cases

torch.cuda.is_bf16_supported = lambda *args, **kwargs: True  # true of compute capability 8.6; asking needs a driver
device, operators, networks = torch.device("cuda"), [], {}
# Optimizers work on lists of tensors on a CUDA card; they do not know that fake tensors may be listed too.
with cuda_dispatch(), foreach_by_default(), lift_only_cpu_tensors():
    for name, train in cases():
        with Allocations(device) as allocations:
            try:
                train(device)
            except Exception as error:
                print(name, repr(error)[:300], file=sys.stderr)
                continue
        rows = []
        for operator, *size in allocations.rows:
            if operator not in operators:
                operators.append(operator)
            rows.append([operators.index(operator), *size])
        networks[name] = rows
lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}" for name, rows in networks.items())
print(f'{{"torch": "{torch.__version__}", "operators": {json.dumps(operators)}, "networks": {{\n{lines}\n}}}}')
