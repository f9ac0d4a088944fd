"""Tries of a served model: files beside its bundle, which requests call by name, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.serving.triton_requests import ids_request, run
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.serving.repository.config import RepositoryError, ServingSettings
from tightbeam.deploy.serving.repository.models import write_model
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import write_trie

pytest.importorskip("tritonclient.grpc.model_config_pb2")
SETTINGS = {"num_beams": 2, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tries")
    for name, entries in (("birds", [[7, 8, 9], [7, 9]]), ("7", [[20, 21], [30]])):
        write_trie(build_trie(entries, end_token_id=2), folder / f"{name}.trie")
    return [folder / "birds.trie", folder / "7.trie"]


@pytest.fixture(scope="module")
def served(bundles: BundleCache, files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Runner:
    bundle = Bundle.load(bundles("dedup"))
    version = write_model(bundle, tmp_path_factory.mktemp("repository"), ServingSettings("birds"), tries=files)
    assert sorted(file.name for file in version.iterdir()) == ["bundle", "model.py", "tries"]
    return Runner.load(version / "bundle", threads=1)


def test_requests_with_tries_of_their_own(served: Runner, files: list[Path]) -> None:
    names = ["birds", "7", None]
    requests = [ids_request(index, [5, 6, 7], **SETTINGS, trie=name) for index, name in enumerate(names)]
    log = run(served, requests, max_rows=20)
    assert not log.refusals()
    for index, trie in enumerate([*files, None]):
        alone = served.generate(np.array([[5, 6, 7]]), **SETTINGS, trie=trie).sequences[0].tolist()
        (output,) = log.outputs(index)
        assert output.sequences[0] == alone[: len(output.sequences[0])] and len(output.sequences[0]) >= 3


@pytest.mark.parametrize("name", ["nobody", "../tries/birds", "birds.trie", "/etc/passwd", "", "null"])
def test_a_request_names_no_file(served: Runner, name: str) -> None:
    log = run(served, [ids_request(1, [5], trie=name)], max_rows=20)
    (refused,) = log.refusals().values()
    assert refused.client_error and refused.message == f"trie={name!r} is not a trie of this model; it has 7, birds"


def test_a_config_of_a_request_names_no_file(served: Runner, files: list[Path]) -> None:
    request = ids_request(1, [5], generation_config=f'{{"trie": "{files[0]}"}}')
    (refused,) = run(served, [request], max_rows=20).refusals().values()
    assert "trie is not a setting of generation_config; pass it as a parameter of its own" in refused.message


def test_a_damaged_trie_is_a_fault_of_the_server(bundles: BundleCache, files: list[Path], tmp_path: Path) -> None:
    version = write_model(Bundle.load(bundles("dedup")), tmp_path, ServingSettings("birds"), tries=files)
    (version / "tries" / "birds.trie").write_bytes(b"TBTRIE")
    log = run(Runner.load(version / "bundle", threads=1), [ids_request(1, [5], trie="birds")], max_rows=20)
    (refused,) = log.refusals().values()
    assert not refused.client_error and "birds.trie is not a whole trie" in refused.message


def test_a_model_without_tries(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup"), threads=1)
    (refused,) = run(runner, [ids_request(1, [5], trie="birds")], max_rows=20).refusals().values()
    assert (
        "trie='birds' is not a trie of this model; it has none (triton-repo --trie, serve-model --trie)"
        in refused.message
    )


def test_tries_that_cannot_be_served(bundles: BundleCache, files: list[Path], tmp_path: Path) -> None:
    bundle, settings = Bundle.load(bundles("dedup")), ServingSettings("birds")
    (tmp_path / "birds.trie").write_bytes(b"TBTRIE")
    write_trie(build_trie([[4000]]), tmp_path / "large.trie")
    for tries, message in (
        ([tmp_path / "birds.trie"], "birds.trie is not a whole trie"),
        ([tmp_path / "none.trie"], "cannot read the trie"),
        ([tmp_path / "large.trie"], "holds token 4000, outside the vocabulary of 101; build it with this bundle"),
        ([files[0], tmp_path / "birds.trie"], "two of the tries have the name birds; rename a file"),
    ):
        with pytest.raises(RepositoryError, match=message):
            write_model(bundle, tmp_path / "repository", settings, tries=tries)
    assert not (tmp_path / "repository").exists()
