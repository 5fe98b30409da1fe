"""Lets an error raised in backward on the simulated device reach the training function instead of ending the process.

While C++ unwinds an error that Python raised, the autograd engine asks the device guard for its stream. A guard written
in Python is then called with that error still pending, which Python does not allow, and in a place where C++ may not
throw: the process would abort (torch/csrc/acc/Module.cpp, `PythonDeviceGuard`). The guard here takes the pending error
away first, and `raise_backward_errors` raises it again as soon as the engine has returned.
"""

import contextlib
import ctypes

import torch

from helpers.torch_private import BaseDeviceGuard, DeviceType, engine_run_backward

pending: list[BaseException] = []

# Made beforehand: with an error pending, no call may be made before the one that takes the error away.
_type, _value, _traceback = ctypes.py_object(), ctypes.py_object(), ctypes.py_object()
_fields = ctypes.byref(_type), ctypes.byref(_value), ctypes.byref(_traceback)
_fetch = ctypes.pythonapi["PyErr_Fetch"]  # no argtypes: converting the arguments would be such a call
_fetch.restype = None
_normalize = ctypes.pythonapi["PyErr_NormalizeException"]
_normalize.restype = None
_release = ctypes.pythonapi["Py_DecRef"]
_release.restype = None


class DeviceGuard(BaseDeviceGuard):
    """The device guard of a backend written in Python; see above."""

    def type_(self):
        _fetch(*_fields)
        if _type:
            _keep()
        return DeviceType.PrivateUse1


def _keep() -> None:
    _normalize(*_fields)
    error = _value.value.with_traceback(_traceback.value if _traceback else None)
    for field in (_type, _value, _traceback):  # PyErr_Fetch gave us references of our own
        _release(field)
        ctypes.memset(ctypes.byref(field), 0, ctypes.sizeof(field))
    pending.append(error)


@contextlib.contextmanager
def raise_backward_errors():
    """Within it, `backward()` and `torch.autograd.grad` raise what the device guard took away."""
    def run_backward(*args, **kwargs):
        pending.clear()
        try:
            return run(*args, **kwargs)
        except SystemError:  # the engine says that it failed, and its error is in our hands
            if not pending:
                raise
        raise pending.pop()

    # One thread: an error in a thread of the engine's own would be out of our hands.
    with torch.autograd.set_multithreading_enabled(False), engine_run_backward(run_backward) as run:
        yield
