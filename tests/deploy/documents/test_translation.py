"""Sentences of documents, what has to come back as it was, and what is reported."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.documents import drive, translate
from tightbeam.deploy.documents.glossary import Glossary, Term, pairs_of, read_glossary
from tightbeam.deploy.documents.literals import literals_in, missing_numbers
from tightbeam.deploy.documents.passages import Mark, Passage
from tightbeam.deploy.documents.sentences import pieces_that_fit, split_sentences
from tightbeam.deploy.documents.translation import Piece, Translator, translation
from tightbeam.deploy.errors import InputError

TEXT = st.text("ab .?!\"'()\n\t\r。、A«»“:;1\u00a0\u2028é{}%@/-*", max_size=200)


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(1, 30))
def test_a_text_is_the_sum_of_its_sentences_and_pieces(text: str, most: int) -> None:
    assert "".join(split_sentences(text, "en")) == text
    pieces = list(pieces_that_fit(text, lambda piece: len(piece) <= most))
    assert "".join(pieces) == text
    assert all(len(piece) <= most for piece in pieces)


def test_sentences_of_several_languages() -> None:
    assert split_sentences("Dr. Smith paid $3.50. He left.", "en") == ["Dr. Smith paid $3.50. ", "He left."]
    assert split_sentences("Am 3. Mai kam z.B. Dr. Maier. Er ging.", "de")[-1] == "Er ging."
    assert split_sentences("今日は。はい。", "ja") == ["今日は。", "はい。"]


@pytest.mark.parametrize("sign", ["«", "“", "a ", "(", "Mr. "])
def test_a_long_text_without_an_end_takes_no_square_of_its_length(sign: str) -> None:
    parts = split_sentences(sign * 40_000, "en")
    assert "".join(parts) == sign * 40_000
    assert max(map(len, parts)) <= 2000


def test_a_text_is_translated_sentence_by_sentence_and_keeps_its_layout() -> None:
    source = "One here. Two\nthere.\n\n\n   * Item one.\n   * Item two. And more.\n\t\nlast\n"
    seen: list[str] = []

    def shout(text: str) -> str:
        seen.append(text)
        return text.upper()

    assert translate(source, "text", shout) == (source.upper(), [])
    assert seen == ["One here.", "Two there.", "Item one.", "Item two.", "And more.", "last"]


def test_a_wrapped_paragraph_is_wrapped_again_at_its_width() -> None:
    source = "The first line is long.\nIt goes on in the next\none.\n"
    made, _ = translate(source, "text", lambda text: text.replace("long", "extraordinarily long"))
    assert made == "The first line is\nextraordinarily long.\nIt goes on in the next\none.\n"


def test_lines_that_each_end_a_sentence_stay_lines() -> None:
    source = 'The baker sold it.\n\tThe girl saw it.\nWho did?\n(She said "no.")\n'
    seen: list[str] = []
    made, _ = translate(source, "text", lambda text: seen.append(text) or f"{text[:-1]} and much more{text[-1]}")
    assert [line.split(" and")[0] for line in made.split("\n")] == [line[:-1] for line in source.split("\n")]
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("source", "kind"),
    [("![a](b.png) the bird.\n", "markdown"), ("<p><img> the bird.</p>", "html"), ("<p>a bird.<br> It.</p>", "html")],
)
def test_a_mark_between_spaces_stays_there(source: str, kind: str) -> None:
    made, _ = translate(source, kind, lambda text: f"x{text[1:]}")
    wanted = source.replace(" the", " xhe").replace(">a", ">x").replace(" It", " xt")
    assert made == wanted


def test_a_sentence_without_room_is_cut_at_clauses_and_reported() -> None:
    pieces: list[str] = []
    made, reports = translate(
        "First clause here, second clause here, third.\n", "text", lambda text: pieces.append(text) or text, most=25
    )
    assert pieces == ["First clause here,", "second clause here,", "third."]
    assert made == "First clause here, second clause here, third.\n"
    assert len(reports) == 1 and reports[0].startswith("line 1: ") and "cut into 3 parts" in reports[0]


LITERAL = ["{name}", "{{x}}", "%s", "%(count)d", "%1$s", "%5.2f", "${HOME}", "https://a.org/b?c=d", "a.b@c-d.org"]


@pytest.mark.parametrize("literal", LITERAL)
def test_literals_come_back_from_a_model_that_loses_them(literal: str) -> None:
    source = f"Say {literal}, then go.\n"
    assert literals_in(source) == [(4, 4 + len(literal))]
    made, reports = translate(source, "text", lambda text: re.sub(r"[^a-z ]", "", text.lower()))
    assert (made, reports) == (f"say {literal}, then go\n", [])


@pytest.mark.parametrize("text", ["100 % of it", "50% off", "a {b c} d", "{}{", "100%"])
def test_what_only_looks_like_a_placeholder_is_text(text: str) -> None:
    assert literals_in(text) == ([(0, 2)] if text == "{}{" else [])


def test_lost_numbers_are_reported_whatever_parts_their_thousands() -> None:
    assert missing_numbers("In 1,250 years and 3 days", "En 1.250 años y 3 días") == []
    assert missing_numbers("In 1,250 years and 3 days", "En 1.205 años y días") == ["1,250", "3"]
    _, reports = translate("He is 42.\n", "text", lambda text: text.replace("42", "old"))
    assert reports == ['line 1: "He is 42." lost the number 42']


def test_a_failed_sentence_stays_and_is_reported() -> None:
    passage = Passage("Good one. Bad one.", "line 7")
    rounds = translation([passage], Translator("en", lambda text: True))
    made = drive(rounds, lambda piece: InputError("no") if "Bad" in piece.text else piece.text.upper())
    assert made.texts[0].text == "GOOD ONE. Bad one."
    assert made.reports == ['line 7: "Bad one." was not translated: no']


# Glossaries


def words(text: str) -> list[int]:
    """A tokenizer of letters, whose tokens begin words like sentencepiece's."""
    return [ord(sign) for sign in f" {text.strip()}"]


