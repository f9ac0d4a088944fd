"""Texts are joined with a space where their languages have one between words."""

from __future__ import annotations

import pytest

from tightbeam.deploy.inputs.output import Output, join
from tightbeam.deploy.text.scripts import join_texts


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        ([" Good morning.", "", " How are you? "], "Good morning. How are you?"),
        (["今日は天気が", "いいですね。", "散歩に行きます"], "今日は天気がいいですね。散歩に行きます"),
        (["今天我用", "OpenAI", "的模型"], "今天我用OpenAI的模型"),
        (["你好。", "Good morning"], "你好。Good morning"),
        (["สวัสดี", "ครับ"], "สวัสดีครับ"),
        (["안녕하세요", "여러분"], "안녕하세요 여러분"),
        ([], ""),
    ],
)
def test_joined_texts(texts: list[str], joined: str) -> None:
    assert join_texts(texts) == joined


def test_parts_of_a_recording_are_joined_as_their_language_is_written() -> None:
    parts = [Output([[1]], None, [text], new_tokens=1) for text in ("今日は", "晴れです。")]
    assert join(parts).texts == ["今日は晴れです。"]
