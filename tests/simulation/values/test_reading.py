"""What a simulation says about values, and the one sentence where it cannot."""

import math

import pytest
import torch

from helpers.simulation.session import register, simulation
from helpers.simulation.values.reading import DataDependentError, Unknown

register()
DEVICE = torch.device("sim")


@pytest.fixture
def device():
    with simulation():
        yield DEVICE


def test_a_loss_prints_as_nan_and_counts_on(device):
    loss = torch.randn(4, device=device).mean()
    value = loss.item()
    assert isinstance(value, float) and math.isnan(value)
    assert f"{value:.4f} {value} {loss:.3f} {float(loss)}" == "nan nan nan nan"
    total = 0.0
    for _ in range(3):
        total += value
    assert str(round(total / 3, 2)) == "nan" and isinstance(2 * total - 1, Unknown)
    assert "nan" in f"{loss}" and "device='sim:0'" in str(loss)
    assert "size=(2, 3)" in repr(torch.zeros(2, 3, device=device))
    assert f"{torch.tensor([3], device='cpu').to(device).sum().item():d}" == "nan"


def clipped(x):
    x.requires_grad_().grad = torch.randn_like(x)
    return torch.nn.utils.clip_grad_norm_([x], 1.0) > 3


QUESTIONS = {
    "comparing": lambda x: x.sum().item() > 0, "truth": lambda x: bool(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 2, "min": lambda x: min(1.0, x.sum().item()),
    "int": lambda x: int(x.sum()), "int of item": lambda x: int(x.sum().item()),
    "range": lambda x: range(x.sum().long().item()), "tolist": lambda x: x.tolist()[0] > 0,
    "numpy": lambda x: x.cpu().numpy(), "asarray": lambda x: x.detach().cpu().__array__(),
    "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0], "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(), "where": lambda x: torch.where(x > 0), "equal": lambda x: torch.equal(x, x + 1),
    "index": lambda x: [0, 1][x.sum().long()], "allclose": lambda x: torch.allclose(x, x), "in": lambda x: 3.0 in x,
    "norm": lambda x: bool(clipped(x)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_asking_for_a_value_is_one_sentence(device, name):
    with pytest.raises(DataDependentError, match="a simulation has no values") as error:
        QUESTIONS[name](torch.randn(4, device=device))
    assert str(error.value).startswith("train ")


def test_data_from_outside_keeps_its_values():
    batch, lengths = torch.arange(6.0).view(2, 3), torch.tensor([2, 3])
    array = torch.ones(2, 3, dtype=torch.float64).numpy()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch, lengths), batch_size=1, shuffle=True)
    with simulation():
        assert lengths.max().item() == 3 and (batch > 4).sum() == 1 and batch[batch > 4].tolist() == [5.0]
        longest = int(lengths.max())
        assert batch[:, :longest].to(DEVICE, non_blocking=True).device.type == "sim"
        assert torch.from_numpy(array).to(DEVICE).shape == torch.as_tensor(array, device=DEVICE).shape == (2, 3)
        assert torch.tensor(array, device=DEVICE).device.type == "sim"
        assert torch.tensor(7).item() == 7 and (torch.tensor(7) + 1).item() == 8
        for x, length in loader:
            assert x.sum().item() in (3.0, 12.0) and x.to(DEVICE).shape == (1, 3)
            assert torch.cat([x.to(DEVICE), x.to(DEVICE)]).device.type == "sim"
            assert length.to(DEVICE).dtype == torch.int64
    assert torch.equal(batch, torch.arange(6.0).view(2, 3))


def scaled_steps(steps, **options):
    layer = torch.nn.Linear(4, 4).to(DEVICE)
    optimizer = torch.optim.AdamW(layer.parameters())
    scaler = torch.amp.GradScaler(DEVICE.type, **options)
    for _ in range(steps):
        scaler.scale(layer(torch.randn(2, 4, device=DEVICE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler, optimizer


def test_a_grad_scaler_finds_no_overflow_and_knows_its_scale(device):
    scaler, optimizer = scaled_steps(3)
    assert scaler.get_scale() == 65536.0 and scaler.state_dict()["_growth_tracker"] == 3
    assert [state["step"].item() for state in optimizer.state.values()] == [3.0, 3.0]
    scaler, _ = scaled_steps(5, init_scale=8.0, growth_interval=2)
    assert scaler.get_scale() == 32.0
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0


def test_a_written_tensor_is_unknown_again(device):
    x = torch.full((), 3.0, device=device)
    assert x.item() == 3.0
    x.add_(1)
    assert math.isnan(x.item())


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "NAdam", "RAdam", "Adafactor", "Adagrad", "RMSprop", "Adamax",
                                  "Adadelta", "ASGD", "Rprop"])
@pytest.mark.parametrize("foreach", [None, False])
def test_optimizers_and_schedulers_step(device, name, foreach):
    layer = torch.nn.Linear(4, 4).to(device)
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1, foreach=foreach)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
                  torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))]
    for _ in range(3):
        layer(torch.randn(2, 4, device=device)).sum().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert all(p.device.type == "sim" for p in layer.parameters()) and optimizer.param_groups[0]["lr"] < 0.1


@pytest.mark.parametrize("say", [
    lambda: torch.zeros(2).cuda(), lambda: torch.nn.Linear(2, 2).cuda(), lambda: torch.zeros(2, device="cuda"),
    lambda: torch.zeros(2).to("cuda:0"), lambda: torch.nn.Linear(2, 2, device="cuda"), lambda: torch.device("cuda"),
    lambda: torch.device("cuda", 0), lambda: torch.nn.Linear(2, 2).to("cuda"), lambda: torch.autocast("cuda"),
    lambda: torch.amp.autocast(device_type="cuda", dtype=torch.float16), lambda: torch.cuda.amp.autocast(),
    lambda: torch.amp.GradScaler("cuda"), lambda: torch.amp.GradScaler(), lambda: torch.cuda.amp.GradScaler(),
    lambda: torch.cuda.empty_cache(), lambda: torch.cuda.max_memory_allocated(), lambda: torch.cuda.synchronize(),
    lambda: torch.accelerator.empty_cache(),
], ids=range(18))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_naming_cuda_is_one_sentence_that_says_what_to_write(device, say):
    with pytest.raises(RuntimeError, match="^train (says|calls) .*; write "):
        say()


def test_recurrent_layers_are_refused(device):
    with pytest.raises(NotImplementedError, match="cuDNN"):
        torch.nn.LSTM(4, 4).to(device)(torch.randn(2, 2, 4, device=device))


def test_a_loader_with_worker_processes_is_one_sentence(device):
    data = torch.utils.data.TensorDataset(torch.zeros(4, 2))
    with pytest.raises(RuntimeError, match="in a simulation write num_workers=0"):
        next(iter(torch.utils.data.DataLoader(data, num_workers=2)))
    assert len(list(torch.utils.data.DataLoader(data))) == 4
