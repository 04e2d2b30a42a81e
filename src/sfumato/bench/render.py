"""Generation of the tables in `docs/performance.md` and the README from committed records."""

from __future__ import annotations

from pathlib import Path

from sfumato.bench import picture, profiling, record, record_tables, speed_table
from sfumato.bench.targets import verdicts
from sfumato.errors import UserError
from sfumato.io.marked_block import has_block, replace_block

RESULTS = Path("benchmarks/results")
PAGE = Path("docs/performance.md")
README = Path("README.md")
IMAGES = Path("images")
BEGIN = "<!-- sfumato bench --render: begin -->"
END = "<!-- sfumato bench --render: end -->"


def render(root: Path) -> list[Path]:
    """Write tables and pictures of every record into the page; the text around them stays.

    Args:
        root: The checkout.

    Returns:
        The files written, the page first.
    """
    page, results = root / PAGE, root / RESULTS
    if not page.is_file():
        raise UserError(
            f"{page} is not there: run `sfumato bench --render` at the top of a checkout."
        )
    if not has_block(page, BEGIN, END):
        raise UserError(f"{page} lacks the lines '{BEGIN}' and '{END}', between which to write.")
    records = [record.read(path) for path in sorted(results.glob("*.json"))]
    records.sort(key=lambda r: r.date, reverse=True)
    records.sort(key=lambda r: not r.cuda)
    written = [page]
    sections = []
    for one in records:
        section, pictures = _section(one, page.parent)
        sections.append(section)
        written += pictures
    content = "\n\n".join(sections) or "No measurement is recorded yet."
    replace_block(page, BEGIN, END, f"\n{content}\n")
    front = root / README
    if front.is_file() and replace_block(front, BEGIN, END, speed_table.table(records)):
        written.append(front)
    return written


def _section(one: record.Record, folder: Path) -> tuple[str, list[Path]]:
    """A heading, the command, tables and pictures of one record."""
    assert one.path is not None
    name, images = one.path.stem, folder / IMAGES
    images.mkdir(exist_ok=True)
    machine = one.hardware["gpu"] if one.cuda else "CPU"
    parts = [
        f"### {machine}, {one.date[:10]}",
        f"{one.where()}; commit {one.commit}; [`{one.path.name}`](../{RESULTS}/{one.path.name}):",
        f"    {one.command}",
    ]
    if again := one.settings.get("resumed"):
        times = " and ".join(_minute(when) for when in (one.date, *again))
        parts.append(f"Measured in {1 + len(again)} parts, begun {times}.")
    if not one.finished:
        parts.append("This run was cut short; what it had measured by then is shown.")
    drawn = []
    for kind, draw in (("", picture.bars), ("-scaling", picture.curves)):
        path = images / f"performance-{name}{kind}.png"
        if draw(one, path):
            drawn.append(path)
            words = "Scaling" if kind else "Views per second"
            parts.append(f"![{words} on {machine}]({IMAGES}/{path.name})")
    main = [m for m in one.measurements if not m.case.scaling]
    scaled = [m for m in one.measurements if m.case.scaling]
    if found := verdicts(one):
        parts.append(record_tables.verdicts_markdown(found))
    if main:
        parts.append(record_tables.measurements_markdown(main))
    if scaled:
        parts += ["Scaling:", record_tables.measurements_markdown(scaled)]
    parts += [profiling.to_markdown(profiling.read(p)) for p in one.profiles]
    return "\n\n".join(parts), drawn


def _minute(when: str) -> str:
    """A date and time to the minute, in a readable form."""
    return when[:16].replace("T", " ")
