"""What training scripts do beside training: save, compile, import a library that names CUDA."""

import importlib
import io
import sys

import pytest
import torch
from torch import nn

from helpers.cards.opening import open_card
from helpers.simulation.torch_functions.save_and_compile import uncompiled

CARD = open_card(kind="simulated")


def step(model, device, batch_size):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(batch_size, 64, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def plain(device, batch_size):
    step(nn.Linear(64, 64).to(device), device, batch_size)


@pytest.mark.parametrize("what", ["state_dict", "module", "both in a checkpoint"])
def test_a_checkpoint_is_not_written(tmp_path, what):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"what was trained before")

    def train(device, batch_size):
        model = nn.Linear(64, 64).to(device)
        optimizer = step(model, device, batch_size)
        torch.save({"state_dict": model.state_dict(), "module": model, "both in a checkpoint": {
            "epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict()}}[what], path)

    with pytest.warns(UserWarning, match="A simulation has no values: torch.save.* wrote nothing"):
        run = CARD.run(train, 4)
    assert run.fits and path.read_bytes() == b"what was trained before"
    assert run.peak_allocated == CARD.run(plain, 4).peak_allocated


def test_what_has_values_is_saved():
    file = io.BytesIO()
    CARD.run(lambda device, batch_size: torch.save({"losses": [1.0, 2.0]}, file), 1, expect_gradients=False)
    file.seek(0)
    assert torch.load(file) == {"losses": [1.0, 2.0]}


def written(compile_model, compile_loss):
    """A training function whose model and loss go through the two."""
    def train(device, batch_size):
        @compile_loss(dynamic=False)
        def loss_of(out):
            return out.sum()

        model = compile_model(nn.Linear(64, 64).to(device))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            loss_of(model(torch.randn(batch_size, 64, device=device))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return train


def test_nothing_is_compiled():
    expected = CARD.run(written(lambda model: model, lambda **options: lambda function: function), 4)
    compiled = CARD.run(written(lambda model: torch.compile(model), lambda **options: torch.compile(**options)), 4)
    assert compiled.timeline == expected.timeline and compiled.flops == expected.flops
    assert torch.compile is not uncompiled


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_what_was_compiled_before_runs_as_it_was_written():
    before = torch.compile(nn.Linear(64, 64))  # its own weights are put back
    run = CARD.run(lambda device, batch_size: step(before.to(device), device, batch_size), 4)
    assert run.peak_allocated == pytest.approx(CARD.run(plain, 4).peak_allocated, rel=0.01) and not run.left_behind


def test_a_library_may_name_cuda_while_it_is_imported(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "names_cuda.py").write_text("import torch\n"
                                          "def function(device=torch.device('cuda')):\n    return device\n")
    monkeypatch.syspath_prepend(folder)

    def train(device, batch_size):
        names_cuda = importlib.import_module("names_cuda")
        plain(device, batch_size)
        assert names_cuda.function().type == "cuda"

    def uses_it(device, batch_size):
        torch.ones(batch_size, device=importlib.import_module("names_cuda").function())

    def names_it(device, batch_size):
        torch.device("cuda")

    try:
        assert CARD.run(train, 4).fits
        for function in (uses_it, names_it):
            with pytest.raises(RuntimeError, match="write device, the argument of train"):
                CARD.run(function, 4)
    finally:
        sys.modules.pop("names_cuda", None)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method")
def test_a_scheduler_of_transformers_is_imported_on_first_use():
    """Its module names CUDA, and is loaded only when somebody asks for a function of it."""
    for name in [name for name in sys.modules if name.startswith("transformers.optimization")]:
        del sys.modules[name]

    def train(device, batch_size):
        import transformers
        model = nn.Linear(64, 64).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = transformers.get_cosine_schedule_with_warmup(optimizer, 10, 100)
        for _ in range(2):
            model(torch.randn(batch_size, 64, device=device)).sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    assert CARD.run(train, 4).fits
