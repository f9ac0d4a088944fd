"""``run-model --chat``: conversations in a terminal, and of lines of standard input."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.bundles.chat import LLAMA, with_template
from support.commands import MODULE, Command, caller, process
from tightbeam.deploy import KeptPrompt, Runner
from tightbeam.deploy.run_model import chat

SHORT = ("--threads", "1", "--max-new-tokens", "5")


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = bundles("dedup", **LLAMA)
    return with_template(plain, tmp_path_factory.mktemp("chat") / "bundle")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


def answers(bundle: Path, *messages: str, system: str | None = None, **settings: int) -> list[str]:
    """What `Runner.chat` answers to each message of a conversation."""
    runner = Runner.load(bundle, threads=1)
    history = [] if system is None else [{"role": "system", "content": system}]
    found = []
    for message in messages:
        history.append({"role": "user", "content": message})
        found.append(runner.chat(history, **settings))
        history.append({"role": "assistant", "content": found[-1]})
    return found


def test_each_line_is_a_message(bundle: Path, command: Command) -> None:
    stdin = b"a town\n\nwhere is it\n/reset\na town\n/exit\nnever\n"
    done = command(bundle, "--chat", *SHORT, "--quiet", stdin=stdin)
    expected = answers(bundle, "a town", "where is it", max_new_tokens=5)
    assert (done.code, done.out, done.err) == (0, "".join(f"{text}\n" for text in (*expected, expected[0])), "")


def test_a_turn_runs_only_what_is_new(bundle: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[KeptPrompt] = []

    class Recorded(KeptPrompt):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(chat, "KeptPrompt", Recorded)
    done = command(bundle, "--chat", *SHORT, "--quiet", stdin=b"a town\nwhere is it\nand the old tram")
    expected = answers(bundle, "a town", "where is it", "and the old tram", max_new_tokens=5)
    assert (done.code, done.out) == (0, "".join(f"{text}\n" for text in expected))
    assert len(made) == 1 and made[0].reused > 20


def test_a_system_message_stays_after_a_reset(bundle: Path, command: Command) -> None:
    done = command(bundle, "--chat", "--system", "be kind", *SHORT, "--quiet", stdin=b"a town\n/reset\na town")
    (expected,) = answers(bundle, "a town", system="be kind", max_new_tokens=5)
    assert (done.code, done.out) == (0, f"{expected}\n" * 2)


@pytest.mark.parametrize("end", ["/bye", "/quit"])
def test_commands_have_the_names_of_other_programs(bundle: Path, command: Command, end: str) -> None:
    stdin = f"a town\n/clear\na town\n{end}\na town".encode()
    done = command(bundle, "--chat", *SHORT, "--quiet", stdin=stdin)
    (expected,) = answers(bundle, "a town", max_new_tokens=5)
    assert (done.code, done.out, done.err) == (0, f"{expected}\n" * 2, "")


def test_an_answer_has_more_than_20_tokens_by_default(bundle: Path, command: Command) -> None:
    done = command(bundle, "--chat", "--threads", "1", stdin=b"a town")
    positions = Runner.load(bundle, threads=1).manifest.sizes.max_target
    (expected,) = answers(bundle, "a town", max_new_tokens=positions // 2)
    assert done.code == 0 and done.out == f"{expected}\n"


def test_a_message_that_fails_is_no_part_of_the_conversation(bundle: Path, command: Command) -> None:
    stdin = b"a town\nhalf \xff a letter\n" + b"the old tram " * 40 + b"\n/what\n where is it\n"
    done = command(bundle, "--chat", *SHORT, "--quiet", stdin=stdin)
    assert done.out == "".join(f"{text}\n" for text in answers(bundle, "a town", " where is it", max_new_tokens=5))
    assert done.code == 1
    bad, long, unknown = done.err.splitlines()
    assert bad.startswith("error: messages hold half a character")
    assert long.startswith("error: conversation of ") and long.endswith("or cut it with --truncate")
    assert unknown == "error: /what is unknown; pass /reset or /exit, or begin the message with a space"


def test_the_oldest_turns_are_left_out_with_a_note(bundle: Path, command: Command) -> None:
    done = command(bundle, "--chat", "--truncate", *SHORT, stdin=b"where is the old tram\n" * 12)
    assert done.code == 0 and len(done.out.splitlines()) >= 12
    assert "note: the oldest turns are left out: " in done.err
    assert "note: the answer ends at 5 new tokens; --max-new-tokens N allows more" in done.err


def test_a_stop_string_is_not_a_limit_of_length(bundle: Path, command: Command) -> None:
    (answer,) = answers(bundle, "a town", max_new_tokens=5)
    stop = answer.strip()[0]
    done = command(bundle, "--chat", *SHORT, "--stop-string", stop, stdin=b"a town")
    assert (done.code, done.out) == (0, answer[: answer.index(stop)] + done.out[answer.index(stop) :])
    assert stop in done.out and "the answer ends at" not in done.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams(bundle: Path, closed: str) -> None:
    """Without a stream that it needs the command says so; without standard error it answers."""
    line = f'echo a town | {{ "$@" {closed}; }}'
    done = process(bundle, "--chat", *SHORT, command=["sh", "-c", line, "sh", *MODULE])
    assert "Traceback" not in done.err
    if closed == "2>&-":
        (answer,) = answers(bundle, "a town", max_new_tokens=5)
        assert (done.code, done.out) == (0, f"{answer}\n")
    else:
        assert done.code == 1 and " is closed" in done.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["x.txt", "--chat"], "FILE is not for --chat, which reads messages from standard input; leave it out"),
        (["--chat", "--json"], "--json is not for --chat"),
        (["--chat", "--stream"], "--stream is not for --chat, whose answers come as they are made; leave it out"),
        (["--chat", "-o", "x"], "--output is not for --chat"),
        (["--chat", "--num-return-sequences", "2", "--num-beams", "2"], "a conversation has one answer; leave it out"),
        (["--chat", "--return-token-scores"], "return_token_scores=True is more than an answer; leave it out"),
        (["--chat", "--num-beams", "0"], "pass 1 or more"),
        (["--chat", "--truncate", "right"], "a conversation loses its oldest turns; pass left"),
        (["--system", "be kind"], "--system is the system message of --chat; pass both"),
    ],
)
def test_options_that_no_conversation_has(bundle: Path, command: Command, arguments: list[str], reason: str) -> None:
    command(bundle, *arguments, stdin=b"a town").failed(reason)


def test_a_bundle_without_a_template(bundles: BundleCache, command: Command) -> None:
    done = command(bundles("dedup", **LLAMA), "--chat", stdin=b"a town")
    done.failed("has no chat template", "export it again with --chat-template FILE")


def read_until(terminal: int, text: bytes, seconds: float = 60) -> bytes:
    """Read a terminal until it shows ``text``."""
    found, end = b"", time.monotonic() + seconds
    while text not in found and select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
        found += os.read(terminal, 4096)
    assert text in found, found
    return found


def test_a_terminal(bundle: Path) -> None:
    """Ctrl-C stops an answer or discards a line, and ends nothing; Ctrl-D ends."""
    ours, theirs = pty.openpty()
    command = [*MODULE, str(bundle), "--chat", "--threads", "1", "--min-new-tokens", "30", "--max-new-tokens", "30"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as running:
        os.close(theirs)
        try:
            assert b"/exit or Ctrl-D ends" in read_until(ours, b"> ")
            time.sleep(0.3)  # input() heeds no signal in the moment between its prompt and its wait
            running.send_signal(signal.SIGINT)
            read_until(ours, b"> ")
            os.write(ours, b"a town\n")
            read_until(ours, b"note: the answer ends at 30 new tokens; --max-new-tokens N allows more\r\n> ")
            os.write(ours, b"a town\n")
            time.sleep(0.3)
            running.send_signal(signal.SIGINT)
            read_until(ours, b"> ")  # stopped, or discarded if the answer had ended
            for _ in range(60):  # a key that comes before readline waits for one is lost
                os.write(ours, b"\x04")
                with suppress(subprocess.TimeoutExpired):
                    running.wait(1)
                    break
            assert running.returncode == 0
        finally:
            running.kill()
            os.close(ours)


def test_sigterm_ends(bundle: Path) -> None:
    command = [*MODULE, str(bundle), "--chat", *SHORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin and running.stdout
        running.stdin.write(b"a town\n")
        running.stdin.flush()
        assert running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
