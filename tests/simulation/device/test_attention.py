"""Attention on the simulated device: the kernel that CUDA's dispatch chooses, and every byte that it allocates."""

import json
import pathlib

import pytest
import torch
from torch.nn import functional as F

from helpers.simulation.device.attention import SINCE_2_14
from helpers.simulation.session import register, simulation
from tests.cuda_dispatch.allocations import Allocations
from tests.cuda_dispatch.attentions import DTYPES, kernel, run_case

DATA = pathlib.Path(__file__).parents[2] / "data"
register()
DEVICE = torch.device("sim")


def changed_in_2_14(setting) -> bool:
    """The tables are 2.14's."""
    return "kv_heads" in setting or "without_batch" in setting


def test_kernels_and_allocations_are_those_of_cuda_at_8_6():
    table = json.loads((DATA / "cuda_attention_86.json").read_text())  # made by cuda_dispatch/make_attention.py
    compared = 0
    with simulation(capability=(8, 6)):
        for setting, rows in table["calls"]:
            if SINCE_2_14 or not changed_in_2_14(setting):
                expected = [[table["operators"][row[0]], *row[1:]] if isinstance(row, list) else row for row in rows]
                assert run_case(DEVICE, **setting) == expected, setting
                compared += 1
    assert compared > 400


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_kernels_are_those_of_cuda_on_other_cards(capability):
    table = json.loads((DATA / "cuda_attention_kernels.json").read_text())  # made by cuda_dispatch/make_attention.py
    compared = 0
    with simulation(capability=capability):
        for setting, names in table["calls"]:
            if not SINCE_2_14 and changed_in_2_14(json.loads(setting) if isinstance(setting, str) else setting):
                continue
            if capability in ((9, 0), (10, 0)) and setting.get("q") == 1 and setting["dtype"] != "float32":
                continue  # without a GPU, CUDA's dispatch cannot run cuDNN's kernel on a single query
            assert kernel(run_case(DEVICE, **setting)) == names["{}{}".format(*capability)], setting
            compared += 1
    assert compared > 400


def names_of(capability, dtype, **options):
    with simulation(capability=capability):
        return kernel(run_case(DEVICE, dtype, **options))


def test_rules_that_readers_ask_about():
    assert names_of((8, 6), "float16") == names_of((8, 6), "bfloat16") == "flash"
    assert names_of((8, 6), "float32") == names_of((8, 6), "float16", mask="bool [q, k]") == "efficient"
    assert names_of((8, 6), "float16", head_dim=256, dropout=0.1) == "efficient"  # training, a head above 192
    assert names_of((8, 0), "float16", head_dim=256, dropout=0.1) == "flash"
    assert names_of((7, 5), "float16") == "efficient" and names_of((7, 5), "bfloat16") == "math"  # a T4
    assert names_of((9, 0), "float16") == "cudnn"


def test_left_out_it_is_the_math_path():
    with simulation(leave_out={"attention kernels"}):
        assert all(kernel(run_case(DEVICE, dtype)) == "math" for dtype in DTYPES)
    with simulation():
        assert kernel(run_case(DEVICE, "float32")) == "efficient"


def test_multi_head_attention_runs_it():
    with simulation(), Allocations(DEVICE) as allocations:
        attention = torch.nn.MultiheadAttention(64, 4, batch_first=True).to(DEVICE)
        x = torch.randn(2, 16, 64, device=DEVICE)
        attention(x, x, x, need_weights=False)[0].sum().backward()
    assert any("efficient_attention" in operator for operator, *_ in allocations.rows)


def test_inference_without_grad_keeps_no_log_sums():
    with simulation(), torch.no_grad(), Allocations(DEVICE) as allocations:
        q = torch.randn(1, 2, 8, 64, device=DEVICE)
        F.scaled_dot_product_attention(q, q, q)
    rows = [row for row in allocations.rows if "efficient" in row[0] and row[1] == "float32"]
    assert [size for *_, size in rows] == [q.numel() * 4]
