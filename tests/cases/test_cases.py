"""What people ran into, as they reported it in public: each has a test that shows the right answer.

A case's tests are the functions test_<id>_... of tests/test_cases_*.py, or stand elsewhere (ELSEWHERE). Where a reader
finds it told is in the README, and tests/notebooks/test_symptom_index.py sees to that.
"""

import ast
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parents[1]
PYTORCH, FACE = "https://github.com/pytorch/pytorch/issues/", "https://github.com/huggingface/transformers/issues/"
CASES = {
    # mixed precision
    "A1": PYTORCH + "61173", "A4": FACE + "5651", "A5": "https://github.com/pytorch/examples/issues/1196",
    "A6": PYTORCH + "55585", "A7": PYTORCH + "74739",
    # checkpointing
    "C1": "https://github.com/huggingface/diffusers/issues/9850", "C2": FACE + "21381", "C4": PYTORCH + "78731",
    "C5": "https://github.com/openai/guided-diffusion/issues/167", "C6": PYTORCH + "141896",
    "C8": "https://github.com/huggingface/peft/issues/313",
    # accumulation
    "G1": "https://github.com/huggingface/transformers/pull/34191", "G4": FACE + "1563",
    "G5": "https://github.com/karpathy/nanoGPT/pull/71",
    "G6": "https://discuss.pytorch.org/t/what-is-the-running-mean-of-batchnorm-if-gradients-are-accumulated/18870/3",
    "G7": "https://github.com/huggingface/accelerate/pull/2531",
    # cache
    "E1": PYTORCH + "35901", "E2": "https://discuss.pytorch.org/t/about-torch-cuda-empty-cache/34232/2",
    "E4": "https://github.com/ipython/ipython/issues/14129", "E5": PYTORCH + "15872", "E7": FACE + "7232",
    # the model
    "F1": "https://github.com/Cadene/vqa.pytorch/issues/33", "F2": FACE + "30860",
    "F3": "https://github.com/lucidrains/x-transformers/issues/261",
    "F4": "https://github.com/NVIDIA/Megatron-LM/issues/640", "F5": PYTORCH + "97712", "F7": PYTORCH + "7415",
    # snapshots
    "S1": PYTORCH + "183842", "S2": PYTORCH + "4293",
    # tools and other machines
    "T1": PYTORCH + "37250", "T2": PYTORCH + "58466", "T4": "https://github.com/microsoft/WSL/issues/11050",
    "T5": PYTORCH + "105839",
}
ELSEWHERE = {
    "C4": "notebooks/test_claims_03.py::test_the_wrong_place_saves_nothing",
    "G5": "notebooks/test_claims_05.py::test_the_peak_is_a_set_of_gradients_above_the_micro_batch",
    "E1": "cases/test_allocator_cases.py::test_a_long_lived_small_tensor_in_the_block_of_a_large_one",
    "E2": "cases/test_allocator_cases.py::test_empty_cache_in_every_step_costs_driver_calls_and_saves_no_peak",
    "E4": "notebooks/test_claims_01.py::test_what_ipython_keeps",
    "E7": "notebooks/test_claims_06.py::test_validation_without_no_grad",
    "F2": "notebooks/test_claims_08.py::test_the_loss_needs_three_copies_of_the_logits",
    "F4": "notebooks/test_claims_01.py::test_the_second_step_fails",
    "F5": "notebooks/test_claims_00.py::test_twenty_bytes_in_the_optimizer_step",
    "F7": "notebooks/test_claims_08.py::test_a_checkpoint_on_the_card_is_a_second_model",
    "S1": "snapshots/test_reading.py::test_every_protocol",
    "S2": "snapshots/test_diagnosis.py::test_the_prepared_ones",
    "T1": "notebooks/test_claims_06.py::test_three_numbers",
}
OUT_OF_REACH = {  # what no machine without a GPU, or no single one, can show; the rest of the case is tested
    "E5": "the workspaces that cuDNN tries: no dispatcher sees them",
    "G7": "FSDP's no_sync: it needs several processes with a device each",
    "T4": "a driver that lends the computer's memory: Windows and WSL only",
    "T5": "the allocators of MPS and ROCm: the simulated card imitates CUDA",
}


def functions(path: pathlib.Path) -> dict[str, str]:
    """name: docstring, of the tests in a file."""
    return {node.name: ast.get_docstring(node) or "" for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


OWN = [(re.match(r"test_([A-Z]\d)_", name), doc) for path in TESTS.glob("cases/test_cases_*.py")
       for name, doc in functions(path).items()]


def test_every_test_of_a_case_is_named_after_it():
    assert OWN and all(match for match, _ in OWN)


def test_every_case_has_a_test():
    own = {match[1] for match, _ in OWN}
    assert own | set(ELSEWHERE) == set(CASES) and not own & set(ELSEWHERE)


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_test_elsewhere_is_there(case):
    file, _, function = ELSEWHERE[case].partition("::")
    assert function in functions(TESTS / file)


def test_what_is_tested_in_part_says_so():
    assert {match[1] for match, doc in OWN if doc.startswith("In part:")} == set(OUT_OF_REACH)
