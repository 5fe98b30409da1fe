"""Roles, phases, module paths and operation counts of a model small enough to count by hand."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from helpers import ROLES, open_card

WIDTH, BATCH = 1024, 8
PARAMETERS = 2 * (WIDTH * WIDTH + WIDTH) * 4  # bytes of two Linear layers


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def train(device, batch_size, micro_batches=1, steps=2):
    model = TwoLayers().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        for _ in range(micro_batches):
            model(torch.randn(batch_size, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def card():
    return open_card("RTX 3090", kind="simulated")


@pytest.fixture(scope="module")
def run(card):
    return card.run(train, BATCH)


def test_every_role_has_the_size_counted_by_hand(run):
    highest = {role: max(run.timeline.by_role[role]) for role in ROLES}
    assert highest["parameters"] == highest["gradients"] == PARAMETERS
    assert highest["optimizer state"] == 2 * PARAMETERS  # the step counters live on the CPU
    assert highest["batch"] == BATCH * WIDTH * 4
    # Saved for backward: the input of gelu and of the second layer, and the result that is squared.
    assert highest["activations"] == 3 * BATCH * WIDTH * 4


def test_the_timeline_adds_up(run):
    timeline = run.timeline
    assert timeline.allocated[timeline.peak] == run.peak_allocated == max(timeline.allocated)
    assert sum(run.roles_at_peak.values()) == run.peak_allocated
    assert all(size >= 0 for sizes in timeline.by_role.values() for size in sizes)
    assert max(timeline.reserved) == run.peak_reserved
    assert all(taken <= held for taken, held in zip(timeline.allocated, timeline.reserved, strict=True))
    order = list(dict.fromkeys(zip(timeline.step, timeline.phase, strict=True)))
    assert order[:4] == [(0, "setup"), (0, "forward"), (0, "backward"), (0, "optimizer step")]
    assert order[4:7] == [(1, "forward"), (1, "backward"), (1, "optimizer step")]


def test_a_tensor_names_its_module_and_its_operator(run):
    weights = [record for record in run.live_at_peak if record.shape == (WIDTH, WIDTH) and record.role == "parameters"]
    assert len(weights) == 2
    held = open_card("RTX 3090", kind="simulated").run(lambda device, size: train(device, 2**16, steps=1), 1)
    origins = {(tensor.module, tensor.operator) for tensor in held.culprits}
    assert {("first", "aten.addmm"), ("", "aten.gelu")} <= origins


def test_operations_are_counted(card, run):
    products = 2 * BATCH * WIDTH * WIDTH  # one Linear forward
    assert run.flops == 2 * (2 + 1 + 2) * products  # two steps; the first layer's input needs no gradient

    def checkpointed(device, batch_size):
        model = TwoLayers().to(device)
        checkpoint(model, torch.randn(batch_size, WIDTH, device=device), use_reentrant=False).sum().backward()

    # Recomputation stops as soon as backward has what it needs: the second product itself is never made again.
    assert card.run(checkpointed, BATCH).flops == (2 + 1 + 3) * products


def test_accumulated_gradients_are_written_in_place(card):
    """As PyTorch does on a real card: gradients of a second micro-batch add nothing but one passing gradient."""
    run = card.run(lambda device, size: train(device, size, micro_batches=3), BATCH)
    assert max(run.timeline.by_role["gradients"]) == PARAMETERS
    other = open_card("RTX 3090", kind="simulated", leave_out=("in-place writes",))
    copies = other.run(lambda device, size: train(device, size, micro_batches=3), BATCH)
    assert copies.peak_allocated >= run.peak_allocated


def test_recomputed_activations_are_activations(card):
    def checkpointed(device, batch_size):
        model = TwoLayers().to(device)
        checkpoint(model, torch.randn(batch_size, WIDTH, device=device), use_reentrant=False).sum().backward()

    timeline = card.run(checkpointed, BATCH).timeline
    in_backward = [size for size, phase in zip(timeline.by_role["activations"], timeline.phase, strict=True)
                   if phase == "backward"]
    assert max(in_backward) >= 2 * BATCH * WIDTH * 4


def test_parameters_without_a_gradient_are_named(card):
    """Reentrant checkpointing of a block whose input needs no gradient."""
    def reentrant(device, batch_size):
        block, head = TwoLayers().to(device), torch.nn.Linear(WIDTH, 8).to(device)
        x = torch.randn(batch_size, WIDTH, device=device)
        head(checkpoint(block, x, use_reentrant=True)).sum().backward()

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        run = card.run(reentrant, BATCH)
    assert run.without_gradient == ("first.weight", "first.bias", "second.weight", "second.bias")
    assert "4 trainable parameters got no gradient" in str(run)


def test_nothing_is_left_registered(card, run):
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = (module._global_forward_hooks, module._global_forward_pre_hooks,
             module._global_parameter_registration_hooks,
             optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    assert not any(hooks)
    assert torch.autograd.is_multithreading_enabled()
