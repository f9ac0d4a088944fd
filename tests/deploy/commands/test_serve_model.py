"""The command serve-model: what is wrong is said before a model is loaded; a signal lets running requests end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from support.bundles.cache import BundleCache
from support.commands import process
from tightbeam import SILENCED
from tightbeam.deploy import Runner
from tightbeam.deploy.commands.serve_model import app
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import write_trie

SETTINGS: dict[str, Any] = {"num_beams": 1, "min_new_tokens": 50, "max_new_tokens": 50}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["a b c"], "'a b c' cannot be a model's name; pass NAME=a b c"),
        (["m=a", "m=b"], "two models are named m; pass another NAME=b"),
        (["m", "--pair", "english"], "--pair english is not a pair of languages; pass SOURCE-TARGET, such as en-de"),
        (["m=a", "n=b", "--pair", "en-de"], "--pair en-de names no model; pass NAME=en-de, NAME being one of m, n"),
        (["m=a", "n=b", "--trie", "t.trie"], "--trie t.trie names no model; pass NAME=FILE, NAME being one of m, n"),
        (["m", "--trie", "a/t.trie", "--trie", "b/t.trie"], "two of the tries have the name t; rename a file"),
        (["m", "--glossary", "/dev/null"], "--glossary /dev/null has no name; pass NAME=FILE"),
        (["m", "--glossary", "law=/nowhere"], "/nowhere"),
        (["m", "--glossary", "law=/dev/null"], "/dev/null is a pipe or a device, not a file"),
        (["m", "--api-key-file", "/nowhere"], "the keys cannot be read"),
        (["m", "--api-key-file", "/dev/null"], "/dev/null has no key; write one a line"),
        (["m", "--host", "203.0.113.1"], "203.0.113.1:8080 cannot be listened on"),
        (["m", "--cors", "https://a.example/"], "--cors https://a.example/ is not an origin; pass a scheme and a host"),
        (["m", "--cors", "a.example"], "--cors a.example is not an origin"),
        (["nowhere", "--port", "0"], "nowhere"),
    ],
)
def test_what_is_wrong_is_one_line(options: list[str], expected: str) -> None:
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 1 and expected in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["m", "--port", str(port)])
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use)" in done.stderr


def test_fewer_rows_than_the_beams_of_the_checkpoint_are_refused(bundles: BundleCache) -> None:
    """Every request without num_beams would be refused."""
    folder = bundles("dedup", generation={"num_beams": 6})
    done = CliRunner().invoke(app, [f"m={folder}", "--port", "0", "--max-rows", "5"])
    expected = "error: --max-rows 5 is less than the 6 beams that the checkpoint searches with; pass 6 or more\n"
    assert (done.exit_code, done.stderr) == (1, expected)


@contextmanager
def served(
    folder: Path, *options: str, env: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the model m in a process of its own, and its address."""
    command = [sys.executable, "-m", "tightbeam.deploy.commands.serve_model", f"m={folder}", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stderr is not None
            ready = server.stderr.readline()
            match = re.match(r"Ready: (http://127\.0\.0\.1:\d+) serves m; Ctrl-C ends it\.", ready)
            assert match, ready
            yield server, match[1]
        finally:
            server.kill()


def test_a_second_signal_ends_at_once(bundles: BundleCache) -> None:
    """A request whose body never ends gets an error, and further signals do not interrupt the end."""
    with served(bundles("dedup", tokenizer=True)) as (server, url):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as raw:
            raw.sendall(b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\nExpect: 100-continue\r\n\r\n{")
            assert b" 100 " in raw.recv(1000)  # it waits for the body
            server.send_signal(signal.SIGINT)
            with pytest.raises(httpx.TransportError):  # it takes no new request, and waits for this one
                while True:
                    httpx.get(f"{url}/health/live")
            for _ in range(3):
                server.send_signal(signal.SIGTERM)
                time.sleep(0.01)
            answer = raw.recv(1000)
        assert b" 503 " in answer and b"the server ends; send the request again later" in answer
        assert server.wait(60) == 0 and server.stderr is not None and server.stderr.read() == "stopped\n"


def test_a_signal_lets_a_running_request_end(bundles: BundleCache) -> None:
    folder = bundles("dedup", tokenizer=True)
    with served(folder) as (server, url):
        with httpx.stream(
            "POST", f"{url}/generate", json={"TEXT": "a town", "stream": True, **SETTINGS}, timeout=60
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            answers = [line for line in lines if line]
        answer = json.loads(answers[-1].removeprefix("data: "))
        assert answer["FINISHED"]
        assert server.wait(60) == 0
    expected = Runner.load(folder, threads=1).generate_text(["a town"], **SETTINGS)
    assert [answer["TEXT"]] == expected


def test_requests_name_files_of_the_command(bundles: BundleCache, tmp_path: Path) -> None:
    folder, file, terms = bundles("dedup", tokenizer=True), tmp_path / "birds.trie", tmp_path / "terms.csv"
    write_trie(build_trie([[7, 8, 9], [20, 21]], end_token_id=2), file)
    terms.write_text("town,nowhere\n")
    request = {"TEXT": "a town", "num_beams": 2, "max_new_tokens": 6}
    with served(folder, "--trie", str(file), "--glossary", f"places={terms}") as (_, url):
        forced = httpx.post(f"{url}/generate", json={**request, "glossary": "places"}, timeout=60).json()
        found = httpx.post(f"{url}/generate", json={**request, "trie": "birds"}, timeout=60).json()
        refused = httpx.post(f"{url}/generate", json={**request, "trie": "fish"}, timeout=60)
    assert "nowhere" in forced["TEXT"] or "it lacks town -> nowhere of the glossary" in forced["REPORTS"]
    runner = Runner.load(folder, threads=1)
    assert [found["TEXT"]] == runner.generate_text(["a town"], num_beams=2, max_new_tokens=6, trie=file)
    assert [found["TEXT"]] != runner.generate_text(["a town"], num_beams=2, max_new_tokens=6)
    assert refused.status_code == 400 and "trie='fish' is not a trie of this model; it has birds" in refused.text


def test_no_library_reports_home(bundles: BundleCache, tmp_path: Path) -> None:
    """ONNX Runtime would leave a device id in the home folder, and look up its collector."""
    folder = bundles("dedup", tokenizer=True)
    environment = {name: value for name, value in os.environ.items() if name not in SILENCED}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert process(folder, stdin=b"a town", env=environment).code == 0
    with served(folder, env=environment) as (_, url):
        assert httpx.post(f"{url}/generate", json={"TEXT": "a town"}, timeout=60).status_code == 200
    assert not list(tmp_path.iterdir())


def test_a_trie_of_another_vocabulary_is_refused(bundles: BundleCache, tmp_path: Path) -> None:
    write_trie(build_trie([[4000]]), tmp_path / "large.trie")
    options = [f"m={bundles('dedup')}", "--port", "0", "--trie", f"m={tmp_path}/large.trie"]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 1 and "holds token 4000, outside the vocabulary of 101; build it with" in done.stderr
