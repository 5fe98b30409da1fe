"""The answer of a run reads as a sentence and adds up."""

from helpers.measuring.run import ROLES, Run, TensorRecord, Timeline
from helpers.units import GiB, MiB, format_bytes


def make_run(**changes) -> Run:
    live = [TensorRecord("blocks.0", "aten.mm", (4, 4), "float32", 3 * GiB, "activations", "forward"),
            TensorRecord("head", "aten.mm", (4,), "float32", GiB, "parameters", "setup")]
    empty = Timeline([], [], {role: [] for role in ROLES}, None, 0)
    fields = {
        "card_name": "test", "is_simulated": True, "capacity": 8 * GiB, "batch_size": 2, "fits": True, "error": None,
        "peak_allocated": 4 * GiB, "peak_reserved": 5 * GiB, "timeline": empty, "live_at_peak": live, "request": None,
        "flops": 0, "seconds": None, "estimated_seconds": 0.0,
        "held_before": 0, "left_behind": 0, "without_gradient": (), "has_gradients": True,
        "driver_calls": 1, "retries": 0}
    return Run(**{**fields, **changes})


def test_roles_at_peak_sum_the_live_tensors():
    roles = make_run().roles_at_peak
    assert list(roles) == list(ROLES)
    assert roles["activations"] == 3 * GiB and roles["parameters"] == GiB and sum(roles.values()) == 4 * GiB


def test_a_run_prints_as_one_sentence():
    assert str(make_run()) == "batch 2: fits, peak 4.00 GiB allocated, 5.00 of 8.00 GiB reserved"
    request = TensorRecord("blocks.1", "aten.mm", (4,), "float32", 560 * MiB, "temporaries", "forward")
    failed = str(make_run(fits=False, request=request))
    assert "OUT OF MEMORY with 4.00 of 8.00 GiB allocated, asked for 560.00 MiB more" in failed
    assert "it caught an out-of-memory error" in str(make_run(request=request))
    assert "3.00 GiB were held before it began" in str(make_run(fits=False, held_before=3 * GiB))
    assert "before" not in str(make_run(held_before=16 * MiB))
    assert "still held" in str(make_run(left_behind=GiB))


def test_bytes_print_as_pytorch_prints_them():
    sizes = [format_bytes(size) for size in (512, 1536, 20 * MiB, int(22.5 * GiB))]
    assert sizes == ["512 bytes", "1.50 KiB", "20.00 MiB", "22.50 GiB"]
