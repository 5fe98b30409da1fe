"""Sees every block of memory that a training function takes and gives back, and says what each one is for.

One `TorchDispatchMode` for the real and the simulated card. A storage gets its role from what PyTorch itself says
about it: module and parameter registration, saved-tensor hooks, gradient accumulation hooks and optimizer hooks.
Nothing is guessed from sizes.
"""

import contextlib
import weakref

import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from helpers.run import ROLES, TensorRecord, Timeline

aten = torch.ops.aten

# In backward, PyTorch writes these into a tensor that nobody else holds, except when it meets tensor subclasses
# such as FakeTensors: then the result is a new tensor. The new one takes over the block of the old one.
IN_PLACE = {aten.add.Tensor, aten.scatter.src, aten.scatter_add.default, aten.index_put.default, aten.index_add.default}
MATRIX_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.addbmm.default}

RANK = {"temporaries": 0, "activations": 1, "batch": 2, "optimizer state": 3, "gradients": 4, "parameters": 5}


class Birth:
    """What is known of one storage: where it was born, how large it is, and the best role it ever earned."""

    __slots__ = ("block", "dtype", "module", "operator", "phase", "role", "shape", "size")

    def __init__(self, module, operator, shape, dtype, phase, role):
        self.module, self.operator, self.shape, self.dtype = module, operator, shape, dtype
        self.phase, self.role, self.block, self.size = phase, role, None, 0

    def earn(self, role: str) -> None:
        if RANK[role] > RANK[self.role]:
            self.role = role

    def record(self) -> TensorRecord:
        dtype = str(self.dtype).removeprefix("torch.")
        return TensorRecord(self.module, self.operator, tuple(self.shape), dtype, self.size, self.role, self.phase)


