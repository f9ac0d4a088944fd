"""Chat templates: the texts and tokens of transformers' ``apply_chat_template``, and limits that no template passes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from support.chat_templates import PLAIN, TEMPLATES
from tightbeam.deploy import InputError
from tightbeam.deploy.chat import template as chat_template
from tightbeam.deploy.chat.conversation import Conversation
from tightbeam.deploy.chat.messages import MAX_CHARACTERS, check_messages, turns_of
from tightbeam.deploy.chat.template import ChatTemplate
from tightbeam.deploy.text.tokenizer import _TokenizersCodec

SPECIAL = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<start_of_turn>")
PIECES = (
    *("the tram ", "Where is it?", " two  blanks ", "\n", "\n\n", "naïve café", "漢字", "🚋", "<|im_end|>", "'quoted'"),
    *(
        '"double"',
        "{{ 7 * 7 }}",
        "{% raw %}",
        "<think>\nhm\n</think>\n\n",
        "a\r\n\r\nb",
        "\\n",
        "[INST]",
        "<s>",
        "&lt;",
    ),
)
CONVERSATIONS = 16


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, special tokens, and a beginning token before each text that is not a conversation."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def codec(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> _TokenizersCodec:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return _TokenizersCodec(str(folder / "tokenizer.json"))


def random_text(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.randint(1, 5)))


def random_conversation(draw: random.Random, *, parts: bool = False) -> list[dict[str, Any]]:
    """A system message or none, and turns that now and then do not alternate, or end with a beginning of an answer."""
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": random_text(draw)})
    for turn in range(draw.randint(1, 6)):
        role = ("user", "assistant")[turn % 2 if draw.random() < 0.95 else 0]
        messages.append({"role": role, "content": random_text(draw)})
        if draw.random() < 0.1:
            messages[-1] |= {"name": "Ann", "reasoning_content": "so", "nothing": None}
    if parts:
        for message in messages:
            texts = [message["content"], *(random_text(draw) for _ in range(draw.randint(0, 2)))]
            message["content"] = [{"type": "text", "text": text} for text in texts]
    return messages


def expected(tokenizer: Any, template: str, messages: list[dict[str, Any]]) -> tuple[str, list[int]] | None:
    """The text and tokens of transformers, which begins an answer or continues one; None if it refuses."""
    continued = messages[-1]["role"] == "assistant"
    how: dict[str, Any] = {"chat_template": template, "continue_final_message": continued}
    how["add_generation_prompt"] = not continued
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **how)
        return text, list(tokenizer.apply_chat_template(messages, **how)["input_ids"])
    except Exception:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_tokens_are_those_of_apply_chat_template(name: str, tokenizer: Any, codec: Any) -> None:
    source, draw = TEMPLATES[name], random.Random(name)
    template = ChatTemplate(source, tokenizer.special_tokens_map)
    equal = 0
    for _ in range(CONVERSATIONS):
        messages = random_conversation(draw)
        wanted = expected(tokenizer, source, messages)
        conversation = Conversation(check_messages(messages), template, codec)
        if wanted is None:
            with pytest.raises(InputError, match="the chat template refuses these messages"):
                conversation.ids()
            continue
        continued = messages[-1]["role"] == "assistant"
        assert template.render(check_messages(messages), continued=continued) == wanted[0]
        assert conversation.ids() == wanted[1]
        equal += 1
    assert equal >= CONVERSATIONS // 4


def test_parts_go_to_a_template_that_reads_them_and_are_joined_for_others(tokenizer: Any) -> None:
    draw = random.Random(3)
    for name in ("parts", "chatml", "headings", "json"):
        source = TEMPLATES[name]
        template = ChatTemplate(source, tokenizer.special_tokens_map)
        for _ in range(4):
            messages = random_conversation(draw, parts=True)
            joined = [
                {**message, "content": "".join(part["text"] for part in message["content"])} for message in messages
            ]
            wanted = expected(tokenizer, source, messages if name == "parts" else joined)
            if wanted is not None:
                continued = messages[-1]["role"] == "assistant"
                assert template.render(check_messages(messages), continued=continued) == wanted[0]


def test_the_beginning_token_comes_once(tokenizer: Any, codec: Any) -> None:
    messages = check_messages([{"role": "user", "content": "a"}])
    begin = tokenizer.bos_token_id
    with_it = ChatTemplate("{{ bos_token }}" + PLAIN, tokenizer.special_tokens_map)
    assert Conversation(messages, with_it, codec).ids().count(begin) == 1
    without = ChatTemplate(PLAIN, tokenizer.special_tokens_map)
    assert Conversation(messages, without, codec).ids().count(begin) == 0  # the tokenizer would add one
    assert codec.encode("a").count(begin) == 1


MINUTES = {
    "loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "product": "{{ 'a' * 10**10 }}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "replacement": "{% set n = namespace(x='a' * 100000) %}{{ n.x.replace('', n.x) }}",
    "calls": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "power": "{{ 1.5|round(10**9, 'ceil') }}",
}
REFUSED = {
    "{% for i in range(99999) %}{{ 'a' * 100 }}{% endfor %}": "a text of 9,999,900 characters, expected 4,194,304",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{{ ''.__class__.__mro__ }}": "SecurityError",
    "{% set n = namespace(__a=1) %}": "SecurityError",
    "{{ messages.append(1) }}": "SecurityError",
    "{% include '/etc/passwd' %}": "TypeError: no loader",
    "{{ raise_exception('no such role\\nat all') }}": r"\(no such role\); pass what it takes",
    "{{ a.b.c }}": "UndefinedError: 'a' is undefined",
}
BROKEN = {
    "{% for %}": "TemplateSyntaxError: Expected an expression",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "RecursionError",
    "a" * (chat_template.MAX_TEMPLATE_BYTES + 1): "has more than 262,144 bytes",
}
HELLO = check_messages([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("name", MINUTES)
def test_no_template_takes_more_time_or_memory_than_it_may(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.3)
    template = ChatTemplate(MINUTES[name] + "{{ messages }}", {})
    for _ in range(2):  # the process was ended, and is started again
        with pytest.raises(InputError, match=r"takes more than (0.3 seconds|512 MiB) for .*--chat-template FILE"):
            template.render(HELLO)


@pytest.mark.parametrize("source", REFUSED, ids=range(len(REFUSED)))
def test_a_template_that_fails_is_an_error_of_one_line(source: str) -> None:
    template = ChatTemplate(source, {})
    for _ in range(2):
        with pytest.raises(InputError, match=REFUSED[source]) as error:
            template.render(HELLO)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_a_template_that_cannot_be_compiled_names_the_fix(source: str) -> None:
    template = ChatTemplate(source, {})
    for use in (template.check, lambda: template.render(HELLO)):
        with pytest.raises(InputError, match=f"the bundle's chat template .*{BROKEN[source]}.*--chat-template FILE"):
            use()


def test_the_process_is_started_again_after_its_end_and_ends_with_the_template() -> None:
    template = ChatTemplate(PLAIN, {})
    text = template.render(HELLO)
    first = template._process
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(InputError, match="ended the process that renders it"):
        while template.render(HELLO) == text and template._process is first:  # until the kill is seen
            time.sleep(0.01)
        raise InputError("the chat template ended the process that renders it")  # it was seen before the request
    assert template.render(HELLO) == text
    second = template._process
    assert second is not None and second is not first
    del template
    assert second.returncode is not None


def test_threads_share_a_template() -> None:
    template = ChatTemplate(PLAIN, {})
    found: dict[int, str] = {}

    def render(number: int) -> None:
        for _ in range(20):
            found[number] = template.render(check_messages([{"role": "user", "content": str(number)}]))

    threads = [threading.Thread(target=render, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"<|user|>{number}<|end|><|assistant|>" for number in range(4)}


USER = {"role": "user", "content": "a"}
MESSAGES: list[tuple[Any, str]] = [
    ("a", "messages is str, expected a list"),
    ([], "messages is empty"),
    ([USER] * 4097, "there are 4,097 messages, expected 4,096 at most"),
    (["a"], "message 0: 'a' is not an object such as"),
    ([USER, {"role": "user"}], "message 1: it has no content"),
    ([{"content": "a"}], "message 0: it has no role"),
    ([{**USER, "role": 3}], "message 0: role is 3, expected a text"),
    ([{**USER, "role": ["user"]}], r"message 0: role is \['user'\], expected a text"),
    ([{**USER, "content": 3}], "message 0: content is 3, expected a text"),
    ([{**USER, "content": []}], r"message 0: content is \[\], expected a text"),
    ([{**USER, "content": [{"type": "image", "url": "x"}]}], "content is .*image.*; pass texts alone"),
    ([{**USER, "content": None}], "message 0: it has no content"),
    ([{**USER, "role": "tool"}], "message 0: role is about tools, which are not supported"),
    ([{"role": "assistant", "content": None, "tool_calls": []}], "message 0: tool_calls is about tools"),
    ([{**USER, 5: "a"}], "is not an object"),
    ([{**USER, "name": object()}], "messages are not JSON"),
    ([{**USER, "content": "\ud83d"}], "half a character"),
    ([{**USER, "content": "a" * MAX_CHARACTERS}], "messages have 4,194,337 characters, expected 4,194,304 at most"),
]


@pytest.mark.parametrize("given, reason", MESSAGES, ids=range(len(MESSAGES)))
def test_messages_of_another_form_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_messages(given)


def test_messages_are_copied_without_their_empty_fields() -> None:
    given = [{**USER, "name": None}]
    assert check_messages(given) == [USER] and given == [{**USER, "name": None}]


def test_the_oldest_turns_are_left_out(tokenizer: Any, codec: Any) -> None:
    """Of every length that fits: the system message, and as many of the newest turns as possible."""
    template = ChatTemplate(TEMPLATES["brackets"], tokenizer.special_tokens_map)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}]
    for turn in range(12):
        messages += [{"role": "user", "content": f"question {turn}"}, {"role": "assistant", "content": "yes " * turn}]
    messages.pop()
    kept, turns = turns_of(check_messages(messages))
    assert kept == messages[:1] and [len(turn) for turn in turns] == [2] * 11 + [1]
    conversation = Conversation(check_messages(messages), template, codec)
    lengths = []
    for first in range(1, 24, 2):
        shorter = [messages[0], *messages[first:]]
        whole = tokenizer.apply_chat_template(shorter, chat_template=TEMPLATES["brackets"])["input_ids"]
        if first > 1:
            assert conversation.within(len(whole)) == conversation.within(lengths[-1] - 1) == whole
        lengths.append(len(whole))
    with pytest.raises(InputError, match=rf"the last turn and the system .* have {lengths[-1]} tokens, more than 20"):
        conversation.within(20)
    alone = Conversation(check_messages(messages[:1]), ChatTemplate(PLAIN, {}), codec)
    with pytest.raises(InputError, match="the system messages are longer than 3 tokens"):
        alone.within(3)


def test_turns_without_a_user_are_single_messages() -> None:
    others = [{"role": role, "content": "a"} for role in ("assistant", "critic", "assistant")]
    assert turns_of(others) == ([], [[message] for message in others])
    late = [*others[:1], USER, *others[1:], USER]
    assert turns_of(late) == ([], [late[:1], late[1:4], late[4:]])


def test_the_renderer_is_a_file_beside_the_template() -> None:
    assert Path(chat_template.RENDERER).is_file()
