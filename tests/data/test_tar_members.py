"""Tar files read strictly, beside Python's own reader."""

from __future__ import annotations

import io
import tarfile

import pytest
from data_layouts import write_tar

from sfumato.data.tar_members import members, shard_open
from sfumato.errors import UserError


def found(path):
    with shard_open(path) as file:
        return list(members(path, file))


NAMES = {
    "a.png": b"1" * 700,
    "b.cls": b"",
    "folder/c.png": b"3" * 512,
    f"{'deep/' * 30}d.png": b"4",
    f"{'x' * 180}.png": b"5",
    "größe.png": b"6" * 513,
}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_same_as_tarfile(tmp_path, form):
    names = {name: NAMES[name] for name in NAMES if len(name) < 170 or form != tarfile.USTAR_FORMAT}
    path = write_tar(tmp_path / "a.tar", names, format=form)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar.getmembers()]
    assert found(path) == expected
    assert [name for name, *_ in expected] == list(names)
    with shard_open(path) as file:
        for member in members(path, file):
            file.seek(member.first)
            assert file.read(member.length) == names[member.path]


def test_times_in_extended_headers_as_webdataset_writes_them(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for k in range(3):
            member = tarfile.TarInfo(f"{k}.cls")
            member.size, member.mtime = 1, 1.5 + k
            tar.addfile(member, io.BytesIO(str(k).encode()))
    assert [member.path for member in found(tmp_path / "a.tar")] == ["0.cls", "1.cls", "2.cls"]


def test_every_way_to_cut_a_file_short_is_noticed(tmp_path):
    """Python's reader takes a cut at most places for the end."""
    path = write_tar(tmp_path / "a.tar", {"one.png": b"1" * 700, "two.png": b"2" * 100})
    whole = path.read_bytes()
    end = 512 + 1024 + 512 + 512
    for length in range(256, end + 1, 256):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut short|damaged at its beginning"):
            found(path)
    path.write_bytes(whole[: 512 + 600])
    with pytest.raises(UserError, match=r"a\.tar is cut short: it ends inside 'one\.png'"):
        found(path)
    path.write_bytes(whole[:end])
    with pytest.raises(UserError, match=r"after 'two\.png', without the mark of its end"):
        found(path)
    path.write_bytes(whole[: end + 512])
    assert len(found(path)) == 2


def test_damage_is_not_the_end(tmp_path):
    path = write_tar(tmp_path / "a.tar", {f"{k}.png": b"x" for k in range(3)})
    raw = bytearray(path.read_bytes())
    raw[1024 + 3] ^= 1  # In the name of the second member.
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"damaged after '0\.png'"):
        found(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        folder, link = tarfile.TarInfo("folder"), tarfile.TarInfo("folder/a.png")
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, kind, "/etc/passwd"
        tar.addfile(folder)
        tar.addfile(link)
    with pytest.raises(UserError, match=r"'folder/a\.png', which is not a plain file"):
        found(tmp_path / "a.tar")


def test_what_is_no_tar_file_is_refused(tmp_path):
    path = tmp_path / "a.tar"
    for content in (b"", b"text" * 200):
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a tar file"):
            found(path)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(UserError, match="is compressed"):
        found(path)
    with pytest.raises(UserError, match=r"b\.tar cannot be read \(No such file"):
        found(tmp_path / "b.tar")


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path):
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 1 << 32
    first = write_tar(tmp_path / "a.tar", {"a.png": b"x"}).read_bytes()[:1024]
    (tmp_path / "a.tar").write_bytes(first + member.tobuf(tarfile.USTAR_FORMAT) + bytes(2048))
    with pytest.raises(UserError, match=r"damaged after 'a\.png'"):
        found(tmp_path / "a.tar")