def of_words(row: object) -> str:
    return "".join(map(chr, row))  # type: ignore[call-overload]


def glossary_of(text: str) -> Glossary:
    return read_glossary(text.encode(), "terms.csv", words, of_words)


def test_a_glossary_finds_whole_words_and_the_longer_term() -> None:
    glossary = glossary_of("# a comment\nhouse|houses,Haus|Häuser\nwhite house\tWeißes Haus\n\n水,Wasser\n")
    found = [term.target for term in glossary.terms_in("The White House and two houses; a housewife")]
    assert found == [("Weißes Haus",), ("Haus", "Häuser")]
    assert [term.target for term in glossary.terms_in("飲水機")] == [("Wasser",)]


def test_forms_that_begin_another_form_stand_for_both() -> None:
    glossary = glossary_of("house,Haus|Hauses|Häuser")
    (term,) = glossary.terms_in("a house")
    assert glossary.forced([term], "a house") == ((tuple(words("Haus")), tuple(words("Häuser"))),)


@pytest.mark.parametrize("gives_attention", [False, True])
def test_two_hundred_terms_are_forced_only_where_they_occur_and_are_missing(gives_attention: bool) -> None:
    glossary = glossary_of("".join(f"term{number},Wort{number}\n" for number in range(200)))
    forced: list[Piece] = []

    def run(piece: Piece) -> str:
        if piece.forced:
            forced.append(piece)
            return f"Hier {of_words(piece.forced[0][0]).strip()}."
        return "Hier Wort7." if "term7 " in piece.text else "Hier."

    text = "Here term7 is. Here term11 is. Nothing is here."
    how = Translator("en", lambda text: True, glossary, gives_attention)
    made = drive(translation([Passage(text, "line 1")], how), run)
    assert made.texts[0].text == "Hier Wort7. Hier Wort11. Hier."
    assert [piece.text for piece in forced] == ["Here term11 is."]
    assert made.reports == []


def test_forced_words_have_no_alignment() -> None:
    asked: list[Piece] = []

    def run(piece: Piece) -> str:
        asked.append(piece)
        return "Das Haus ist rot." if piece.forced else "Das Gebäude ist rot."

    passage = Passage("The house is red.", "line 1", (Mark(13, 16, "<b>", "</b>"),))
    how = Translator("en", lambda text: True, glossary_of("house,Haus\n"), gives_attention=True)
    assert drive(translation([passage], how), run).texts[0].text == "Das Haus ist rot."
    assert [(piece.text, piece.aligned, bool(piece.forced)) for piece in asked] == [
        ("The house is red.", True, False),
        ("red", False, False),  # a sentence with forced words has no alignment, and needs the translation of this text
        ("The house is red.", False, True),
    ]


def test_a_term_that_could_not_be_placed_is_reported() -> None:
    glossary = glossary_of("house,Haus|Häuser\n")
    made = drive(
        translation([Passage("The house.", "line 3")], Translator("en", lambda text: True, glossary)),
        lambda piece: "Das Gebäude.",
    )
    assert made.reports == ['line 3: "The house." lacks house -> Haus|Häuser of the glossary']


def test_a_term_that_the_tokenizer_cannot_write_is_not_forced() -> None:
    glossary = Glossary([Term(("house",), ("Häuser",))], lambda text: [1], lambda row: "?")
    assert glossary.forced(glossary.terms_in("a house"), "a house") == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"house\n", "line 1 of terms.csv has 1 columns"),
        (b"a,b,c\n", "line 1 of terms.csv has 3 columns"),
        (b"a,\n", "line 1 of terms.csv has an empty column"),
        (b"\xff", "terms.csv is not UTF-8"),
        (b"\n# a\n", "terms.csv has no term"),
        (b"a," + b"b" * 201, "line 1 of terms.csv has more than"),
        (b"a,b\n" * 10_001, "terms.csv has more than 10,000 terms"),
        (b"a" * (1 << 22) + b"b", "terms.csv has more than"),
    ],
)
def test_a_wrong_glossary_is_one_line(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        read_glossary(data, "terms.csv", words, of_words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [{"house": "Haus|Häuser"}, [("house", "Haus|Häuser")], (["house", "Haus|Häuser"],)])
def test_pairs_are_a_mapping_or_a_list(given: object) -> None:
    assert pairs_of(given) == [("house", "Haus|Häuser")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"house,Haus\n" * 9999, "is not a list of terms; pass the name of a file"),
        (5, "glossary=5 is not a list of terms"),
        ({"house": ["Haus"]}, "pair 1 of the glossary is"),
        ([("house", "Haus"), "ab"], "pair 2 of the glossary is 'ab', not two texts"),
        ([("a", "b")] * 10_001, "the glossary has more than 10,000 terms"),
    ],
)
def test_what_is_no_list_of_terms_is_one_line(given: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        pairs_of(given)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
