"""Tables and figures come from results alone, and say what was missed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from PIL import Image
from tiny_rows import entry, paper, row

from sfumato.errors import UserError
from sfumato.reproduce import cifar10_front, figures, lookup, results_file, rows, tables
from sfumato.reproduce.lookup import every_row, find, find_all
from sfumato.reproduce.plots import PLOTS, Plot
from sfumato.reproduce.row import PLD
from sfumato.reproduce.rows import PAPERS
from thinning import one_in


@pytest.fixture
def tiny_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    made = (paper(row("hit", 60.0), row("miss", 71.86), row("open"), row("waiting", 50.0)),)
    for module in (lookup, rows, tables, cifar10_front):
        monkeypatch.setattr(module, "PAPERS", made)


def write(folder: Path, name: str, *accuracies: float) -> None:
    for seed, accuracy in enumerate(accuracies):
        results_file.append(folder, entry(every_row()[f"tiny/{name}"], accuracy, seed=seed))


def cells(page: str, name: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.usefixtures("real_pictures")
@pytest.mark.usefixtures("tiny_paper")
def test_a_page_says_what_was_reached_missed_and_not_run(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write(results, "hit", 0.62, 0.59, 0.605)
    write(results, "miss", 0.7)
    write(results, "open", 0.3)
    tables.render(results, tmp_path / "docs")
    page = (tmp_path / "docs" / "tiny.md").read_text(encoding="utf-8")
    assert cells(page, "hit") == [
        "hit", "3.00", "as published", "60", "**60.50**", "62.00, 59.00, 60.50", "59.00 – 62.00",
        "reached, +0.5", "2.5",
    ]  # fmt: skip
    assert cells(page, "miss")[4:8] == ["**70.00**", "70.00", "one seed", "**missed** by 1.86"]
    assert cells(page, "open")[7] == ""
    assert cells(page, "waiting")[4] == "not run"
    assert page.endswith(
        "## Missed by more than one point\n\n"
        "**miss** (published 71.86, ours 70.00, missed by 1.86): Not yet explained.\n"
    )
    index = (tmp_path / "docs" / "README.md").read_text(encoding="utf-8")
    assert "Of 4 rows 3 have a published number, and 2 of these were run: 1 reached it" in index
    assert "| [tiny](tiny.md) | Nobody | 4 | 3 | 1 | 1 | 1 |" in index
    assert (tmp_path / "docs" / "pareto-cifar10.png").stat().st_size > 10_000


def test_the_pages_are_those_of_the_recorded_results(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    written = tables.render(root / "results", tmp_path / "docs" / "results")
    pages = [path for path in written if path.suffix == ".md"]
    assert len(pages) == len(PAPERS) + 1
    for page in pages:
        kept = root / "docs" / "results" / page.name
        assert kept.read_text("utf-8") == page.read_text("utf-8"), f"render {kept} again"


def test_a_page_names_what_best_improves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    better = row("hit", 60.0, best=PLD | {"training.batch": 64})
    made = (paper(better, row("plain", 60.0)),)
    for module in (lookup, rows, tables, cifar10_front):
        monkeypatch.setattr(module, "PAPERS", made)
    for name in ("hit", "plain"):
        one = entry(every_row()[f"tiny/{name}"], 0.7, setting="best")
        results_file.append(tmp_path / "results", one)
    tables.render(tmp_path / "results", tmp_path / "docs")
    page = (tmp_path / "docs" / "tiny.md").read_text(encoding="utf-8")
    assert "- *best* of hit: noise by PLD, and `training.batch = 64`.\n" in page
    assert page.count("*best* of") == 1


def test_a_page_mentions_what_our_own_row_reaches_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = paper(row("hit", 60.0), row("miss", 71.86))
    answer = dataclasses.replace(row("answer", 60.0), paper="own", answers=("tiny/miss",))
    ours = dataclasses.replace(paper(answer), key="own")
    for module in (lookup, rows, tables, cifar10_front):
        monkeypatch.setattr(module, "PAPERS", (theirs, ours))
    docs = tmp_path / "docs"
    tables.render(tmp_path, docs)
    assert "In place of" not in (docs / "tiny.md").read_text(encoding="utf-8")
    results_file.append(tmp_path, entry(every_row()["own/answer"], 0.7754))
    tables.render(tmp_path, docs, only="own")
    page = (docs / "tiny.md").read_text(encoding="utf-8")
    assert "- In place of miss: [answer](own.md) has 77.54 (table 1)." in page


def test_what_rows_answer_exists() -> None:
    known = every_row()
    named = {id_ for row in known.values() for id_ in row.answers}
    assert named and all(known[id_].id == id_ for id_ in named)


@pytest.mark.usefixtures("tiny_paper")
def test_a_result_of_an_earlier_recipe_is_not_shown(tmp_path: Path) -> None:
    old = row("hit", 60.0, changes={"optimizer.lr": 0.5})
    results_file.append(tmp_path, entry(old, 0.9))
    tables.render(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "tiny.md").read_text(encoding="utf-8")
    assert cells(page, "hit")[4] == "not run"
    assert "Left out: 1 result, of" in page


@pytest.mark.usefixtures("tiny_paper")
def test_a_run_on_a_part_of_the_images_says_so(tmp_path: Path) -> None:
    whole = entry(every_row()["tiny/hit"], 0.9)
    results_file.append(tmp_path, dataclasses.replace(whole, examples=700))
    results_file.append(tmp_path, dataclasses.replace(whole, row="tiny/open", examples=1438))
    tables.render(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "tiny.md").read_text(encoding="utf-8")
    assert cells(page, "hit")[2] == "as published, on 700 images"
    assert cells(page, "open")[2] == "as published"


def test_every_figure_draws_rows_that_exist_beside_a_table_that_exists() -> None:
    known = every_row()
    for plot in PLOTS:
        assert all(name in known for name in plot.rows()), plot.name
        (mine,) = [p for p in PAPERS if p.key == plot.paper]
        assert plot.source in dict(mine.sources())


@pytest.mark.usefixtures("real_pictures")
@pytest.mark.parametrize("plot", one_in(4, PLOTS), ids=lambda p: f"{p.paper}-{p.name}")
def test_a_figure_is_drawn_from_a_single_result(
    plot: Plot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PLOTS", (plot,))
    first = every_row()[next(iter(plot.rows()))]
    made = [entry(first, 0.8, setting=first.settings[0])]
    (drawn,) = figures.draw(plot.paper, made, tmp_path)
    assert (drawn.file, drawn.source) == (f"{plot.paper}-{plot.name}.png", plot.source)
    assert (tmp_path / drawn.file).stat().st_size > 4_000


def test_curves_say_which_images_they_are_of() -> None:
    plot = next(p for p in PLOTS if (p.paper, p.name) == ("optimizer-report", "curves"))
    rows = [every_row()[name] for name in plot.rows()]
    of = ("validation images", "training batches")
    made = [
        dataclasses.replace(e, curve=e.curve | {"of": what})
        for e, what in zip([entry(row, 0.8) for row in rows], of, strict=False)
    ]
    said = [figures._curves(plot.panels[0], plot, some).y.label for some in (made[:1], made)]
    assert said == [
        "accuracy on validation images", "accuracy on training batches or validation images",
    ]  # fmt: skip


def test_a_line_does_not_go_from_one_setting_to_the_other() -> None:
    names = [f"shoe-fit/transfer-max-100-cifar10-eps{e}" for e in ("0.32", "1.04", "2.12")]
    plot = next(p for p in PLOTS if p.name == "transfer")
    rows = [every_row()[name] for name in names]
    odd = entry(rows[2], 0.1)
    best = [entry(row, 0.5 + i / 10, setting="best") for i, row in enumerate(rows)]
    assert figures._alike([odd, *best], names, plot) == [[e] for e in best]
    assert figures._alike([odd, *best[:1]], names, plot) == [[], [], [odd]]


def test_dots_are_of_the_setting_of_most_and_of_another_for_what_has_no_other() -> None:
    plot = next(p for p in PLOTS if p.name == "groups")
    c4, c8, c16, d4 = (
        every_row()[f"equivariant/eq-resnet9-{g}-cifar10-eps2"] for g in ("c4", "c8", "c16", "d4")
    )
    made = [entry(row, 0.5 + k / 10, setting="best") for k, row in enumerate((c4, c16, d4))]
    made += [entry(d4, 0.9), entry(c8, 0.8)]
    chart = figures._dots(plot.panels[0], plot, made)
    shown = {s.points[0] for s in chart.items if s.size == 1.8}
    assert shown == {(0.5, 0.0), (0.6, 2.0), (0.7, 3.0), (0.8, 1.0)}


@pytest.mark.parametrize("plot", [p for p in PLOTS if p.one_change], ids=lambda p: p.name)
def test_where_one_number_changes_best_settings_are_left_out(plot: Plot, tmp_path: Path) -> None:
    """Which may have another batch than the place in the figure says."""
    made = [entry(every_row()[name], 0.8, setting="best") for name in plot.rows()]
    assert f"{plot.paper}-{plot.name}.png" not in [
        drawn.file for drawn in figures.draw(plot.paper, made, tmp_path)
    ]


@pytest.mark.usefixtures("real_pictures")
def test_a_panel_of_which_nothing_was_run_takes_no_room(tmp_path: Path) -> None:
    one, both = tmp_path / "one", tmp_path / "both"
    names = [f"scale-norm/resnet9-{data}-eps2.89" for data in ("cifar10", "imagenette")]
    for out, made in ((one, names[:1]), (both, names)):
        out.mkdir()
        figures.draw("scale-norm", [entry(every_row()[name], 0.8) for name in made], out)
    wide = [Image.open(out / "scale-norm-budgets.png").width for out in (one, both)]
    assert wide[0] < 0.7 * wide[1]


def test_a_page_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("my notes")
    with pytest.raises(UserError, match="was not written by"):
        tables.render(tmp_path, docs)
    assert [p.name for p in docs.iterdir()] == ["README.md"]
    (docs / "README.md").unlink()
    tables.render(tmp_path, docs)
    tables.render(tmp_path, docs)


def test_without_results_no_figure_is_drawn(tmp_path: Path) -> None:
    assert [f for p in PAPERS for f in figures.draw(p.key, [], tmp_path)] == []


def test_patterns_and_several_names_mean_each_row_once() -> None:
    several = "scale-norm/*resnet9-cifar10-*", "scale-norm/resnet9-cifar10-eps7.42"
    rows_ = find_all([*several, "shoe-fit/fashion-tanh"])
    names = [row.name for row in rows_]
    assert len(names) == 7 and names[-1] == "tanh-b1024-fashion-eps2.7"
    assert all("cifar10" in name for name in names[:-1])
    with pytest.raises(UserError, match="No row of paper scale-norm is called like"):
        find_all(["scale-norm/*cifar11*"])


def test_rows_are_unique_and_found_by_name_and_alias() -> None:
    names = [
        n for p in PAPERS for r in p.rows for n in (r.id, f"{p.key}/{r.alias}") if n[-1] != "/"
    ]
    assert len(names) == len(set(names))
    assert find("shoe-fit/fashion-tanh")[1][0].name == "tanh-b1024-fashion-eps2.7"
    own = [name for name in every_row() if name.startswith("equivariant/")]
    assert [row_.id for row_ in find("equivariant")[1]] == own
    for row_ in every_row().values():
        for start in filter(None, (row_.needs, row_.best_needs)):
            assert find(start.id)[1] == (start,)


@pytest.mark.parametrize(
    ("name", "said"),
    [("005", "no paper '005'"), ("shoe-fit/fashion-tan", "Did you mean 'fashion-tanh'")],
)
def test_unknown_names_are_explained(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find(name)


def test_a_run_as_published_is_calibrated_as_the_papers_did() -> None:
    for row_ in every_row().values():
        private = row_.recipe_for("published").privacy.enabled
        if "published" in row_.settings and len(row_.settings) == 2 and private:
            assert row_.recipe_for("published").privacy.accountant == "rdp", row_.id
            best = row_.recipe_for("best").privacy
            assert (best.accountant, best.noise_multiplier) == ("pld", None), row_.id


def test_without_privacy_there_are_best_settings_only_where_they_change_more_than_noise() -> None:
    plain, improved = (
        row("bare", changes={"privacy.enabled": False}, **more)
        for more in ({}, {"best": {"training.average": 0.9}})
    )
    assert (plain.settings, improved.settings) == (("published",), ("published", "best"))
    recipe = improved.recipe_for("best")
    assert (recipe.privacy.enabled, recipe.training.average) == (False, 0.9)


def test_what_starts_from_drawn_images_is_a_line_of_its_own() -> None:
    series = dict(cifar10_front._series())
    assert [row.name for row in series["after drawn images"]] == [
        "leaves-cifar10-eps1", "leaves-cifar10-eps2",
        "leaves-cifar10-eps3", "leaves-wrn-16-4-cifar10-eps3",
        "leaves-cifar10-eps8", "leaves-wrn-16-4-cifar10-eps8",
        *(f"mixture-cifar10-eps{eps}" for eps in (1, 2, 3, 8)),
        "fixed-layers-mnist-eps2.93", "fixed-layers-fashion-eps2.7",
        "fixed-layers-cifar10-eps1", "two-networks-cifar10-eps1",
    ]  # fmt: skip
    grey = entry(every_row()["sfumato/fixed-layers-mnist-eps2.93"], 0.9, setting="best")
    assert not cifar10_front._points([grey], series["after drawn images"]), "of CIFAR-10 alone"
    names = {row.name for rows in series.values() for row in rows}
    assert not any("transfer" in name for name in names), "public images are another matter"
    leaves, own = every_row()["sfumato/leaves-cifar10-eps1"], every_row()["sfumato/cifar10-eps1"]
    found = [entry(leaves, 0.7, setting="best"), entry(own, 0.6, setting="best")]
    (point,) = cifar10_front._points(found, series["after drawn images"])
    assert point == cifar10_front.Point(1.0, leaves.recipe_for("best").model.name, 0.7, 0.7, 0.7)
    (point,) = cifar10_front._points(found, series["own recipes"])
    assert point.accuracy == 0.6
    assert every_row()["sfumato/dead-leaves"].settings == ("published",)


def test_lines_join_the_points_of_one_network_alone() -> None:
    names = (
        "scale-resnet9-cifar10-eps2.89",
        "scale-resnet9-cifar10-eps9.88",
        "wrn-16-4-cifar10-eps8",
    )
    made = [entry(every_row()[f"scale-norm/{name}"], 0.8, setting="best") for name in names]
    points = cifar10_front._points(made, dict(cifar10_front._series())["scale-norm"])
    found = list(cifar10_front._ours("scale-norm", points, 0))
    assert [[x for x, _ in s.points] for s in found] == [[2.89, 9.88], [8.0]]
    assert [s.label for s in found] == ["ours: scale-norm (scale-resnet9, wrn-16-4)", ""]


def test_of_points_at_one_epsilon_a_curve_shows_the_last() -> None:
    curve = {
        "epsilon": [1.0, 2.0, 2.0, 3.0],
        "step": [1, 2, 3, 4],
        "accuracy": [0.1, 0.2, 0.3, 0.4],
    }
    assert figures._path(curve) == ([1.0, 2.0, 3.0], [0.1, 0.3, 0.4], [1, 3, 4])
    assert figures._path(curve | {"epsilon": []})[0] == [1, 2, 3, 4]


def test_what_other_rows_start_from_is_no_point_of_the_front() -> None:
    names = {row.name for row in dict(cifar10_front._series())["shoe-fit"]}
    assert "he-cifar10-eps19.2" in names and "sgd-cifar10-eps8" in names
    assert not names & {"meanvar-source-cifar10-eps4", "meanvar-cifar10-eps19.2"}
