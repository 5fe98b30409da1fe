"""Sees every block of memory that a training function takes and gives back: one recorder for both cards."""

import weakref

import torch
from torch.utils.flop_counter import flop_registry

from helpers.measuring.roles import Birth, Roles
from helpers.measuring.roofline import Roofline, tensors_in
from helpers.measuring.run import ROLES, TensorRecord, Timeline
from helpers.torch_private import FakeTensor, TorchDispatchMode, address_of, current_graph_task_id, packet_of

aten = torch.ops.aten

# In backward, PyTorch writes these into a tensor that nobody else holds, except when it meets tensor subclasses
# such as FakeTensors: then the result is a new tensor. Here the new one takes over the block of the old one.
IN_PLACE = {aten.add.Tensor, aten.scatter.src, aten.scatter_add.default, aten.index_put.default, aten.index_add.default}
PRIM_DEVICE = torch.ops.prim.device.default
MATRIX_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.addbmm.default}


def count_flops(func, args, kwargs, out) -> int:
    """Floating-point operations by PyTorch's own formulas; 0 for an operator that has none."""
    count = flop_registry.get(packet_of(func))
    try:
        return count(*args, **kwargs, out_val=out) if count else 0
    except AssertionError:  # before 2.13 the formula of attention refuses fewer key heads than query heads
        return 0


