"""Glossaries of a served model: files beside its bundle, which requests call by name, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.serving.triton_requests import ids_request, run, text_request
from tightbeam.deploy import Bundle, InputError, Runner
from tightbeam.deploy.documents.glossary import FORCING_BEAMS
from tightbeam.deploy.serving.repository.config import RepositoryError, ServingSettings
from tightbeam.deploy.serving.repository.models import write_model

pytest.importorskip("tritonclient.grpc.model_config_pb2")
TEXT = "A small town."


@pytest.fixture(scope="module")
def folder(bundles: BundleCache) -> Path:
    return bundles("dedup", tokenizer=True)


@pytest.fixture(scope="module")
def word(folder: Path) -> str:
    (plain,) = Runner.load(folder, threads=1).generate_text([TEXT])
    return next(each for each in ("river", "library", "snow") if each not in plain)


@pytest.fixture(scope="module")
def served(folder: Path, word: str, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    own = tmp_path_factory.mktemp("glossaries")
    (own / "places.csv").write_text(f"town,{word}\nnowhere,never\n")
    (own / "none.txt").write_text("small,Größe\n", encoding="utf-8")
    files = [own / "places.csv", own / "none.txt"]
    where = tmp_path_factory.mktemp("repository")
    version = write_model(Bundle.load(folder), where, ServingSettings("terms"), glossaries=files)
    assert sorted(file.name for file in (version / "glossaries").iterdir()) == ["none.csv", "places.csv"]
    return Runner.load(version / "bundle", threads=1)


def test_terms_are_forced_where_the_output_lacks_them(served: Runner, word: str, tmp_path: Path) -> None:
    """Texts with a term, without one, and without a glossary, together; the first as in a document."""
    (tmp_path / "terms.csv").write_text(f"town,{word}\n")
    how = {"document_format": "text", "glossary": tmp_path / "terms.csv"}
    document = served.translate_document(TEXT.encode(), **how)
    texts = [("places", TEXT), ("places", "A bridge."), ("none", TEXT), (None, TEXT)]
    log = run(served, [text_request(number, text, glossary=name) for number, (name, text) in enumerate(texts)])
    assert not log.refusals()
    found = [log.outputs(number)[0] for number in range(4)]
    plain = served.generate_text(["A bridge.", TEXT])
    assert found[0].texts is not None and word in found[0].texts[0]
    assert " ".join(found[0].texts[0].split()) == document.data.decode() and found[0].reports == []
    assert [found[1].texts, found[3].texts] == [[text] for text in plain]
    assert found[1].reports is found[3].reports is None
    assert found[2].texts == [plain[1]] and found[2].reports == ["it lacks small -> Größe of the glossary"]


@pytest.mark.parametrize("name", ["nobody", "../glossaries/places", "places.csv", "", "null"])
def test_a_request_names_no_file(served: Runner, name: str) -> None:
    (refused,) = run(served, [text_request(1, TEXT, glossary=name)]).refusals().values()
    expected = f"glossary={name!r} is not a glossary of this model; it has none, places"
    assert refused.client_error and refused.message == expected


def test_what_takes_no_glossary(served: Runner, folder: Path) -> None:
    for request, rows, problem in (
        (ids_request(1, [5], glossary="places"), 20, "glossary is for TEXT; leave it out"),
        (text_request(1, TEXT, glossary="places", num_beams=2, num_return_sequences=2), 20, "is for one sequence"),
        (text_request(1, TEXT, glossary="places", num_beams=1), FORCING_BEAMS - 1, "runs 3 together; leave it out"),
        (text_request(1, TEXT, glossary="places", do_sample=True), 20, "force_words_ids"),
    ):
        (refused,) = run(served, [request], max_rows=rows).refusals().values()
        assert refused.client_error and problem in refused.message
    (refused,) = run(Runner.load(folder, threads=1), [text_request(1, TEXT, glossary="a")]).refusals().values()
    expected = (
        "glossary='a' is not a glossary of this model; it has none (triton-repo --glossary, serve-model --glossary)"
    )
    assert expected in refused.message


def test_glossaries_that_cannot_be_served(folder: Path, bundles: BundleCache, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a.csv", "b/a.csv"):
        (tmp_path / name).write_text("town,Ort\n")
    (tmp_path / "bad.csv").write_text("town\n")
    for bundle, names, problem in (
        (folder, ["bad.csv"], "line 1 of .*bad.csv has 1 columns"),
        (folder, ["nowhere.csv"], "nowhere.csv"),
        (folder, ["a.csv", "b/a.csv"], "two of the glossaries have the name a"),
        (bundles("dedup"), ["a.csv"], "--glossary is for a model of texts"),
    ):
        files = [tmp_path / name for name in names]
        with pytest.raises(RepositoryError, match=problem):
            write_model(Bundle.load(bundle), tmp_path / "repository", ServingSettings("terms"), glossaries=files)
    version = write_model(
        Bundle.load(folder), tmp_path / "own", ServingSettings("terms"), glossaries=[tmp_path / "a.csv"]
    )
    (version / "glossaries" / "a.csv").write_text("broken\n")
    with pytest.raises(InputError, match=r"line 1 of .*a\.csv has 1 columns"):
        run(Runner.load(version / "bundle", threads=1), [text_request(1, TEXT)])
