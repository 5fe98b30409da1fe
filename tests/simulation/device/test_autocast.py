"""Autocast on the simulated device: CUDA's lists operator by operator, small networks, and the cache of weights."""

import json
import pathlib

import pytest
import torch

from helpers.simulation.device import autocast
from helpers.simulation.session import register, simulation
from tests.cuda_dispatch import networks, operators
from tests.cuda_dispatch.allocations import Allocations

DATA = pathlib.Path(__file__).parents[2] / "data"
register()
DEVICE = torch.device("sim")
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# The same sizes under another name: cuDNN's kernel is CUDA's alone.
SAME_KERNEL = {"aten.cudnn_batch_norm.default": "aten.native_batch_norm.default",
               "aten.cudnn_batch_norm_backward.default": "aten.native_batch_norm_backward.default"}
# CUDA's dispatch cannot run these without a GPU: gru_cell starts a kernel, the fused cells have no shape rules.
NOT_COMPARED = ("gru_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell")


def same_names(rows):
    return [[SAME_KERNEL.get(operator, operator), *size] for operator, *size in rows]


@pytest.fixture(scope="module")
def operator_table():
    return json.loads((DATA / "cuda_autocast.json").read_text())["cases"]  # made by cuda_dispatch/make_autocast.py


@pytest.fixture(scope="module")
def network_table():
    table = json.loads((DATA / "cuda_networks.json").read_text())  # made by cuda_dispatch/make_networks.py
    return {name: [[table["operators"][operator], *size] for operator, *size in rows]
            for name, rows in table["networks"].items()}


@pytest.mark.parametrize(("name", "group", "case"), list(operators.cases()),
                         ids=lambda x: x if isinstance(x, str) else "")
def test_every_operator_casts_and_allocates_as_on_cuda(operator_table, name, group, case):
    if name.startswith("_convolution") and torch.__version__ < "2.13":
        pytest.skip("called by its own name, an operator that FakeTensors before 2.13 do not run")
    with simulation():
        for half, dtype in HALF.items():
            for input_name, input_dtype in ((half, dtype), ("float32", torch.float32)):
                expected = operator_table[f"{group}: {name}, {half}, from {input_name}"]
                if name in NOT_COMPARED:
                    assert "error" in expected
                    continue
                row = operators.run_case(case, DEVICE, dtype, input_dtype)
                assert row.get("dtypes") == expected.get("dtypes")
                assert row.get("error") == expected.get("error")
                assert same_names(row.get("allocations", [])) == same_names(expected.get("allocations", []))


def test_the_cases_cover_every_list():
    covered = {name.split(",")[0].split(" ")[0] for name, *_ in operators.cases()}
    listed = {*autocast.LOWER_PRECISION, *autocast.FLOAT32, *autocast.FLOAT32_OUTPUT, *autocast.PROMOTE}
    assert not {name for name in listed if name not in covered and name.split(".")[0] not in covered}


@pytest.mark.parametrize(("name", "train"), list(networks.cases()), ids=lambda x: x if isinstance(x, str) else "")
def test_two_steps_of_a_network_allocate_what_cuda_does(network_table, name, train):
    with simulation(), Allocations(DEVICE) as allocations:
        train(DEVICE)
    if name.startswith("SGD fused"):  # CUDA's dispatch cannot run it without a GPU
        assert name not in network_table and allocations.rows
    else:
        assert same_names(allocations.rows) == same_names(network_table[name])


def linear():
    return torch.nn.Linear(8, 8).to(DEVICE), torch.randn(2, 8, device=DEVICE)


def casts(function) -> int:
    with Allocations(DEVICE) as allocations:
        function()
    return sum(operator == "aten._to_copy.default" for operator, *_ in allocations.rows)


def test_a_weight_is_cast_once_until_the_outermost_autocast_ends():
    with simulation():
        layer, x = linear()
        with torch.autocast("sim", dtype=torch.float16):
            x = x.half()
            assert casts(lambda: layer(x)) == 2  # weight and bias
            with torch.autocast("sim", dtype=torch.float16):
                assert casts(lambda: layer(x)) == 0
            assert casts(lambda: layer(x)) == 0
            with torch.autocast("sim", dtype=torch.bfloat16):
                assert casts(lambda: layer(x)) == 1  # the cache holds float16 weights, and CUDA's would give them, too
            with torch.autocast("sim", enabled=False):
                assert layer.half()(x).dtype == torch.float16
        layer, x = linear()
        with torch.autocast("sim", dtype=torch.float16, cache_enabled=False):
            assert casts(lambda: layer(x)) == casts(lambda: layer(x)) == 3
        assert not autocast._cast_weights


def test_the_cache_ends_with_autocast_also_after_an_error():
    with simulation():
        layer, x = linear()
        with pytest.raises(KeyError), torch.autocast("sim", dtype=torch.float16):
            layer(x)
            assert len(autocast._cast_weights) == 2
            raise KeyError
        assert not autocast._cast_weights
        assert layer(x).dtype == torch.float32
    clear = torch.clear_autocast_cache
    with pytest.raises(KeyError), simulation():
        layer, x = linear()
        torch.autocast("sim", dtype=torch.float16).__enter__()
        layer(x)
        raise KeyError
    torch.set_autocast_enabled("sim", False)
    torch.autocast_decrement_nesting()
    assert not autocast._cast_weights and torch.clear_autocast_cache is clear


def test_custom_functions_and_enabled_false_are_respected():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="sim", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="sim")
        def backward(ctx, grad):
            return grad * 2

    with simulation():
        layer, x = linear()
        with torch.autocast("sim", dtype=torch.float16):
            out = layer(x)
            assert out.dtype == torch.float16 and Double.apply(out).dtype == torch.float32
            with torch.autocast("sim", enabled=False):
                assert layer(x).dtype == torch.float32
        Double.apply(out).sum().backward()
        assert layer.weight.grad.dtype == torch.float32


def test_the_cpu_lists_differ_where_pytorch_says():
    def dtypes(leave_out):
        with simulation(leave_out=leave_out), torch.autocast("sim", dtype=torch.bfloat16):
            x = torch.randn(4, 4, device=DEVICE, dtype=torch.bfloat16)
            out = (x.softmax(-1), torch.nn.functional.layer_norm(x, [4]), x.exp(), x.rsqrt(), x.pow(2), x.sum(),
                   torch.nn.functional.mse_loss(x, x), torch.mm(x.float(), x.float()))
            return [y.dtype for y in out]

    wide, half = torch.float32, torch.bfloat16
    assert dtypes(()) == [wide] * 7 + [half]
    assert dtypes({"autocast lists"}) == [half] * 6 + [wide, half]
