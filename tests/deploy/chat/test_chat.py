"""Conversations of a loaded model: from Python, in lines, Ray's rows and requests, with the tokens of transformers."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from support.bundles.cache import BundleCache
from support.bundles.chat import LLAMA, SIMPLE, with_template
from support.serving.triton_requests import ids_request, run
from tightbeam.deploy import GenerationError, InputError, Runner
from tightbeam.deploy.inputs.lines import LineFormat, run_lines
from tightbeam.deploy.ray.rows import RowSettings, lines_of_values, run_rows
from tightbeam.deploy.serving.protocol.messages import Request
from tightbeam.deploy.serving.repository.shell_commands import request_command

USER = {"role": "user", "content": "where is the old tram"}
SYSTEM = {"role": "system", "content": "be kind"}
ANSWER = {"role": "assistant", "content": "in the north"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, ANSWER, {"role": "user", "content": "and the bus"}],
    [USER, ANSWER],
    [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "town"}]}],
]
SHORT: dict[str, Any] = {"max_new_tokens": 6}


@pytest.fixture(scope="module")
def runner(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    plain = bundles("dedup", **LLAMA)
    return Runner.load(with_template(plain, tmp_path_factory.mktemp("chat") / "bundle"), threads=1)


@pytest.fixture(scope="module")
def without(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup", **LLAMA), threads=1)


def prompt_of(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    texts = [{**own, "content": own["content"] if isinstance(own["content"], str) else "a town"} for own in messages]
    continued = messages[-1]["role"] == "assistant"
    how = {"continue_final_message": continued, "add_generation_prompt": not continued}
    return list(tokenizer.apply_chat_template(texts, chat_template=SIMPLE, **how)["input_ids"])


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_answers_are_those_of_generate(runner: Runner, bundles: BundleCache, settings: dict[str, Any]) -> None:
    folder = bundles.checkpoints(**LLAMA)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), LlamaForCausalLM.from_pretrained(folder)
    settings = {**settings, **SHORT}
    expected = []
    for messages in CONVERSATIONS:
        prompt = prompt_of(tokenizer, messages)
        assert runner.encode(messages) == (prompt, 0)
        with torch.no_grad():
            row = model.generate(torch.tensor([prompt]), do_sample=False, **settings)[0]
        expected.append(tokenizer.decode(row[len(prompt) :], skip_special_tokens=True))
        assert runner.chat(messages, **settings) == expected[-1]
        assert "".join(runner.stream_text(messages, **settings)) == expected[-1]
    assert runner.generate_text(CONVERSATIONS, **settings) == expected
    assert runner.generate_text([CONVERSATIONS[0], "a town"], **settings)[0] == expected[0]


def test_lines_hold_messages(runner: Runner) -> None:
    records: list[Any] = [
        {"messages": CONVERSATIONS[1], **SHORT},
        {"messages": "a text", **SHORT},
        {"messages": []},
        {"messages": [USER, 5]},
        {"messages": CONVERSATIONS[0] * 20},
        {"messages": CONVERSATIONS[0] * 20, "truncate": True, **SHORT},
        {"messages": {"role": "user"}},
        {"messages": CONVERSATIONS[0], "tools": []},
    ]
    lines = [json.dumps(record).encode() for record in records]
    results = list(run_lines(runner.model, lines, LineFormat(field="messages")))
    assert results[0].texts == [runner.chat(CONVERSATIONS[1], **SHORT)]
    assert results[1].texts == runner.generate_text(["a text"], **SHORT)
    assert results[5].texts == [runner.chat(CONVERSATIONS[0] * 20, truncate=True, **SHORT)] and results[5].cut
    errors = [result.error or "" for result in results]
    assert "messages is empty" in errors[2]
    assert "message 1: 5 is not an object" in errors[3]
    assert "conversation of " in errors[4] and 'or cut it with "truncate": true' in errors[4]
    assert errors[6] == "messages is dict, expected a text or a list of messages; pass one of them"
    assert "tools=[] (from the line) is not a generation setting; tools are not supported" in errors[7]


def test_rows_of_a_dataset_hold_messages(runner: Runner) -> None:
    own = [{**message, "name": None} for message in CONVERSATIONS[1]]  # a field that other rows have
    lines = lines_of_values({"chat": [own, None]})
    results = run_rows(runner.model, lines, RowSettings(SHORT), name="chat")
    assert results[0].texts == [runner.chat(CONVERSATIONS[1], **SHORT)]
    assert results[1].error == "chat is NoneType, expected a text or a list of messages; pass one of them"


def messages_request(number: int, *rows: str, **parameters: Any) -> Request:
    inputs = {"MESSAGES": np.array([row.encode() for row in rows], np.object_).reshape(-1, 1)}
    return Request(number, inputs, json.dumps(parameters))


def test_requests_hold_messages(runner: Runner, without: Runner) -> None:
    rows = [json.dumps(messages) for messages in CONVERSATIONS]
    log = run(runner, [messages_request(1, *rows, **SHORT), ids_request(2, [5, 6, 7], **SHORT)])
    assert [output.texts for output in log.outputs(1)] == [
        [runner.chat(messages, **SHORT)] for messages in CONVERSATIONS
    ]
    wrong = {
        3: ("[{", r"MESSAGES is not JSON \(.*\); pass a list of messages as JSON"),
        4: ("{}", "messages is dict, expected a list such as"),
        5: ('"hello"', "messages is str, expected a list such as"),
        6: ("[" * 5000, "MESSAGES is not JSON"),
        7: ('[{"role": "user", "content": "' + "a" * (1 << 16) + '"}]', "the text has 65,569 bytes"),
        8: (json.dumps(CONVERSATIONS[0] * 20), 'conversation of .*, or cut it with "truncate": true'),
    }
    log = run(runner, [messages_request(number, text, **SHORT) for number, (text, _) in wrong.items()])
    refused = {number: refusal.message for number, refusal in log.refusals().items()}
    for number, (_, reason) in wrong.items():
        assert re.search(reason, refused[number]), refused.get(number)
    assert run(runner, [messages_request(9, json.dumps(CONVERSATIONS[0] * 20), truncate=True, **SHORT)]).outputs(9)
    (refusal,) = run(without, [messages_request(1, rows[0])]).refusals().values()
    assert refusal.client_error and "has no chat template" in refusal.message


def test_an_answer_without_a_limit_fits_behind_a_long_conversation(runner: Runner) -> None:
    """It has half of the positions at most, and no more than the conversation leaves."""
    positions = runner.manifest.sizes.max_target
    long = next(CONVERSATIONS[0] * n for n in range(1, 20) if len(runner.encode(CONVERSATIONS[0] * n)[0]) > 200)
    left = positions - len(runner.encode(long)[0])
    for unset in ({}, {"max_new_tokens": None}):
        assert runner.model.text.encode_conversation(long, unset)[2]["max_new_tokens"] == left
    least = {"min_new_tokens": left}  # no end token before; it is more than the 20 of model.generate
    log = run(runner, [messages_request(1, json.dumps(long), json.dumps(CONVERSATIONS[0]), **least)])
    first, second = log.outputs(1)
    assert first.texts == [runner.chat(long, max_new_tokens=left, **least)]
    assert second.texts == [runner.chat(CONVERSATIONS[0], max_new_tokens=positions // 2, **least)]
    (refusal,) = run(runner, [messages_request(1, json.dumps(long), max_new_tokens=left + 1)]).refusals().values()
    assert f": {left} or less" in refusal.message


def test_the_sample_request_of_a_server_holds_messages(runner: Runner) -> None:
    command = request_command(runner.manifest, "chat", "http://127.0.0.1:8000", stream=False, text="it's here")
    body = json.loads(shlex.split(command)[-1])
    assert json.loads(body["MESSAGES"]) == [{"role": "user", "content": "it's here"}]


def test_a_bundle_without_a_template_names_the_fix(without: Runner) -> None:
    with pytest.raises(InputError, match=r"bundle .* has no chat template, .*; export it again with --chat-template F"):
        without.chat([USER])
    assert without.generate_text(["a town"], **SHORT)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("a text", "messages is str, expected a list such as"),
        ([[USER]], "message 0: .* is not an object"),
        ([], "messages is empty"),
        ([USER] * 20, r"conversation of \d+ tokens is longer than .* cut it with --truncate \(truncate=True\)"),
    ],
)
def test_wrong_messages(runner: Runner, given: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        runner.chat(given)


def test_wrong_settings(runner: Runner) -> None:
    for settings, reason in (
        ({"tools": []}, "tools=.* is not a generation setting; tools are not supported"),
        ({"add_generation_prompt": True}, "leave it out: a last message of the assistant is continued"),
        ({"return_token_scores": True}, "return_token_scores=True is more than texts"),
        ({"num_beams": 2, "num_return_sequences": 2}, "num_return_sequences=2 is for several texts"),
        ({"max_new_tokens": 299}, "max_new_tokens=299 .*makes sequences of"),
    ):
        with pytest.raises(GenerationError, match=reason):
            runner.chat([USER], **settings)
    with pytest.raises(InputError, match=r"text 0: a text is dict, .*; pass \[messages\] for one conversation$"):
        runner.generate_text([USER])  # the messages of one conversation in place of a list of conversations


def test_long_conversations_lose_their_oldest_turns(runner: Runner) -> None:
    turns = [USER, ANSWER] * 10
    tokens, cut = runner.encode([SYSTEM, *turns, USER], truncate=True, **SHORT)
    assert tokens == runner.encode([SYSTEM, *turns[-10:], USER])[0] and cut > 0
    with pytest.raises(InputError, match="is longer than the 255 that a prompt may have"):
        runner.encode([SYSTEM, *turns[-12:], USER])
    expected = runner.generate([tokens], **SHORT).sequences[0][len(tokens) :]
    assert runner.chat([SYSTEM, *turns, USER], truncate=True, **SHORT) == runner.decode(expected)
    assert runner.encode([SYSTEM, *turns, USER], truncate="left", **SHORT) == (tokens, cut)
    with pytest.raises(InputError, match="truncate=right is for texts, and a conversation loses its oldest turns"):
        runner.encode([USER], truncate="right")


CONFIG = {"bos_token": None, "eos_token": {"content": "</s>"}}
NAMED = [{"name": "rag", "template": "x"}, {"name": "default", "template": SIMPLE}]


@pytest.mark.parametrize("template", [SIMPLE, NAMED], ids=["text", "list"])
def test_the_template_may_be_among_the_tokenizers_settings(
    bundles: BundleCache, tmp_path: Path, runner: Runner, template: Any
) -> None:
    config = json.dumps({**CONFIG, "chat_template": template})
    folder = with_template(bundles("dedup", **LLAMA), tmp_path / "bundle", config, "tokenizer_config.json")
    found = Runner.load(folder, threads=1)
    assert found.encode([USER]) == runner.encode([USER])
    assert found.model.text.require_chat_template()._variables == {"eos_token": "</s>"}


def test_named_templates_without_a_default_are_none(bundles: BundleCache, tmp_path: Path) -> None:
    config = json.dumps({"chat_template": NAMED[:1]})
    plain = bundles("dedup", **LLAMA)
    folder = with_template(plain, tmp_path / "bundle", config, "tokenizer_config.json")
    with pytest.raises(InputError, match="has no chat template"):
        Runner.load(folder, threads=1).chat([USER])
