"""Tables of images: columns, encodings, parts, units, and what is refused of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_layouts import write_image

from sfumato.data import load, table
from sfumato.data.table import list_table
from sfumato.data.units import unit_numbers, with_unit
from sfumato.errors import UserError

Write = Callable[..., Path]
HEADER = "path,label,patient,split"
ROWS = [
    f"images/{k}.png,{'ab'[k % 2]},P{k // 3},{'train' if k < 15 else 'test'}" for k in range(24)
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a table beside 24 images."""
    for k in range(24):
        write_image(tmp_path / "images" / f"{k}.png", mode="L", size=(6, 5), seed=k)

    def written(
        lines: list[str], *, name: str = "table.csv", encoding: str = "utf-8", end: str = "\n"
    ) -> Path:
        path = tmp_path / name
        path.write_bytes(end.join(lines).encode(encoding))
        return path

    return written


def drawn(k: int) -> bytes:
    return np.random.default_rng(k).integers(0, 256, (6, 5), dtype=np.uint8).tobytes()


def assert_whole(path: Path, **options) -> None:
    """Every image of `ROWS` has its label and unit, in its part."""
    found = load(path, unit="patient", **options)
    assert found.classes == ("a", "b")
    number = {drawn(k): k for k in range(24)}
    for part, expected in (("train", range(15)), ("test", range(15, 24))):
        own = found.parts()[part]
        seen = [number[image.tobytes()] for image in own.images]
        assert sorted(seen) == list(expected)
        assert own.labels.tolist() == [k % 2 for k in seen]
        assert own.units.tolist() == unit_numbers([f"P{k // 3}" for k in seen]).tolist()


def test_columns_are_found_by_name(write: Write) -> None:
    assert_whole(write([HEADER, *ROWS]))
    assert_whole(write(["File Path,DIAGNOSIS,Patient-ID,Split", *ROWS]))
    assert_whole(write(["img,dx,pid,Partition", *ROWS, "", ""]))
    found = load(write([HEADER, *ROWS]))
    assert found.name == "table" and any("path from 'path'" in note for note in found.notes)


def test_columns_may_be_given(write: Write) -> None:
    given = ["path=where", "label=what", "unit=who", "split=when"]
    assert_whole(write(["where,what,who,when", *ROWS]), columns=given)
    both = write(["file,label,path,split", *ROWS])
    with pytest.raises(UserError, match=r"several columns .* \('file' and 'path'\)"):
        load(both, unit="patient")
    assert_whole(both, columns=["path=file", "unit=path"])
    no_parts = load(write([HEADER, *ROWS]), columns=["split="], test_fraction=0.4)
    assert any("no test part" in note for note in no_parts.notes)


