"""Ordinary PyTorch on the simulated device: moving, initialising, checkpointing, random state, and a clean end."""

import copy
import importlib
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from helpers.simulation.device import backend
from helpers.simulation.session import register, simulation

register()
DEVICE = torch.device("sim")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids):
        return self.head(self.embedding(ids)) * self.scale


def one_step(model, optimizer, device):
    ids = torch.zeros(2, 3, dtype=torch.long, device=device)
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    return [p.grad for p in model.parameters()]


def test_moving_keeps_parameters_their_ties_their_hooks_and_their_optimizer():
    with simulation():
        model, called = Tied(), []
        weight = model.head.weight
        weight.register_hook(lambda grad: called.append("hook"))
        weight.register_post_accumulate_grad_hook(lambda parameter: called.append("accumulated"))
        optimizer = torch.optim.AdamW(model.parameters())
        assert model.to(DEVICE) is model and model.scale.device.type == "sim"
        assert weight is model.head.weight is model.embedding.weight and weight.device.type == "sim"
        assert isinstance(weight, nn.Parameter) and weight.requires_grad and weight.is_leaf
        assert len(list(model.parameters())) == 1
        (grad,) = one_step(model, optimizer, DEVICE)
        assert grad.device.type == "sim" and "hook" in called and "accumulated" in called
        state = optimizer.state[weight]
        assert state["exp_avg"].device.type == "sim" and state["step"].device.type == "cpu"
        model.half()
        assert weight.dtype == weight.grad.dtype == torch.float16 and weight is model.head.weight
        model.to(torch.bfloat16).cpu()
        assert weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.grad.device.type == "cpu"
        assert model.to(DEVICE).to(DEVICE).head.weight is weight
        frozen = nn.Linear(2, 2).requires_grad_(False).to(DEVICE)
        assert not frozen.weight.requires_grad


def test_a_module_from_outside_is_lent_and_comes_back_untouched():
    torch.manual_seed(0)
    model = Tied()
    weight, before = model.head.weight, model.head.weight.detach().clone()
    with simulation():
        model.to(DEVICE)
        assert model.head.weight is model.embedding.weight and model.head.weight.device.type == "sim"
        one_step(model, torch.optim.AdamW(model.parameters()), DEVICE)
        twin = copy.deepcopy(model)
        assert twin.head.weight is twin.embedding.weight is not model.head.weight
        assert twin.head.weight.fake_mode is model.head.weight.fake_mode  # a copied mode frees memory twice
    assert model.head.weight is model.embedding.weight is weight and weight.grad is None
    assert torch.equal(weight, before) and model.scale.item() == 2.0 and type(model.scale) is torch.Tensor


