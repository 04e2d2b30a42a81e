"""Fetching data sets, from a server on this machine and from nowhere."""

from __future__ import annotations

import functools
import hashlib
import http.server
import tarfile
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from data_layouts import write_cifar, write_idx, write_tiny_imagenet

from sfumato.data import catalogue, download, load
from sfumato.errors import UserError


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder and the address under which its files can be fetched."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()


def offer(monkeypatch, name, base, folder):
    """Let the catalogue point to the server, first to an address that answers with an error."""
    entry = catalogue.CATALOGUE[name]
    items = []
    for item in entry.downloads:
        file = item.path.rsplit("/", 1)[-1]
        content = (folder / file).read_bytes() if (folder / file).exists() else b"not there"
        urls = (f"{base}missing/{file}", base + file)
        items.append(replace(item, urls=urls, md5=hashlib.md5(content).hexdigest()))
    changed = replace(entry, downloads=tuple(items))
    monkeypatch.setitem(catalogue.CATALOGUE, name, changed)
    return changed


def test_idx_files_are_fetched_and_found(server, monkeypatch, cache):
    folder, base = server
    write_idx(folder / "raw", zipped=True)
    for path in (folder / "raw").iterdir():
        path.rename(folder / path.name)
    offer(monkeypatch, "mnist", base, folder)
    lines = []
    place = download.get("mnist", say=lines.append)
    assert place == cache / "MNIST" / "raw" and len(list(place.iterdir())) == 4
    assert len(load("mnist").train) == 30
    download.get("mnist", say=lines.append)
    assert "is there already" in lines[-1]


def test_archives_are_unpacked(server, monkeypatch, tmp_path):
    folder, base = server
    images = write_cifar(tmp_path / "cifar-10-batches-py", "cifar10")
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    offer(monkeypatch, "cifar10", base, folder)
    download.get("cifar10", to=tmp_path / "data")
    assert (tmp_path / "data" / "cifar-10-batches-py" / "data_batch_5").is_file()
    assert np.array_equal(load("cifar10", root=tmp_path / "data").train.images, images)
    assert not list((tmp_path / "data").glob(".unpacking*"))

    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    with zipfile.ZipFile(folder / "tiny-imagenet-200.zip", "w") as packed:
        for path in (tmp_path / "tiny-imagenet-200").rglob("*"):
            packed.write(path, path.relative_to(tmp_path))
    offer(monkeypatch, "tiny-imagenet", base, folder)
    download.get("tiny-imagenet", to=tmp_path / "data")
    assert load("tiny-imagenet", root=tmp_path / "data").classes == ("cat", "dog")


def test_offline_says_what_to_put_where(monkeypatch, tmp_path):
    def unreachable(url, **_):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("pooch.retrieve", unreachable)
    for name in ("mnist", "cifar100", "imagenette"):
        with pytest.raises(UserError) as caught:
            download.get(name, to=tmp_path)
        message = str(caught.value)
        assert "Network is unreachable" in message
        for item in catalogue.entry(name).downloads:
            assert f"{item.urls[0]} (md5 {item.md5}) to {tmp_path / item.path}" in message
        assert f"`sfumato data get {name} --to {tmp_path}`" in message


def test_a_refused_connection_is_a_sentence(server, monkeypatch, tmp_path):
    folder, _ = server
    offer(monkeypatch, "imagenette", "http://127.0.0.1:9/", folder)
    with pytest.raises(
        UserError, match=r"imagenette2-160\.tgz could not be downloaded \(127\.0\.0\.1: no conn"
    ):
        download.get("imagenette", to=tmp_path / "data")


def test_a_wrong_checksum_is_refused(server, monkeypatch, tmp_path):
    folder, base = server
    (folder / "imagenette2-160.tgz").write_bytes(b"as published")
    offer(monkeypatch, "imagenette", base, folder)
    (folder / "imagenette2-160.tgz").write_bytes(b"tampered with")
    with pytest.raises(UserError, match="does not match the known hash"):
        download.get("imagenette", to=tmp_path / "data")
    assert not (tmp_path / "data" / "imagenette2-160.tgz").exists()


def test_a_file_put_there_by_hand_is_checked_and_unpacked(monkeypatch, tmp_path):
    def nothing(*_, **__):
        raise AssertionError("nothing needs to be fetched")

    monkeypatch.setattr("pooch.retrieve", nothing)
    write_cifar(tmp_path / "cifar-100-python", "cifar100")
    home = tmp_path / "data"
    home.mkdir()
    with tarfile.open(home / "cifar-100-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-100-python", "cifar-100-python")
    with pytest.raises(UserError, match="md5 is not eb9058c3a382ffc7106e4002c42a8d85"):
        download.get("cifar100", to=home)
    assert (home / "cifar-100-python.tar.gz").exists(), "nothing of the user's is removed"
    offer(monkeypatch, "cifar100", "http://127.0.0.1:9/", home)
    assert download.get("cifar100", to=home) == home / "cifar-100-python"
    assert len(load("cifar100", root=home).test) == 20


def test_archives_cannot_write_elsewhere(monkeypatch, tmp_path):
    home = tmp_path / "data"
    home.mkdir()
    (tmp_path / "payload").write_text("harm")
    with tarfile.open(home / "imagenette2-160.tgz", "w:gz") as tar:
        tar.add(tmp_path / "payload", "../escaped")
    offer(monkeypatch, "imagenette", "http://127.0.0.1:9/", home)
    with pytest.raises(UserError, match="cannot be unpacked"):
        download.get("imagenette", to=home)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "payload"]
    assert [path.name for path in home.iterdir()] == ["imagenette2-160.tgz"]


def test_what_cannot_be_fetched(tmp_path):
    with pytest.raises(UserError, match="comes with sfumato"):
        download.get("digits")
    with pytest.raises(UserError, match="Did you mean 'cifar10'"):
        download.get("cifar1")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="could not be downloaded"):
        download.get("mnist", to=tmp_path / "file")
