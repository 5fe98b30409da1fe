"""Peak bytes of every rung on CUDA's own dispatch: makes tests/data/cuda_dispatch_rungs.json.

Needs PyTorch's CUDA build and a `cuda_dispatch` module that runs fake CUDA tensors without a GPU: no kernel runs; what
is real is the sequence of operators that PyTorch's CUDA build dispatches. Run it with that module's runner:

    run tests/cuda_dispatch/make_rungs.py > tests/data/cuda_dispatch_rungs.json

Allocator and recorder are the project's own; the dispatch, the autocast lists and the attention kernels are CUDA's.
"""

import functools
import json
import pathlib
import sys

import torch
from cuda_dispatch import cuda_dispatch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from helpers.cards.catalogue import CARDS
from helpers.measuring.recorder import Recorder
from helpers.simulation.allocator.caching_allocator import CachingAllocator, SimulatedDriver
from tests.cuda_dispatch.rungs import RUNGS, training_function


class DispatchRecorder(Recorder):
    """GradScaler asks for the value of found_inf, optimizers for their step counter: there are no values here."""

    found_inf = frozenset()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].untyped_storage()._cdata in self.found_inf else 1.0
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            self.found_inf = self.found_inf | {args[1].untyped_storage()._cdata}
        return super().__torch_dispatch__(func, types, args, kwargs)


# On fake CUDA tensors the optimizer's default is the for-loop; on real ones it is foreach.
adamw = functools.partial(torch.optim.AdamW, foreach=True)
torch.nn.Module.to = lambda module, device: module  # already there: fake parameters cannot be swapped
torch.cuda.is_bf16_supported = lambda *args, **kwargs: True  # true of compute capability 8.6; asking needs a driver
spec, peaks = CARDS["RTX 3090"], {}
for name, options in RUNGS.items():
    allocator = CachingAllocator(SimulatedDriver(1 << 40))
    with cuda_dispatch(), DispatchRecorder("cuda", allocator, spec.workspace), torch.device("cuda"):
        training_function(**options, make_optimizer=adamw)(torch.device("cuda"), 4)
    peaks[name] = {"allocated": allocator.peak_allocated, "reserved": allocator.peak_reserved}
    print(name, peaks[name], file=sys.stderr, flush=True)
print(json.dumps({"torch": torch.__version__, "batch_size": 4, "peaks": peaks}, indent=1))
