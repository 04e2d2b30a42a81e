"""ChaCha20 and the normal numbers made of it: known answers, statistics, and the kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sfumato.kernels import AVAILABLE, chacha20

CPU = torch.device("cpu")
ZERO = bytes(32)


def stream(key: bytes, count: int, block: int = 0) -> bytes:
    return chacha20.words(key, count, block=block).tobytes()


# RFC 8439, appendix A.1, test vectors 1, 2 and 3 (nonces of zero).
KNOWN = [
    (ZERO, 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
              "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"),
    (ZERO, 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
              "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"),
    (bytes(31) + b"\x01", 1, "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
                             "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "block", "wanted"), KNOWN)
def test_known_answers(key: bytes, block: int, wanted: str) -> None:
    assert stream(key, 8, block).hex() == wanted


def test_blocks_follow_each_other() -> None:
    whole = stream(ZERO, 80)
    assert stream(ZERO, 8, 7) == whole[7 * 64 : 8 * 64]
    assert stream(ZERO, 3) == whole[:24]


def test_a_stream_ends() -> None:
    assert len(stream(ZERO, 8, 2**32 - 1)) == 64
    with pytest.raises(ValueError, match="blocks"):
        stream(ZERO, 9, 2**32 - 1)
    with pytest.raises(ValueError, match="32 bytes"):
        stream(bytes(16), 1)


def test_the_transform_by_hand() -> None:
    pairs = np.array([[0, 0], [2**64 - 1, 2**63], [2**63, 2**62]], dtype=np.uint64)
    drawn = torch.empty(pairs.size, dtype=torch.float64)
    chacha20.BoxMuller(len(pairs))(pairs.reshape(-1), drawn)
    found = drawn.tolist()
    half = math.sqrt(-2 * math.log(0.5))
    assert found[0] == pytest.approx(chacha20.FARTHEST) == pytest.approx(9.4926, abs=1e-4)
    assert found[1] == 0.0
    assert abs(found[2]) < 1e-9 and abs(found[3]) < 1e-9
    assert found[4:] == pytest.approx([0.0, half], abs=1e-12)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_any_count(count: int) -> None:
    found = chacha20.normals(ZERO, count, CPU)
    assert found.shape == (count,) and found.dtype == torch.float64
    assert torch.equal(found, chacha20.normals(ZERO, 1000, CPU)[:count])


def test_long_draws_are_those_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chacha20.normals(ZERO, 1003, CPU, block=5)
    monkeypatch.setattr(chacha20, "_AT_ONCE", 16)
    monkeypatch.setattr(chacha20, "_WORKSPACE", chacha20._Workspace())
    assert torch.equal(chacha20.normals(ZERO, 1003, CPU, block=5), whole)


def beyond(counts: torch.Tensor, limits: list[float], draws: int) -> float:
    """The smallest p-value of the numbers beyond each limit, of both signs together."""
    return min(
        float(stats.binomtest(int(n), draws, 2 * stats.norm.sf(limit)).pvalue)
        for n, limit in zip(counts.tolist(), limits, strict=True)
    )


def check_statistics(draws: int, key: bytes, device: torch.device = CPU) -> None:
    """Moments, a chi-square test over 200 cells of equal probability, and tails."""
    limits = [1.0, 2.0, 3.0, 4.0, 5.0, 5.5]
    edges = torch.tensor(stats.norm.ppf(np.linspace(0, 1, 201)[1:-1]), device=device)
    cells = torch.zeros(200, dtype=torch.int64, device=device)
    tails = torch.zeros(len(limits), dtype=torch.int64)
    size, sums = 1 << 20, torch.zeros(4, dtype=torch.float64, device=device)
    for start in range(0, draws, size):
        z = chacha20.normals(key, min(size, draws - start), device, block=start // 8)
        cells += torch.bincount(torch.bucketize(z, edges), minlength=200)
        tails += torch.tensor([int((z.abs() > limit).sum()) for limit in limits])
        sums += torch.stack([z.sum(), z.square().sum(), z.pow(3).sum(), z.pow(4).sum()])
    moments = (sums / draws).cpu()
    spread = [1.0, math.sqrt(2), math.sqrt(15), math.sqrt(96)]
    for found, wanted, deviation in zip(moments.tolist(), (0, 1, 0, 3), spread, strict=True):
        assert abs(found - wanted) < 5 * deviation / math.sqrt(draws)
    assert stats.chisquare(cells.cpu().numpy()).pvalue > 1e-4
    assert beyond(tails, limits, draws) > 1e-4


def test_statistics() -> None:
    check_statistics(4_000_000, bytes(range(32)))


@pytest.mark.slow
def test_statistics_of_a_hundred_million() -> None:
    check_statistics(100_000_000, bytes(range(1, 33)))


@pytest.mark.skipif(not AVAILABLE, reason="needs CUDA and Triton")
def test_statistics_of_a_hundred_million_on_the_device() -> None:
    check_statistics(100_000_000, bytes(range(2, 34)), torch.device("cuda"))


def compare(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """The kernel against its definition, for keys and counters with every bit set."""
    from sfumato.kernels.chacha20_triton import normals

    for key in (bytes(range(200, 232)), bytes([255] * 32)):
        for block, count in ((0, 0), (0, 1), (1, 3000), (2**32 - 9, 72)):
            ours = normals(key, count, torch.device(device), block=block).cpu()
            wanted = chacha20.normals(key, count, CPU, block=block)
            assert ours.shape == wanted.shape and ours.dtype == torch.float64
            assert not count or float((ours - wanted).abs().max()) < 1e-14


@pytest.mark.skipif(not AVAILABLE, reason="needs CUDA and Triton")
def test_kernel_on_the_device_equals_its_definition() -> None:
    compare("cuda", torch.float64, 0.0)