class Recorder(TorchDispatchMode):
    """Records a training function; `with recorder: train(device, batch_size)`.

    device_type: storages on this type of device count. allocator: books each storage (simulated card), None where
    PyTorch does it (real card). workspace: bytes of a cuBLAS workspace, taken by the first matrix product of the
    forward thread and of the backward thread (aten/src/ATen/cuda/CublasHandlePool.cpp); 0 on a real card.
    """

    def __init__(self, device_type: str, allocator=None, workspace: int = 0, in_place: bool = True,
                 out_of_memory=lambda error, request: error):
        super().__init__()
        self.out_of_memory = out_of_memory  # makes the exception that the reader sees
        self.device_type, self.allocator, self.workspace, self.in_place = device_type, allocator, workspace, in_place
        self.live: dict[int, Birth] = {}  # by address of the storage
        self.events: list[tuple[Birth, int, str, int, int]] = []  # (birth, change in bytes, phase, step, reserved)
        self.workspaces: dict[bool, Birth] = {}
        self.modules: list[str] = []  # paths of the modules that are running
        self.names: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.parameters: dict[int, tuple[str, weakref.ref]] = {}
        self.with_gradient: set[int] = set()
        self.step, self.in_optimizer, self.started, self.flops = 0, False, False, 0
        self.expect_batch = True
        self.donor = None  # (storage that may pass on its block, storage that takes it, bytes)
        self.request: TensorRecord | None = None
        self.peak, self.peak_event, self.sum, self.last_event = 0, 0, 0, None
        self.stack = None

    # Phases and places.

    @property
    def phase(self) -> str:
        if self.in_optimizer:
            return "optimizer step"
        if torch._C._current_graph_task_id() >= 0:
            return "backward"
        return "forward" if self.started else "setup"

    def before_module(self, module, args):
        if module not in self.names:
            for path, child in module.named_modules():
                self.names.setdefault(child, path)
            for name, parameter in module.named_parameters():
                self.note_parameter(name, parameter)
            for buffer in module.buffers():
                self.earn(buffer, "parameters")
        if not self.modules and self.phase != "backward":
            if self.expect_batch:  # what the training function itself put on the card before it called the model
                for birth in self.live.values():
                    if not birth.module and birth.phase in ("setup", "forward"):
                        birth.earn("batch")
            self.started, self.expect_batch = True, False
        self.modules.append(self.names[module])

    def after_module(self, module, args, output):
        if self.modules:
            self.modules.pop()

    # Roles.

    def earn(self, value, role: str) -> None:
        if isinstance(value, torch.Tensor) and value.device.type == self.device_type:
            birth = self.live.get(value.untyped_storage()._cdata)
            if birth is not None:
                birth.earn(role)

    def note_parameter(self, name: str, parameter) -> None:
        self.earn(parameter, "parameters")
        if not parameter.requires_grad or parameter.device.type != self.device_type:
            return
        key = id(parameter)
        known = self.parameters.get(key)
        if known is None or known[1]() is not parameter:
            recorder = weakref.proxy(self)

            def accumulated(p, key=key):
                recorder.with_gradient.add(key)
                recorder.expect_batch = True
                recorder.earn(p.grad, "gradients")

            handle = parameter.register_post_accumulate_grad_hook(accumulated)
            self.stack.callback(handle.remove)
            self.parameters[key] = (name, weakref.ref(parameter))

    def saved_for_backward(self, tensor):
        self.earn(tensor, "activations")
        # An output that a node saves would keep the node alive, and the node the output: detached, it does not.
        return tensor if tensor.grad_fn is None else tensor.detach()

    def before_step(self, optimizer, args, kwargs):
        self.in_optimizer = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.earn(parameter, "parameters")
                self.earn(parameter.grad, "gradients")

    def after_step(self, optimizer, args, kwargs):
        for state in optimizer.state.values():
            for value in tree_iter(state):
                self.earn(value, "optimizer state")
        self.in_optimizer = False
        self.step += 1

    # Memory.

    def settle(self) -> None:
        """The old tensor is still held by someone, so PyTorch could not have written into it: a block of its own."""
        if self.donor is not None:
            (_, heir, size), self.donor = self.donor, None
            if heir in self.live:
                self.take(self.live[heir], size)

    def take(self, birth: Birth, nbytes: int) -> None:
        if self.allocator is None:
            birth.size = -(-nbytes // 512) * 512
        else:
            try:
                birth.block = self.allocator.malloc(nbytes)
            except MemoryError as error:
                birth.size = nbytes
                self.request, self.last_event = birth.record(), len(self.events) - 1
                raise self.out_of_memory(error, self.request) from None
            birth.size = birth.block.size
        self.note(birth, birth.size)

    def note(self, birth: Birth, change: int) -> None:
        self.sum += change
        if self.sum > self.peak:
            self.peak, self.peak_event = self.sum, len(self.events)
        reserved = self.allocator.reserved if self.allocator is not None else 0
        self.events.append((birth, change, self.phase, self.step, reserved))

    def release(self, key: int) -> None:
        birth = self.live.pop(key, None)
        if birth is None:
            return
        if self.donor is not None and self.donor[0] == key:
            heir, self.donor = self.live.get(self.donor[1]), None
            if heir is None:
                self.allocator.free(birth.block)
                self.note(birth, -birth.size)
                return
            heir.block, heir.size = birth.block, birth.size
            for who, change in ((birth, -birth.size), (heir, heir.size)):
                self.events.append((who, change, "backward", self.step, self.allocator.reserved))
        elif birth.size:
            if birth.block is not None:
                self.allocator.free(birth.block)
            self.note(birth, -birth.size)

    def book(self, tensor, func) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live or not storage.nbytes():
            return
        where = self.modules[-1] if self.modules else ""
        role = "temporaries"
        birth = Birth(where, str(func.overloadpacket), tensor.shape, tensor.dtype, self.phase, role)
        self.take(birth, storage.nbytes())
        self.live[key] = birth
        weakref.finalize(storage, self.release, key).atexit = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.settle()
        if func in MATRIX_PRODUCTS and self.workspace:
            backward = torch._C._current_graph_task_id() >= 0
            if backward not in self.workspaces:
                birth = Birth("", "cuBLAS workspace", (self.workspace,), torch.uint8, self.phase, "temporaries")
                self.workspaces[backward] = birth
                self.take(birth, self.workspace)
        try:
            out = func(*args, **(kwargs or {}))
        except torch.OutOfMemoryError:  # a real card: PyTorch does not say for which tensor
            birth = Birth(self.modules[-1] if self.modules else "", str(func), (), "unknown dtype", self.phase, "temporaries")
            self.request, self.last_event = birth.record(), len(self.events) - 1
            raise
        if func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        if self.allocator is not None and self.in_place and func in IN_PLACE and self.inherits(args[0], out, func):
            return out
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor) and value.device.type == self.device_type:
                self.book(value, func)
        return out

    def inherits(self, old, new, func) -> bool:
        """Whether `new` may take over the block of `old`, should `old` die before the next operator."""
        if torch._C._current_graph_task_id() < 0 or torch.is_grad_enabled() or new.device.type != self.device_type:
            return False
        old, storage = old.untyped_storage(), new.untyped_storage()
        key = storage._cdata
        if old._cdata not in self.live or key in self.live or old.nbytes() != storage.nbytes():
            return False
        where = self.modules[-1] if self.modules else ""
        birth = Birth(where, str(func.overloadpacket), new.shape, new.dtype, "backward", "temporaries")
        self.live[key] = birth
        self.donor = (old._cdata, key, storage.nbytes())
        weakref.finalize(storage, self.release, key).atexit = False
        return True

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for register, hook in ((nn_module.register_module_forward_pre_hook, self.before_module),
                                   (register_optimizer_step_pre_hook, self.before_step),
                                   (register_optimizer_step_post_hook, self.after_step)):
                stack.callback(register(hook).remove)
            stack.callback(nn_module.register_module_forward_hook(self.after_module, always_call=True).remove)
            registered = nn_module.register_module_parameter_registration_hook(
                lambda module, name, parameter: self.earn(parameter, "parameters"))
            stack.callback(registered.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.saved_for_backward, lambda tensor: tensor))
            self.stack = stack.pop_all()
        return super().__enter__()

    def __exit__(self, *error):
        try:
            return super().__exit__(*error)
        finally:
            self.stack.close()

    # Answers.

    def timeline(self) -> Timeline:
        """Bytes by role after every event, with each tensor's final role."""
        now, by_role = dict.fromkeys(ROLES, 0), {role: [] for role in ROLES}
        for birth, change, *_ in self.events:
            now[birth.role] += change
            for role in ROLES:
                by_role[role].append(now[role])
        phases, steps = [event[2] for event in self.events], [event[3] for event in self.events]
        reserved = [event[4] for event in self.events] if self.allocator is not None else None
        peak = self.peak_event if self.last_event is None else self.last_event
        return Timeline(phases, steps, by_role, reserved, peak)

    def live_at(self, index: int) -> list[TensorRecord]:
        """Every tensor alive after event `index`, largest first."""
        alive = {}
        for birth, change, *_ in self.events[:index + 1]:
            if change > 0:
                alive[id(birth)] = birth
            else:
                alive.pop(id(birth), None)
        return sorted((birth.record() for birth in alive.values()), key=lambda record: -record.bytes)

    def missing_gradients(self) -> tuple[str, ...]:
        return tuple(name for key, (name, _) in self.parameters.items() if key not in self.with_gradient)
