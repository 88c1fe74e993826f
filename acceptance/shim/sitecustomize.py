"""What SGLang asks of a GPU build of PyTorch on its prefill and decode roles, answered on a machine without a GPU.

Python imports this module by itself in each process that has its directory on PYTHONPATH. Nothing happens until a
process imports torch; then three places are changed in that process. No file of SGLang or torch is touched.

    piece             releases            why
    vision operators  0.5.18 to 0.5.23    The published torchvision is linked against CUDA and does not load beside a
                                          CPU build of torch; importing it then fails for want of two operators.
    events, streams   0.5.18 to 0.5.23    On a prefix-cache hit prefill makes a CUDA event (`disaggregation/prefill.py`)
                      0.5.23              and records it in the current CUDA stream.
    pinned memory     0.5.23              Prefill asks for pinned host memory, which torch cannot give without CUDA.

The second and third touch the synchronisation between computing and sending, and nothing else: on a CPU both happen
in program order, so what a request is answered stands. A race between a GPU's streams and a transfer cannot be seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_KEPT: list[object] = []  # operators live as long as the library object that declared them


class _Event:
    """An event of a device that finishes everything at once."""

    def __init__(self, **_options: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def wait(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: object) -> float:
        return 0.0


def _declare_vision_operators(torch: Any) -> None:
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEPT.append(library)


def _complete_events_at_once(torch: Any) -> None:
    torch.cuda.Event = _Event
    torch.cuda.current_stream = lambda device=None: torch.cpu.current_stream(device)


def _pin_nothing(torch: Any) -> None:
    empty = torch.empty

    def unpinned(*sizes: Any, **options: Any) -> Any:
        options.pop("pin_memory", None)
        return empty(*sizes, **options)

    torch.empty = unpinned


class _Then(Loader):
    """A loader that changes torch after it was loaded as usual."""

    def __init__(self, usual: Loader) -> None:
        self.usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.usual.exec_module(module)
        if not module.cuda.is_available():
            _declare_vision_operators(module)
            _complete_events_at_once(module)
            _pin_nothing(module)


class _Finder(MetaPathFinder):
    """Finds torch, once, as usual."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
