from __future__ import annotations

import pytest

from acceptance.requirements import MOONCAKE, TORCH, TORCHVISION, requirements

METADATA = """Metadata-Version: 2.4
Name: sglang
Version: 0.5.23
Requires-Dist: aiohttp
Requires-Dist: flashinfer_python[cu13]==0.7.2
Requires-Dist: nvidia-ml-py
Requires-Dist: nvidia-cutlass-dsl[cu13]==4.8.0
Requires-Dist: sglang-kernel==0.4.10
Requires-Dist: tml-renderers==0.1.0; sys_platform == "linux"
Requires-Dist: tokenspeed_mla==0.1.8
Requires-Dist: torch==2.14.1
Requires-Dist: torchvision
Requires-Dist: transformers==5.19.0
Requires-Dist: uvicorn>=0.51
Requires-Dist: accelerate; extra == "test"

Requires-Dist: a line of the description
"""


def test_a_release_keeps_what_it_asks_for_and_loses_what_needs_a_gpu() -> None:
    needed = requirements(METADATA)
    assert {"aiohttp", "nvidia-ml-py", "transformers==5.19.0", "uvicorn>=0.51"} <= set(needed.whole)
    assert set(needed.left_out) == {
        *("flashinfer-python", "nvidia-cutlass-dsl", "sglang-kernel", "tokenspeed-mla", "torch", "torchvision"),
    }
    assert all(needed.left_out.values())


def test_torch_is_the_build_for_a_cpu() -> None:
    needed = requirements(METADATA)
    assert TORCH in needed.whole
    assert not any(asked.startswith("torch==2.14") for asked in needed.whole)


def test_what_would_pull_in_a_gpu_build_is_installed_without_what_it_asks_for() -> None:
    alone = requirements(METADATA).alone
    assert {TORCHVISION, MOONCAKE} <= set(alone)
    assert any(asked.startswith("tml-renderers==0.1.0") for asked in alone)


def test_extras_are_not_asked_for() -> None:
    assert not any("accelerate" in asked for asked in requirements(METADATA).whole)


def test_a_line_that_is_no_requirement_is_named() -> None:
    with pytest.raises(ValueError, match="is no requirement"):
        requirements("Requires-Dist: ==1\n")
