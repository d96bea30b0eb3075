"""report.html: complete in one file, nothing executed, nothing fetched, every string escaped."""

import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from pyramidvit.config import resolve
from pyramidvit.metrics import ClassificationMetric
from pyramidvit.report import Headline, ReportContent, mapping_table, render_report, settings_table, write_report
from pyramidvit.types import BadSample, ClassScores, ClassTarget, Picture, Section, Table

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "'; alert(1) //",
    "{{ 7 * 7 }}",
    "</title></style><b>",
    "&lt;b&gt;",
)


class Page(HTMLParser):
    """Tags with their attributes, and the text outside <style>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open[-1:] != ["style"]:
            self.texts.append(data.strip())

    def attributes(self, name: str) -> Iterator[str]:
        return (attrs[name] or "" for _, attrs in self.tags if name in attrs)


def encoded(kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, kind)
    return buffer.getvalue()


def content(text: str = "plain") -> ReportContent:
    table = Table((text, "n"), ((text, 1), (text, None)), title=text, note=text)
    parts = (
        Section("first", text, (table,), (Picture(encoded(), text),)),
        Section(text, text, (table,), (Picture(encoded("JPEG"), text),), small=True, folded=True),
        Section("last"),
    )
    headline = Headline(text, 0.5, (0.4, 0.6), 0.125, text)
    return ReportContent(text, text, text, headline, ((text, text),), (text,), (BadSample(text, text),), parts)


@pytest.mark.parametrize("text", HOSTILE)
def test_every_string_is_escaped(text: str):
    """Class names, file names, captions, settings: all may come from strangers."""
    page, plain = Page(render_report(content(text))), Page(render_report(content()))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags], "no string may add or close a tag"
    assert [attrs.keys() for _, attrs in page.tags] == [attrs.keys() for _, attrs in plain.tags]
    assert not page.open
    assert sum(text in shown for shown in page.texts) == sum("plain" in shown for shown in plain.texts) > 15
    assert text in page.attributes("alt")


def test_hostile_class_names_of_a_result_are_escaped():
    metric = ClassificationMetric(HOSTILE)
    metric.update([ClassScores("a.png", HOSTILE, torch.eye(6)[i]) for i in (1, 2, 3)], [ClassTarget(0)] * 3)
    page = Page(render_report(ReportContent("t", "classify", "m", sections=(Section("Classes", tables=metric.compute().tables()),))))
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "b"})
    assert set(HOSTILE) <= set(page.texts)


def test_page_loads_and_runs_nothing():
    html = render_report(content())
    page = Page(html)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "form", "base"})
    assert [source[:22] for source in page.attributes("src")] == ["data:image/png;base64,", "data:image/jpeg;base64"]
    assert all(target.startswith("#") for target in page.attributes("href"))
    assert not re.search(r"https?://|url\(|@import|\son\w+=", html)
    policy = next(attrs["content"] or "" for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")


def test_page_fits_dark_mode_and_telephones():
    html = render_report(content())
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_headline_stands_beside_its_interval_and_chance():
    headline = Headline("top1", 0.875, (0.84, 0.908), 0.125, "always answering the largest class")
    text = " ".join(Page(render_report(ReportContent("t", "classify", "m", headline))).texts)
    assert "87.5% top1 95% interval 84.0% to 90.8% chance 12.5%" in text
    with pytest.raises(ValueError, match="from 0 to 1"):
        Headline("top1", 87.5)


def test_an_almost_empty_report_is_fine():
    page = Page(
        render_report(ReportContent("title", "classify", "pvt_v2_b0", sections=(Section("Mistakes", tables=(Table(("a",), ()),)),)))
    )
    assert "None." in page.texts
    assert "nav" not in [tag for tag, _ in page.tags]


def test_skipped_files_are_listed_with_their_reason():
    skipped = (BadSample("a/b.jpg", "file is cut off"), BadSample("c.png", "no picture"))
    texts = Page(render_report(ReportContent("t", "classify", "m", skipped=skipped))).texts
    assert {"Skipped files", "a/b.jpg", "file is cut off", "c.png", "no picture"} <= set(texts)
    assert any("2 files were left out" in text for text in texts)


def test_numbers_are_aligned_and_none_is_a_dash():
    table = Table(("Class", "Recall %", "Samples"), (("a", 87.5, 4), ("b", 100.0, 10), ("c", None, 0), ("d", 1e-7, 1)))
    page = Page(render_report(ReportContent("t", "classify", "m", sections=(Section("s", tables=(table,)),))))
    assert page.texts[page.texts.index("a") :][:12] == ["a", "87.5", "4", "b", "100.0", "10", "c", "–", "0", "d", "1e-07", "1"]
    assert sum(attrs.get("class") == "number" for tag, attrs in page.tags if tag == "td") == 8


def test_settings_tell_value_and_source():
    config, sources = resolve()
    table = settings_table(config, sources | {"optim.lr": "command line"})
    assert ("task", "classify", "default") in table.rows
    assert ("optim.lr", "0.001", "command line") in table.rows
    assert ("model.weights", "not set", "default") in table.rows
    assert ("augment.size", "224, 224", "default") in table.rows


def test_nested_data_is_flattened():
    table = mapping_table({"torch": {"version": "2.14", "threads": 2}, "gpus": [], "extras": {}})
    assert table.rows == (("torch.version", "2.14"), ("torch.threads", "2"), ("gpus", ""), ("extras", "{}"))


def test_report_is_written_into_the_run_folder_whatever_the_file_names_hold(tmp_path: Path):
    """A name that is no valid text (a lone surrogate) can't be encoded; it must not cost the report."""
    path = write_report(tmp_path, content("größe 猫 \udc80"))
    assert path == tmp_path / "report.html"
    assert "größe 猫 ?" in path.read_text(encoding="utf-8")


def test_pictures_must_be_png_or_jpeg():
    with pytest.raises(ValueError, match=r"PNG or JPEG.*'drawing'"):
        render_report(
            ReportContent("t", "classify", "m", sections=(Section("s", pictures=(Picture(b"<svg onload=alert(1)>", "drawing"),)),))
        )