class Recorder(TorchDispatchMode):
    """Records what runs inside `with recorder:`.

    device_type: storages on this type of device count. allocator: gives each storage its block (simulated card), None
    where PyTorch does it (real card). workspace: bytes of a cuBLAS workspace, taken through the allocator by the first
    matrix product of the forward thread and by that of the backward thread, and kept
    (aten/src/ATen/cuda/CublasHandlePool.cpp). in_place: see `IN_PLACE`. out_of_memory: makes the exception that the
    training function gets from the allocator's `MemoryError` and the `TensorRecord` of the request. roofline: told of
    every operator. history: told of every action of the allocator.
    """

    def __init__(self, device_type: str, allocator=None, workspace: int = 0, in_place: bool = True, out_of_memory=None,
                 roofline: Roofline | None = None, history=None):
        super().__init__()
        self.device_type, self.allocator, self.workspace = device_type, allocator, workspace
        self.in_place, self.out_of_memory = in_place and allocator is not None, out_of_memory
        self.live: dict[int, Birth] = {}  # by address of the storage
        self.roles = Roles(self.live, device_type)
        self.events: list[tuple] = []  # (birth, change in bytes, phase, step, reserved bytes)
        self.workspaces: dict[bool, Birth] = {}  # by whether it is the backward thread's
        self.now = self.peak = self.peak_event = self.flops = 0
        self.roofline, self.history = roofline, history
        self.donor = None  # (storage that may pass on its block, storage that takes it, bytes)
        self.request: TensorRecord | None = None
        self.last_event: int | None = None  # before an out-of-memory error

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a wrapper around every call, for torch.compile

    def __enter__(self):
        if self.history is not None:
            self.history.start(lambda: self.roles.phase)
        self.roles.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.roles.__exit__(*error)
        self._settle()
        for key, birth in list(self.live.items()):
            if not birth.watch.alive:  # an interrupt came in the middle of its release
                self._release(key)
        if self.history is not None:
            self.history.stop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.donor is not None:
            self._settle()
        if func is PRIM_DEVICE and isinstance(args[0], FakeTensor):  # half of all calls: C++ asks where a tensor is
            return func(*args) if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        if self.workspace and func in MATRIX_PRODUCTS:
            self._take_workspace()
        try:
            out = func(*args, **kwargs)
        except torch.OutOfMemoryError:  # on a real card; PyTorch does not say for which tensor
            self._fail(self.roles.new_birth(str(func.overloadpacket), (), ""))
            raise
        flops = count_flops(func, args, kwargs, out)
        self.flops += flops
        if self.roofline is not None:
            self.roofline.add(func, args, kwargs, out, flops)
        if self.in_place and func in IN_PLACE and self._inherits(args[0], out, func):
            return out
        for value in tensors_in(out):
            if value.device.type == self.device_type:
                storage = value.untyped_storage()
                if address_of(storage) not in self.live and storage.nbytes():
                    birth = self.roles.new_birth(str(func.overloadpacket), value.shape, value.dtype)
                    self._take(birth, storage.nbytes())
                    self._watch(storage, birth)
        return out

    def _watch(self, storage, birth: Birth) -> None:
        key = address_of(storage)
        self.live[key] = birth
        birth.watch = weakref.finalize(storage, self._release, key)
        birth.watch.atexit = False

    def _take(self, birth: Birth, nbytes: int) -> None:
        if self.allocator is None:
            birth.size = -(-nbytes // 512) * 512  # PyTorch books multiples of 512 bytes
        else:
            failure = None
            try:
                birth.block = self.allocator.malloc(nbytes)
            except MemoryError as error:
                failure = error.with_traceback(None)
            if failure:  # out here: an error of a real card has no second one behind it, whose frames hold tensors
                birth.size = nbytes
                self._fail(birth)
                raise self.out_of_memory(failure, self.request)
            birth.size = birth.block.size
        self._note(birth, birth.size)

    def _fail(self, birth: Birth) -> None:
        self.request, self.last_event = birth.record(), len(self.events) - 1

    def _take_workspace(self) -> None:
        backward = current_graph_task_id() >= 0
        if backward not in self.workspaces:
            birth = Birth("", "cuBLAS workspace", (self.workspace,), torch.uint8, self.roles.phase)
            self._take(birth, self.workspace)
            self.workspaces[backward] = birth

    def _note(self, birth: Birth, change: int) -> None:
        self.now += change
        if self.now > self.peak:
            self.peak, self.peak_event = self.now, len(self.events)
        reserved = self.allocator.reserved if self.allocator is not None else 0
        self.events.append((birth, change, self.roles.phase, self.roles.step, reserved))

    def _release(self, key: int) -> None:
        birth = self.live.pop(key)
        birth.alive = False
        if self.donor is not None and self.donor[0] == key and self.donor[1] in self.live:
            heir, self.donor = self.live[self.donor[1]], None
            self.now -= birth.size  # one block, no new peak: the old tensor and the new one are the same memory
            self.events.append((birth, -birth.size, self.roles.phase, self.roles.step, self.allocator.reserved))
            heir.block, heir.size = birth.block, birth.size
            self._note(heir, heir.size)
        elif birth.size:
            if birth.block is not None:
                self.allocator.free(birth.block)
            self._note(birth, -birth.size)

    def _inherits(self, old, new, func) -> bool:
        """Whether `new` may take over the block of `old`, should `old` die before the next operator."""
        if current_graph_task_id() < 0 or torch.is_grad_enabled() or new.device.type != self.device_type:
            return False
        old, storage = old.untyped_storage(), new.untyped_storage()
        donor, heir = address_of(old), address_of(storage)
        if donor not in self.live or heir in self.live or old.nbytes() != storage.nbytes():
            return False
        self.donor = (donor, heir, storage.nbytes())
        self._watch(storage, self.roles.new_birth(str(func.overloadpacket), new.shape, new.dtype))
        return True

    def _settle(self) -> None:
        """Someone still holds the donor, so PyTorch could not have written into it: the heir needs its own block."""
        if self.donor is not None:
            (_, heir, nbytes), self.donor = self.donor, None
            if heir in self.live:
                self._take(self.live[heir], nbytes)

    def timeline(self) -> Timeline:
        """Bytes by role after every event, with each tensor's final role."""
        now, by_role = dict.fromkeys(ROLES, 0), {role: [] for role in ROLES}
        for birth, change, *_ in self.events:
            now[birth.role] += change
            for role, sizes in by_role.items():
                sizes.append(now[role])
        phase, step, reserved = ([event[column] for event in self.events] for column in (2, 3, 4))
        peak = self.peak_event if self.last_event is None else self.last_event
        return Timeline(phase, step, by_role, reserved if self.allocator is not None else None, peak)

    def live_at(self, index: int) -> list[TensorRecord]:
        """Every tensor alive after event `index`, largest first."""
        alive: dict[int, Birth] = {}
        for birth, change, *_ in self.events[:index + 1]:
            if change > 0:
                alive[id(birth)] = birth
            else:
                del alive[id(birth)]
        return sorted((birth.record() for birth in alive.values()), key=lambda record: -record.bytes)