@pytest.mark.parametrize(
    ("name", "encoding", "separator"),
    [
        ("table.csv", "utf-8", ","),
        ("table.csv", "utf-8-sig", ","),
        ("table.csv", "utf-8-sig", ";"),
        ("table.csv", "utf-16", "\t"),
        ("table.csv", "utf-16", ";"),
        ("table.tsv", "utf-8", "\t"),
        ("TABLE.CSV", "utf-8", ";"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_write(
    write: Write, name: str, encoding: str, separator: str, end: str
) -> None:
    lines = [line.replace(",", separator) for line in (HEADER, *ROWS)]
    assert_whole(write(lines, name=name, encoding=encoding, end=end))
    if separator != "\t":
        lines = [f"sep={separator}", *lines]
        assert_whole(write(lines, name=name, encoding=encoding, end=end))


def test_quotes_spaces_and_windows_paths(write: Write) -> None:
    quoted = [",".join(f'" {cell}"' for cell in line.split(",")) for line in ROWS]
    assert_whole(write([HEADER, *quoted]))
    assert_whole(write([HEADER, *(line.replace("/", "\\") for line in ROWS)]))
    assert_whole(write([HEADER, *(f"./x/../{line}" for line in ROWS)]))


def test_absolute_paths(write: Write, tmp_path: Path) -> None:
    assert_whole(write([HEADER, *(f"{tmp_path}/{line}" for line in ROWS)]))


def test_parquet(write: Write, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    cells = [line.split(",") for line in ROWS]
    columns = {name: [row[k] for row in cells] for k, name in enumerate(HEADER.split(","))}
    path = tmp_path / "table.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    assert_whole(path)
    columns["label"][3] = None
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(UserError, match=r"1 rows without a label \(line 4\)"):
        load(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        load(path)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"sfumato\[parquet\]"):
        load(tmp_path / "table.parquet")


def test_numbered_classes_are_in_the_order_of_numbers(write: Write) -> None:
    lines = [f"images/{k}.png,{(2, 10, 9)[k % 3]}" for k in range(24)]
    assert load(write(["file,class", *lines])).classes == ("2", "9", "10")


def test_parts(write: Write) -> None:
    lines = [line.replace("test", "VALID") for line in ROWS]
    found = load(write([HEADER, *lines]))
    assert len(found.test) == 9 and any("no test rows" in note for note in found.notes)
    lines[-1] = lines[-1].replace("VALID", "Testing").replace("P7", "P8")
    found = load(write([HEADER, *lines]))
    assert (len(found.test), len(found.validation)) == (1, 8)
    with pytest.raises(UserError, match=r"Line 3 of .* has the part 'fold1'"):
        load(write([HEADER, ROWS[0], ROWS[1].replace("train", "fold1")]))
    with pytest.raises(UserError, match="no rows of the part train"):
        load(write([HEADER, *ROWS[15:]]))


def test_units_of_a_table_stay_together(write: Write) -> None:
    path = write(["path,label,patient", *(line.rpartition(",")[0] for line in ROWS)])
    for seed in range(5):
        found = load(path, unit="patient", validation=0.3, test_fraction=0.4, split_seed=seed)
        sets = [set(part.units.tolist()) for part in found.parts().values()]
        assert sum(map(len, sets)) == 8 == len(set.union(*sets))


def test_units_by_the_word_that_the_user_has(write: Write) -> None:
    path = write(["path,label,eye_id,split", *ROWS])
    assert load(path, unit="eye").train.examples == 5
    with pytest.raises(UserError, match="belong to one patient: it has 'path'"):
        load(path, unit="patient")
    found = load(path, unit="patient", unit_pattern=r"images/(?P<unit>\d)", columns=["split="])
    assert found.train.examples + found.test.examples == 10
    with pytest.raises(UserError, match="give one of them"):
        load(path, unit="eye", unit_pattern="(?P<unit>.)", columns=["unit=eye_id"])


def test_units_that_nobody_asked_for(write: Write) -> None:
    path = write([HEADER, *ROWS])
    assert any("--unit patient" in note for note in with_unit(load(path), "image").notes)
    lines = [ROWS[0].replace("P0", ""), *ROWS[1:]]
    assert load(write([HEADER, *lines])).train.units is None
    with pytest.raises(UserError, match=r"1 rows without a unit \(line 2\)"):
        load(write([HEADER, *lines]), unit="patient")


def test_a_unit_in_two_parts_is_refused_by_name(write: Write) -> None:
    lines = [line.replace("P6", "P2") for line in ROWS]
    with pytest.raises(UserError, match=r"same patient are in train and in test \('P2'\)"):
        load(write([HEADER, *lines]), unit="patient")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "is empty"),
        ([HEADER], "a header and no rows"),
        (["a,b,c,d", *ROWS], r"no column for the path .* it has 'a', 'b', 'c', 'd'"),
        (["path,kind,c,d", *ROWS], r"no column for the label .* 'path', 'kind', 'c', 'd'"),
        ([HEADER, ROWS[0], "images/1.png,b"], "Line 3 of .* has 2 cells, but the header has 4"),
        ([HEADER, *ROWS, ROWS[4]], "several rows for 'images/4.png'"),
        ([HEADER, *ROWS, f"./{ROWS[4]}"], "several rows for 'images/4.png'"),
        ([HEADER, *(line.replace(",b,", ",,") for line in ROWS)],
         r"12 rows without a label \(line 3, 5, 7, 9, 11 and others\)"),
        ([HEADER, *(line.replace(",b,", ",a,") for line in ROWS)], "only one class, 'a'"),
        ([HEADER, *(line.replace("images/", "scans/") for line in ROWS)],
         "24 of 24 files .* 'scans/0.png', .*'scans/4.png' and 19 more. Paths are relative"),
        ([HEADER, "images,a,P,train", *ROWS], "1 of 25 files .* do not exist: 'images'"),
        ([HEADER, *ROWS[:-1], ROWS[-1].replace(",b,", ",z,")], "no training rows of 'z'"),
        ([HEADER, *ROWS[:3], 'images/3.png,"b,P1,train'], "cannot be read after line 4"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(write: Write, lines: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load(write(lines))


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for content, sentence in (
        (b"PK\x03\x04 and so on", "is a workbook"),
        ("path,label\na.png,x\n".encode("utf-16-le"), "UTF-16 without its mark"),
        ("path,label\na.png,x\nb.png,Grün\n".encode("cp1252"), "no UTF-8 text"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            load(path)


def test_bad_columns_are_refused(write: Write, tmp_path: Path) -> None:
    path = write([HEADER, *ROWS])
    for columns, sentence in (
        (["label"], "not ROLE=COLUMN"),
        (["labels=label"], "Did you mean 'label'"),
        (["label=label", "label=path"], "twice"),
        (["label=lable"], r"no column 'lable': it has 'path', .*Did you mean 'label'"),
    ):
        with pytest.raises(UserError, match=sentence):
            load(path, columns=columns)
    with pytest.raises(UserError, match="columns of a table"):
        load(tmp_path / "images", columns=["label=dx"])


def test_a_large_table_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 8_000
    lines = (f"images/{k // 1000}/{k:07d}.png,{k % 5},P{k // 4:06d}" for k in range(count))
    (tmp_path / "table.csv").write_text("\n".join(["path,label,patient", *lines]))
    monkeypatch.setattr(table.os.path, "isfile", lambda path: True)
    tracemalloc.start()
    try:
        found = list_table(tmp_path / "table.csv", columns=(), unit="patient", pattern="")
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.files) == count and len(np.unique(found.units)) == count / 4
    assert kept / count < 100 and peak / count < 200
