"""Says of every block of memory what it is for and which module asked, from what PyTorch itself announces.

Module and parameter registration, saved-tensor hooks, gradient accumulation hooks and optimizer hooks: nothing is
guessed from sizes.
"""

import contextlib
import weakref

import torch
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from helpers.measuring.run import TensorRecord
from helpers.torch_private import accumulate_hooks_of, address_of, current_graph_task_id, tree_iter

# A block keeps the highest role that it ever earned: a gradient that is also saved for backward is a gradient.
RANK = {"temporaries": 0, "activations": 1, "batch": 2, "optimizer state": 3, "gradients": 4, "parameters": 5}


class Birth:
    """What is known of one storage: who allocated it, for what, the block it got, and the best role it ever earned."""

    __slots__ = ("alive", "block", "dtype", "module", "operator", "phase", "role", "shape", "size", "watch")

    def __init__(self, module: str, operator: str, shape, dtype, phase: str):
        self.module, self.operator, self.shape, self.dtype, self.phase = module, operator, shape, dtype, phase
        self.role, self.block, self.size, self.alive = "temporaries", None, 0, True

    def earn(self, role: str) -> None:
        if RANK[role] > RANK[self.role]:
            self.role = role

    def record(self) -> TensorRecord:
        dtype = str(self.dtype).removeprefix("torch.")
        return TensorRecord(self.module, self.operator, tuple(self.shape), dtype, self.size, self.role, self.phase)


class Roles:
    """Follows phase, module path and optimizer step of a running training function and gives blocks their roles.

    live: the births by address of their storage; the recorder keeps it. device_type: other devices do not count.
    """

    def __init__(self, live: dict[int, Birth], device_type: str):
        self.live, self.device_type = live, device_type
        self.running: list[str] = []  # paths of the modules that are running, outermost first
        self.recomputed: list[list[Birth]] = []  # for each, what it allocated if checkpointing runs it
        self.backward_of = ""
        self.names = weakref.WeakKeyDictionary()
        self.parameters: dict[int, tuple[str, weakref.ref]] = {}
        self.with_gradient: set[int] = set()
        self.step, self.in_optimizer, self.started, self.expect_batch = 0, False, False, True
        self.hooks = contextlib.ExitStack()
        self.at_each_module = lambda: None

    @property
    def phase(self) -> str:
        if self.in_optimizer:
            return "optimizer step"
        if current_graph_task_id() >= 0:
            return "backward"
        return "forward" if self.started else "setup"

    @property
    def module(self) -> str:
        """Path of the module that is running; in backward, of the module whose saved tensors were last asked for."""
        if self.running:
            return self.running[-1]
        return self.backward_of if current_graph_task_id() >= 0 else ""

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Names of the trainable parameters that never got a gradient."""
        return tuple(name for key, (name, _) in self.parameters.items() if key not in self.with_gradient)

    def earn(self, value, role: str) -> None:
        if isinstance(value, torch.Tensor) and value.device.type == self.device_type:
            birth = self.live.get(address_of(value.untyped_storage()))
            if birth is not None:
                birth.earn(role)

    def _before_module(self, module, args) -> None:
        self.at_each_module()
        if module not in self.names:
            self._meet(module)
        if not self.running and self.phase != "backward":
            if self.expect_batch:  # what the training function put on the card before it called its model
                for birth in self.live.values():
                    if not birth.module and birth.phase in ("setup", "forward"):
                        birth.earn("batch")
            self.started, self.expect_batch = True, False
        self.running.append(self.names[module])
        self.recomputed.append([])

    def _after_module(self, module, args, output) -> None:
        if self.running:
            self.running.pop()
            for birth in self.recomputed.pop():  # what a recomputed module leaves behind is what backward needs of it
                if birth.alive:
                    birth.earn("activations")

    def new_birth(self, operator: str, shape, dtype) -> Birth:
        birth = Birth(self.module, operator, shape, dtype, self.phase)
        if self.running and birth.phase == "backward":
            self.recomputed[-1].append(birth)
        return birth

    def _meet(self, module) -> None:
        for path, child in module.named_modules():
            self.names.setdefault(child, path)
        for name, parameter in module.named_parameters():
            self.earn(parameter, "parameters")
            if parameter.requires_grad and parameter.device.type == self.device_type:
                self._follow(name, parameter)
        for buffer in module.buffers():
            self.earn(buffer, "parameters")

    def _follow(self, name: str, parameter) -> None:
        key = id(parameter)
        if key in self.parameters and self.parameters[key][1]() is parameter:
            return
        me = weakref.proxy(self)  # the hook lives on the parameter and must not keep a finished run alive

        def accumulated(parameter):
            me.with_gradient.add(key)
            me.expect_batch = True
            me.earn(parameter.grad, "gradients")

        self.hooks.callback(parameter.register_post_accumulate_grad_hook(accumulated).remove)
        self.parameters[key] = (name, weakref.ref(parameter))

    def forget_hooks(self) -> None:
        """Drop the gradient hooks of parameters that outlived their run.

        A hook that refers to its own parameter (an optimizer step inside backward does) is a cycle through C++, which
        Python's garbage collector does not see.
        """
        for _, reference in self.parameters.values():
            parameter = reference()
            if parameter is not None and (hooks := accumulate_hooks_of(parameter)):
                hooks.clear()

    def _saved(self, tensor):
        self.earn(tensor, "activations")
        # An output that a node saves would keep the node alive, and the node the output: detached, it does not.
        return tensor if tensor.grad_fn is None else tensor.detach(), self.module

    def _asked_for(self, saved):
        tensor, self.backward_of = saved
        return tensor

    def _before_step(self, optimizer, args, kwargs) -> None:
        self.at_each_module()
        self.in_optimizer = True
        if self.step == 0:  # a model that is gone before the first step is an attempt that ran out of memory
            self.parameters = {key: value for key, value in self.parameters.items() if value[1]() is not None}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.earn(parameter, "parameters")
                self.earn(parameter.grad, "gradients")

    def _after_step(self, optimizer, args, kwargs) -> None:
        for state in optimizer.state.values():
            for value in tree_iter(state):
                self.earn(value, "optimizer state")
        self.in_optimizer = False
        self.step += 1

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for handle in (
                    nn_module.register_module_forward_pre_hook(self._before_module),
                    nn_module.register_module_forward_hook(self._after_module, always_call=True),
                    nn_module.register_module_parameter_registration_hook(
                        lambda module, name, parameter: self.earn(parameter, "parameters")),
                    register_optimizer_step_pre_hook(self._before_step),
                    register_optimizer_step_post_hook(self._after_step)):
                stack.callback(handle.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._saved, self._asked_for))
            stack.enter_context(self.hooks)
            self.registered = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        self.registered.close()
