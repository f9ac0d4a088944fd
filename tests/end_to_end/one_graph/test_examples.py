"""The programs of examples/: each writes the tokens that Python gets from the same graph."""

from __future__ import annotations

import functools
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import onnxruntime as ort
import pytest
import soundfile

from support.browser import Browser
from support.bundles.demo import demo_bundle
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.text.tokenizer import load_codec
from tightbeam.export import export_model
from tightbeam.export.one_graph.check import scalar_inputs
from tightbeam.export.one_graph.graph import options_of, scalars_of
from tightbeam.export.one_graph.write import write_graphs
from tightbeam.plugins.library import cpu_library

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [line for line in (ROOT / "export/demo/examples.txt").read_text().splitlines() if line]
SECONDS = 300

pytestmark = pytest.mark.slow


def run(command: list[str | Path], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)


def program(name: str) -> str:
    """The path of a program, or a skip if the machine lacks it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def with_packages(example: str) -> Path:
    """A copy of an example in build/ with its packages from npm, or a skip if they cannot be installed."""
    npm, folder = program("npm"), ROOT / "build" / "examples" / example
    shutil.copytree(ROOT / "examples" / example, folder, dirs_exist_ok=True)
    # Without scripts: that of onnxruntime-node fetches its libraries for GPUs.
    done = run([npm, "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund"])
    if done.returncode:
        pytest.skip(f"npm cannot install the packages: {done.stderr[-200:]}")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's bundle with its one graph."""
    path = demo_bundle(tmp_path_factory.mktemp("examples") / "demo", "el")
    write_graphs(path, Bundle.load(path).manifest)
    return path


@pytest.fixture(scope="module")
def expected(bundle: Path) -> list[str]:
    """The token ids of each text's output, by the same graph in Python."""
    loaded = Bundle.load(bundle)
    session = ort.InferenceSession(bundle / "generate.onnx")
    settings = scalar_inputs(scalars_of(options_of(loaded.manifest)))
    codec = load_codec(loaded)
    assert codec is not None
    lines = []
    for text in TEXTS:
        ids = np.array([codec.encode(text)])
        found, lengths, _ = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids), **settings})
        lines.append(" ".join(map(str, found[0, : lengths[0]])))
    assert len(set(lines)) == len(TEXTS)
    return lines


def test_node(bundle: Path, expected: list[str]) -> None:
    node, folder = program("node"), with_packages("node")
    done = run([node, folder / "generate.mjs", bundle, "--ids"], "\n".join(TEXTS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
    assert not done.stderr, "ONNX Runtime warns in each step"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ program, linked with the library of ONNX Runtime's wheel."""
    cmake, folder = program("cmake"), tmp_path_factory.mktemp("cpp")
    library = next((Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*"), None)
    if library is None or shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler, or the wheel of ONNX Runtime has no libonnxruntime.so")
    (folder / "lib").mkdir()
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / "lib" / name).symlink_to(library)
    configured = run([cmake, "-S", ROOT / "examples/cpp", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={folder}"])
    if "OnnxRuntimeHeaders" in configured.stderr:
        pytest.skip("ONNX Runtime's headers are not installed and cannot be fetched")
    assert configured.returncode == 0, configured.stderr
    done = run([cmake, "--build", folder / "build"])
    assert done.returncode == 0, done.stdout
    return folder / "build" / "generate"


@pytest.mark.parametrize("registered", [False, True], ids=["alone", "with-our-library"])
def test_cpp(bundle: Path, expected: list[str], built: Path, registered: bool) -> None:
    library = cpu_library() if registered else None
    if registered and library is None:
        pytest.skip("the CPU library is not built")
    codec = load_codec(Bundle.load(bundle))
    assert codec is not None
    sources = "\n".join(" ".join(map(str, codec.encode(text))) for text in TEXTS)
    done = run([built, bundle, *([library] if library else [])], sources)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


@contextmanager
def pages(bundle: Path) -> Iterator[tuple[str, Path]]:
    """The address of the browser's pages and their folder, with a bundle."""
    folder = with_packages("browser")
    shutil.rmtree(folder / "bundle", ignore_errors=True)
    shutil.copytree(bundle, folder / "bundle")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_browser(bundle: Path, expected: list[str], tmp_path: Path) -> None:
    chromium = program("chromium")
    with (
        pages(bundle) as (address, _),
        Browser(chromium, tmp_path, f"{address}/index.html?{urlencode({'text': chr(10).join(TEXTS)})}") as browser,
    ):
        browser.wait_for("document.querySelector('button')?.disabled === false || null", SECONDS)
        found = browser.wait_for("[...document.querySelectorAll('li')].map((each) => each.title)", SECONDS)
    assert found == expected


def test_browser_with_speech(tmp_path: Path) -> None:
    """The zoo's Whisper on a recording of each language: the tokens that Python gets from features of a runner."""
    chromium, model = program("chromium"), ROOT / "build/zoo/whisper"
    if not model.exists():
        pytest.skip("build/zoo/whisper is not there; run make zoo")
    path = tmp_path / "whisper"
    manifest = export_model(model, path, variant="dedup", one_graph=True, check=False).manifest
    runner, options = Runner.load(path, threads=1), options_of(manifest)
    assert runner.log_mel is not None
    values = scalar_inputs({**scalars_of(options), "num_beams": 2, "max_new_tokens": 100, "early_stopping": 0})
    values["decoder_input_ids"] = np.array([options.prompt])
    session = ort.InferenceSession(path / "generate.onnx")
    recordings = [ROOT / f"build/zoo/whisper-inputs/single-{name}.wav" for name in ("en-00", "es-18")]
    with pages(path) as (address, folder):
        for number, recording in enumerate(recordings):
            samples, _ = soundfile.read(recording, dtype="float32")
            features = runner.log_mel.features(samples)[None]
            tokens, lengths, _ = session.run(None, {"input_features": features, **values})
            shutil.copy(recording, folder / "recording.wav")
            with Browser(chromium, tmp_path / f"{number}", f"{address}/speech.html?recording=recording.wav") as browser:
                browser.wait_for("document.querySelector('input')?.disabled === false || null", SECONDS)
                found = browser.wait_for("[...document.querySelectorAll('li')].map((each) => each.title)", SECONDS)
            assert found == [" ".join(map(str, tokens[0, : lengths[0]]))]
            assert lengths[0] > len(options.prompt) + 5
