"""The largest tiles of the kernels fit the registers of a GPU that need not be there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sfumato.kernels.definitions import Geometry

triton = pytest.importorskip("triton")

HOPPER = ("cuda", 90, 32)


def spilled(kernel: Any, signature: dict[str, str], numbers: dict[str, int], folder: Path) -> int:
    """Bytes that a kernel, compiled for an H100 or H200, stores for lack of registers."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {name: numbers.pop(name) for name in ("num_warps", "num_stages")}
    names = kernel.arg_names
    types = signature | dict.fromkeys(numbers, "constexpr")
    source = ASTSource(
        kernel,
        {name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in numbers.items()},
        attrs={
            (i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if "*" in types[name]
        },
    )
    made = triton.compile(source, target=GPUTarget(*HOPPER), options=options)
    code = folder / "kernel.ptx"
    code.write_text(made.asm["ptx"])
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    told = subprocess.run(
        [assembler, "-v", "--gpu-name", "sm_90a", code, "-o", folder / "kernel.cubin"],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    return sum(int(count) for count in re.findall(r"(\d+) bytes spill stores", told))


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize(("channels", "out", "size", "views"), [(256, 256, 8, 4), (64, 64, 32, 1)])
def test_gradients_stay_in_registers(
    channels: int, out: int, size: int, views: int, directed: bool, tmp_path: Path
) -> None:
    import torch

    from sfumato.kernels import conv

    at = Geometry((3, 3), (1, 1), (1, 1), (1, 1), views)
    x = torch.empty(views, channels, size, size, device="meta")
    settings = conv._settings(x, torch.empty(views, out, size, size, device="meta"), at)
    places = conv._gradients.arg_names
    first = places.index("H")
    numbers = dict(zip(places[first : first + len(settings)], settings, strict=True))
    numbers |= {"KEEP": True, "COUNT": 3 if directed else 1, "SHARE": 1}
    numbers |= conv.tiles(9 * channels, out, views * size * size)
    signature = dict.fromkeys(("x", "d", "direction", "out"), "*bf16")
    signature |= {"statistics": "*fp32", "examples": "i32"}
    assert spilled(conv._gradients, signature, numbers, tmp_path) == 0


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("size", [4, 8])
def test_products_of_patches_stay_in_registers(size: int, centred: bool, tmp_path: Path) -> None:
    from sfumato.kernels.ghost import _ghost

    numbers = {
        "SCALED": int(centred), "H": size, "W": size, "C": 256, "WO": size, "OUT": 256,
        "POSITIONS": size * size, "VIEWS": 64 // (size * size), "STRIDE_H": 1, "STRIDE_W": 1,
        "PAD_H": 1, "PAD_W": 1, "DIL_H": 1, "DIL_W": 1, "KH": 3, "KW": 3, "BT": 64, "BC": 64,
        "num_warps": 4, "num_stages": 3,
    }  # fmt: skip
    signature = {"x": "*bf16", "d": "*bf16", "scales": "*fp32", "out": "*fp32", "rounding": "fp32"}
    assert spilled(_ghost, signature, numbers, tmp_path) == 0