@pytest.mark.parametrize("initialise", [
    nn.init.trunc_normal_, nn.init.orthogonal_, nn.init.kaiming_normal_, nn.init.xavier_uniform_, nn.init.zeros_,
    lambda weight: nn.init.sparse_(weight, 0.1), nn.init.eye_])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_initialisers_work(initialise, device):
    with simulation():
        weight = nn.Parameter(torch.empty(8, 8, device=device))
        assert initialise(weight) is weight and weight.device.type == device


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpointing_and_random_state(use_reentrant, preserve_rng_state):
    with simulation():
        layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).to(DEVICE)
        x = torch.randn(2, 4, device=DEVICE, requires_grad=True)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            out = checkpoint(layer, x, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
        out.sum().backward()
        assert layer[0].weight.grad.dtype == torch.float32
        torch.manual_seed(0)
        with torch.random.fork_rng(devices=[0], device_type=DEVICE.type):
            torch.randn(2, device=DEVICE)
        module = torch.get_device_module(DEVICE)
        module.synchronize(), module.manual_seed(1), module.manual_seed_all(1)
        assert module.is_available() and module.device_count() == 1
        assert torch.accelerator.current_accelerator().type == "sim" and torch.accelerator.is_available()
        torch.accelerator.synchronize()
        generator = torch.Generator(device=DEVICE).manual_seed(0)
        assert torch.randn(3, generator=generator, device=DEVICE).device.type == "sim"


@pytest.mark.parametrize("pin_memory", [False, True])
def test_activations_can_wait_on_the_cpu(pin_memory):
    with simulation():
        layer = nn.Linear(4, 4).to(DEVICE)
        with torch.autograd.graph.save_on_cpu(pin_memory=pin_memory):
            out = layer(torch.randn(2, 4, device=DEVICE)).square().sum()
        out.backward()
        assert layer.weight.grad.device.type == "sim"
        assert torch.zeros(2).pin_memory().to(DEVICE, non_blocking=True).device.type == "sim"


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_fused_optimizers_work(name):
    with simulation():
        model = Tied().to(DEVICE)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("sim")
        for _ in range(2):
            scaler.scale(model(torch.zeros(2, 3, dtype=torch.long, device=DEVICE)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()


def real_training():
    """A bfloat16 step on the CPU, attention included, with every number that it gives."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(torch.randn(2, 4, 8)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    layer.to(torch.float64).to("cpu")
    nn.init.trunc_normal_(layer.linear1.weight)
    return [loss.item(), *(p.detach().clone() for p in layer.parameters())]


def surroundings():
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    return [nn.Module._apply, nn.init._no_grad_trunc_normal_, torch.clear_autocast_cache, torch.autocast.__init__,
            torch.amp.GradScaler.__init__, torch.autograd._engine_run_backward, torch._C._only_lift_cpu_tensors(),
            torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
            torch.is_autocast_enabled("sim"),
            torch.autograd.is_multithreading_enabled(), torch._C._get_sdp_priority_order(), torch.Generator,
            list(optimizer._foreach_supported_types), list(_foreach_utils._foreach_supported_types),
            *(value for name, value in sorted(vars(torch.cuda).items()) if callable(value)),
            torch.get_device_module("sim").is_available(), torch.utils._device.CURRENT_DEVICE, torch.Tensor.pin_memory]


def test_real_training_is_the_same_before_and_after():
    before, around = real_training(), surroundings()
    for error in (None, KeyError("inside")):
        try:
            with simulation(capability=(7, 5)):
                model = Tied().to(DEVICE)
                with torch.autocast("sim", dtype=torch.float16):
                    one_step(model, torch.optim.AdamW(model.parameters()), DEVICE)
                if error:
                    raise error
        except KeyError as caught:
            assert caught is error
    assert surroundings() == around
    for was, now in zip(before, real_training(), strict=True):
        assert was == now if isinstance(was, float) else torch.equal(was, now)


def test_it_works_in_another_thread_and_one_inside_another():
    seen = []

    def work():
        with simulation():
            seen.append(one_step(Tied().to(DEVICE), torch.optim.SGD(nn.Linear(1, 1).parameters()), DEVICE))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1
    with simulation(), simulation(leave_out={"foreach"}):
        assert nn.Linear(2, 2).to(DEVICE).weight.device.type == "sim"
    assert not torch.get_device_module("sim").is_available()


def test_an_unknown_part_to_leave_out_is_named():
    with pytest.raises(ValueError, match="Unknown part to leave out: kernels. Known parts: attention kernels"), \
            simulation(leave_out={"kernels"}):
        pass


def test_registering_again_after_a_reload_works():
    kept = vars(backend).copy()
    try:
        again = importlib.reload(backend)
        again.register()
        with simulation(), torch.autocast("sim", dtype=torch.float16):
            assert nn.Linear(2, 2).to(DEVICE)(torch.randn(2, 2, device=DEVICE)).dtype == torch.float16
    finally:
        vars(backend).update(kept)
        register()


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
HUGGING_FACE = {
    "ViTModel": ("ViTConfig", SMALL),
    "T5EncoderModel": ("T5Config", {"d_model": 64, "num_layers": 2, "d_ff": 64}),
    "BertModel": ("BertConfig", SMALL),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 2}),
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_models_are_built_and_trained_as_their_readers_write(name):
    transformers = pytest.importorskip("transformers")
    config, options = HUGGING_FACE[name]
    config = getattr(transformers, config)(**options)
    real = sum(p.numel() for p in getattr(transformers, name)(config).parameters())
    with simulation():
        model = getattr(transformers, name)(config).to(DEVICE)
        assert sum(p.numel() for p in model.parameters()) == real  # tied weights stay tied and count once
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("sim")
        ids = torch.randint(0, 100, (2, 16), device=DEVICE)
        for _ in range(2):
            with torch.autocast(DEVICE.type, dtype=torch.float16):
                if name == "ViTModel":
                    loss = model(pixel_values=torch.randn(2, 3, 224, 224, device=DEVICE)).last_hidden_state.mean()
                elif "LM" in name:
                    loss = model(input_ids=ids, labels=ids).loss
                else:
                    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert {p.device.type for p in model.parameters()} == {"sim"}
