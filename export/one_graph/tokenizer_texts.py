# ruff: noqa: RUF001 (letters that look alike are what is tried)
"""Texts on which a tokenizer in a graph must equal the bundle's: scripts, spaces, controls, emoji, special tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

__all__ = ["texts_of"]

SCRIPTS = (
    "The quick brown Fox didn't jump over our naïve café, we're on Straße 12",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το σκυλί",
    "Быстрая коричневая лиса прыгает через ёлку",
    "השועל החום המהיר קופץ שָׁלוֹם",
    "الثعلب البني السريع يقفز مَرْحَبًا",
    "तेज़ भूरी लोमड़ी कूदती है क्षत्रिय",
    "দ্রুত বাদামী শিয়াল লাফ দেয়",
    "வேகமான பழுப்பு நரி தாவுகிறது",
    "สุนัขจิ้งจอกสีน้ำตาล กระโดด",
    "敏捷的棕色狐狸 跳过懒狗。你好，世界！",
    "すばやい 茶色の狐が ジャンプする。ｶﾀｶﾅ",
    "빠른 갈색 여우가 뛰어넘는다 각",
    "სწრაფი ყავისფერი მელა",
    "Արագ շագանակագույն աղվեսը",
)
ODD = (
    *"| |  |\n|\t|\r\n| a|a |a  b|a\n\nb|a \n b|a\tb |\v\f|\x01\x1b[0m|a\x7fb|a\u00a0b|\u3000x|a\u200bb|\u200d".split(
        "|"
    ),
    *"\ufeffa|\u2028|\x85|\u00ad|\ufffd|\ue000|e\u0301|a\u0300\u0301b|é|\u0301|ﬁ|Å|①²½|ǆ|İi|\U0001d400".split("|"),
    *"0|1234567890|3.14159|1,000,000|$12.50|１２３|٣٤|10⁶|v1.2.3-rc4|a1b22c333|😀|👩‍👩‍👧‍👦 family|🇫🇷x|👍🏽|a😀b".split(
        "|"
    ),
    *"don't DON'T it'll I'm 's 'S|''|“q” ‘s ’s|—…·|?!|...|http://x.y/z?a=1&b=2|foo@bar.com|a-b_c|CamelCase".split("|"),
    *"&amp;|<|<0x0A>|[MASK]|\\n|▁|a▁b|Ġ".split("|"),
    *("a" * 300, "ab " * 400, "é" * 200, " " * 50, "\n" * 30, "好" * 300),
)
BETWEEN = (*" |  |, |. |! |\n|-|'| 12 |7|\t| (|) |😀 |\u00a0".split("|"), *" " * 6)
MIXED = 900


def texts_of(special: Sequence[str]) -> list[str]:
    """About a thousand texts, always the same ones.

    Parameters
    ----------
    special
        Texts of the tokenizer's special and added tokens, some of which are put into the texts.
    """
    draw = random.Random(0)
    marks = draw.sample(list(special), min(12, len(special)))
    return [*ODD, *_around(marks), *(_mixed(draw, SCRIPTS[index % len(SCRIPTS)], marks) for index in range(MIXED))]


def _around(marks: Sequence[str]) -> Iterator[str]:
    """Special tokens with and without spaces beside them."""
    for mark in marks:
        yield from (mark, f" {mark} ", f"a{mark}b", f"a \t{mark}\n b", f"{mark}{mark}a", f"{mark[:-1]} {mark[1:]}")


def _mixed(draw: random.Random, script: str, marks: Sequence[str]) -> str:
    """Words of one script, and now and then of another one or a special token, with odd things between them."""
    others = [*SCRIPTS, *marks]
    words = [
        draw.choice((draw.choice(others) if draw.random() < 0.1 else script).split(" ")) + draw.choice(BETWEEN)
        for _ in range(draw.randint(1, 14))
    ]
    return "".join(words)
