"""run-model --document with a translator: documents in, documents out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.commands import SHORT, Command, caller
from tightbeam.deploy import Runner
from tightbeam.deploy.bundle import manifest
from tightbeam.deploy.documents.summary import summary
from tightbeam.deploy.errors import InputError

SOURCE = "  - A small town.\n\n\tGo to https://a.org/b now, {name}. Then a town.\n"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setattr(manifest, "TRANSLATORS", ("bart",))
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def bart(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    file = tmp_path / "letter.txt"
    file.write_text(SOURCE)
    return file


def test_a_document_keeps_its_layout_and_its_literals(call: Command, bart: Path, letter: Path) -> None:
    done = call(bart, "--document", letter, *SHORT).succeeded()
    runner = Runner.load(bart, threads=1)
    item, go, last = (
        " ".join(text.split())
        for text in runner.generate_text(["A small town.", "Go to", "Then a town."], max_new_tokens=5)
    )
    assert done.out.startswith(f"  - {item}\n\n\t{go} https://a.org/b ")
    assert done.out.endswith(f"{{name}}. {last}\n")
    assert call(bart, "--document", "-", *SHORT, stdin=SOURCE.encode()).succeeded().out == done.out
    for document in (letter, SOURCE.encode()):
        made = runner.translate_document(document, max_new_tokens=5)
        assert (made.data.decode(), made.reports) == (done.out, [])


def test_documents_are_files_of_a_folder(call: Command, bart: Path, letter: Path, tmp_path: Path) -> None:
    other, broken = tmp_path / "other.txt", tmp_path / "broken.txt"
    other.write_text("A town.\n\n")
    broken.write_bytes(b"a\xff")
    folder = f"{tmp_path / 'out'}/"
    call(bart, "--document", letter, broken, other, "-o", folder, *SHORT).failed("broken.txt", "byte 1 is 0xff")
    assert sorted(path.name for path in Path(folder).iterdir()) == ["letter.txt", "other.txt"]
    assert (Path(folder) / "other.txt").read_text().endswith("\n\n")
    call(bart, "--document", other, "-o", folder, *SHORT).failed("other.txt exists", "--force")
    call(bart, "--document", other, letter, *SHORT).failed("--output FOLDER/")
    (record, error) = call(bart, "--document", other, broken, "--json", "-q", *SHORT).records
    assert (record["line"], record["reports"], error["line"]) == (1, [], 2)
    assert record["text"].endswith("\n\n") and "0xff" in error["error"]


def test_terms_of_a_glossary_are_placed(call: Command, bart: Path, letter: Path, tmp_path: Path) -> None:
    runner = Runner.load(bart, threads=1)
    terms = tmp_path / "terms.csv"
    terms.write_text("small town,lamp\nnothing,town\n")
    made = call(bart, "--document", letter, "--glossary", terms, "--max-new-tokens", 30).succeeded()
    assert "lamp" in made.out.splitlines()[0]
    assert "lamp" not in runner.generate_text(["A small town."], max_new_tokens=30)[0]
    call(bart, "--document", letter, "--glossary", terms, "--num-beams", 1, *SHORT).failed("force_words_ids", "beams")
    terms.write_text("town\n")
    call(bart, "--document", letter, "--glossary", terms, *SHORT).failed("line 1 of", "1 columns")
    call(bart, "--document", letter, "--glossary", tmp_path / "no.csv", *SHORT).failed("there is no file")


def test_terms_of_a_glossary_in_python(bart: Path, letter: Path, tmp_path: Path) -> None:
    runner = Runner.load(bart, threads=1)
    terms = tmp_path / "terms.csv"
    terms.write_text("small town,lamp\n")
    made = runner.translate_document(letter, glossary=terms, max_new_tokens=30)
    for glossary in ({"small town": "lamp"}, [("small town", "lamp")]):
        assert runner.translate_document(letter, glossary=glossary, max_new_tokens=30) == made
    plain = runner.translate_document(letter, max_new_tokens=5)
    assert runner.translate_document(letter, glossary={}, max_new_tokens=5) == plain != made
    with pytest.raises(InputError, match="pair 1 has an empty column"):
        runner.translate_document(letter, glossary={"town": ""})
    with pytest.raises(InputError, match="glossary=5 is not a list of terms"):
        runner.translate_document(letter, glossary=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("document", ["Hello.\nWorld.\n" * 1000, "x" * 5000, "no.md", "a\0b", None, Path("no.md")])
def test_content_is_bytes(bart: Path, document: Any) -> None:
    with pytest.raises(InputError, match="pass a path as str or Path, and content as bytes") as error:
        Runner.load(bart, threads=1).translate_document(document)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize("name", ["talk.srt", "talk.VTT"])
def test_subtitles_are_written_to_a_file(call: Command, bart: Path, tmp_path: Path, name: str) -> None:
    talk = tmp_path / "in" / name
    talk.parent.mkdir()
    talk.write_text("WEBVTT\n\n" * name.endswith("VTT") + "1\n00:00:01,000 --> 00:00:02,000\nA small town.\n")
    call(bart, "--document", talk, "-o", tmp_path / name, *SHORT).succeeded()
    written = (tmp_path / name).read_text()
    assert written == call(bart, "--document", talk, *SHORT).succeeded().out
    assert "00:00:01,000 --> 00:00:02,000\n" in written and "A small town" not in written


def test_options_that_documents_do_not_have(call: Command, bart: Path, letter: Path) -> None:
    for options in (("--stream",), ("--truncate", "left"), ("--resume", "out.txt")):
        call(bart, "--document", letter, *options).failed(options[0], "leave it out")
    call(bart, letter, "--glossary", letter).failed("--document")
    call(bart, "--document", letter, "--document-format", "papyrus").failed("papyrus", "text")


def test_a_long_text_is_summarised_in_chunks(
    bart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each chunk is a sample of the loop; the result has the fields of any other, and a short text is unchanged."""
    call = caller(monkeypatch, capsys)
    model = Runner.load(bart, threads=1)
    most = model.manifest.sizes.max_source
    long, text = tmp_path / "long.txt", "A small town lies at a river. " * most
    long.write_text(text)
    (tmp_path / "short.txt").write_text("A small town.")
    done = call(bart, "--document", long, tmp_path / "short.txt", "--json", *SHORT)
    first, second = done.records
    assert done.code == 0 and "chunks of it are summarised" in done.err
    assert second["text"] == model.generate_text(["A small town."], max_new_tokens=5)[0]
    rounds = summary(text.strip(), "en", model.model.text.fits)
    chunks = next(rounds)
    try:
        while True:
            chunks = rounds.send(model.generate_text(chunks, max_new_tokens=5))
    except StopIteration as end:
        assert first["text"] == " ".join(end.value)
    call(bart, "--document", long, "--truncate", "right", *SHORT)
    call(bart, long, *SHORT).failed("is longer than")
