"""Conversations about sentences of the grammar: the user says what happened and asks, the assistant answers from it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tools.zoo import grammar
from tools.zoo.grammar import Sentence

UNKNOWN = "You did not say."
REPEATED_SHARE = 0.5
"""Conversations in which the user asks to hear it again, which teaches to copy, and so to look up."""
QUESTIONS = ("who", "where", "when", "how many", "like")


@dataclass(frozen=True)
class Conversation:
    """What the user said, question by question, and what the assistant answered."""

    turns: tuple[tuple[str, str], ...]

    def messages(self) -> list[dict[str, str]]:
        """The conversation as a chat template takes it."""
        roles = ("user", "assistant")
        return [{"role": role, "content": text} for turn in self.turns for role, text in zip(roles, turn, strict=True)]


def stream(seed: int, *, held_out: bool = False) -> Iterator[Conversation]:
    """Yield conversations without end, the same ones for the same arguments; held-out ones are about held-out facts."""
    rng = random.Random(f"conversations {seed}")
    told = (
        sentence
        for sentence in grammar.stream(seed, held_out=held_out)
        if sentence.en.endswith(".") and " not " not in sentence.en
    )
    while True:
        sentences = list(islice(told, rng.choice((1, 2, 2))))
        if len({sentence.person.split()[-1] for sentence in sentences} | {s.things for s in sentences}) == 2 * len(
            sentences
        ):
            yield _conversation(rng, sentences)


def _conversation(rng: random.Random, sentences: list[Sentence]) -> Conversation:
    told = " ".join(sentence.en for sentence in sentences)
    questions = [(question, said) for question in QUESTIONS for said in sentences]
    turns = [_turn(question, said) for question, said in rng.sample(questions, rng.randint(1, 3))]
    if rng.random() < REPEATED_SHARE:
        turns.insert(rng.randint(0, len(turns)), ("What did I say?", told))
    return Conversation(((f"{told} {turns[0][0]}", turns[0][1]), *turns[1:]))


def _turn(question: str, said: Sentence) -> tuple[str, str]:
    """A question about a sentence, and its answer."""
    verb, person, things = said.verb, said.person, said.things
    doing = {"present": verb.en_present, "past": verb.en_past, "future": f"will {verb.en}"}[said.tense]
    asking = {"present": "does", "past": "did", "future": "will"}[said.tense]
    who = person[0].upper() + person[1:]
    plural = things in {thing.en_plural for thing in grammar.THINGS}
    if question == "who":
        return f"Who {doing} the {things}?", f"{who} {doing} the {things}."
    if question == "where":
        answer = f"{who} {doing} the {things} {said.place}." if said.place else UNKNOWN
        return f"Where {asking} {person} {verb.en} the {things}?", answer
    if question == "when":
        answer = f"{who} {doing} the {things} {said.when}." if said.when else UNKNOWN
        return f"When {asking} {person} {verb.en} the {things}?", answer
    if question == "how many":
        plurals = next(thing.en_plural for thing in grammar.THINGS if things in (thing.en, thing.en_plural))
        count = said.count or ("" if plural else "one")
        answer = f"{who} {doing} {count} {things}." if count else UNKNOWN
        return f"How many {plurals} {asking} {person} {verb.en}?", answer
    is_or_are = "are" if plural else "is"
    answer = f"The {things} {is_or_are} {said.colour}." if said.colour else UNKNOWN
    return f"What are the {things} like?" if plural else f"What is the {things} like?", answer
