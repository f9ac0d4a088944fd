"""Sentences of a small grammar, in English and in Spanish: what the zoo's models are trained on.

Held-out sentences are set apart by what they say: a person, a verb and a thing that meet in a held-out sentence never
meet in a training sentence, whatever the seeds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

HELD_OUT_SHARE = 8  # one combination of person, verb and thing in eight is never trained on
Gender = Literal["m", "f"]
Language = Literal["en", "es"]
Tense = Literal["present", "past", "future"]
TENSES: tuple[Tense, ...] = ("present", "past", "future")


@dataclass(frozen=True)
class Noun:
    """A noun of both languages; `gender` is that of the Spanish one."""

    en: str
    en_plural: str
    es: str
    es_plural: str
    gender: Gender


@dataclass(frozen=True)
class Verb:
    """A transitive verb: the infinitive, and the third person of present, past and future."""

    en: str
    en_present: str
    en_past: str
    es_present: str
    es_past: str
    es_future: str


def _nouns(lines: str) -> tuple[Noun, ...]:
    return tuple(
        Noun(en, en_plural, es, es_plural, "f" if gender == "f" else "m")
        for en, en_plural, es, es_plural, gender in (line.split() for line in lines.strip().splitlines())
    )


PEOPLE = _nouns("""
baker bakers panadera panaderas f
fisherman fishermen pescador pescadores m
teacher teachers maestra maestras f
doctor doctors médico médicos m
neighbour neighbours vecina vecinas f
postman postmen cartero carteros m
painter painters pintora pintoras f
farmer farmers granjero granjeros m
sailor sailors marinero marineros m
girl girls niña niñas f
boy boys niño niños m
queen queens reina reinas f
gardener gardeners jardinero jardineros m
cook cooks cocinera cocineras f
""")
THINGS = _nouns("""
boat boats barco barcos m
house houses casa casas f
book books libro libros m
apple apples manzana manzanas f
chair chairs silla sillas f
lamp lamps lámpara lámparas f
letter letters carta cartas f
clock clocks reloj relojes m
horse horses caballo caballos m
bird birds pájaro pájaros m
flower flowers flor flores f
bottle bottles botella botellas f
window windows ventana ventanas f
dog dogs perro perros m
key keys llave llaves f
hat hats sombrero sombreros m
""")
VERBS = tuple(
    Verb(*line.split())
    for line in """
see sees saw ve vio verá
sell sells sold vende vendió venderá
buy buys bought compra compró comprará
paint paints painted pinta pintó pintará
carry carries carried lleva llevó llevará
clean cleans cleaned limpia limpió limpiará
count counts counted cuenta contó contará
draw draws drew dibuja dibujó dibujará
find finds found encuentra encontró encontrará
hide hides hid esconde escondió esconderá
""".strip().splitlines()
)
MANNERS = (
    ("old", "viejo", "vieja"),
    ("young", "joven", "joven"),
    ("tall", "alto", "alta"),
    ("happy", "feliz", "feliz"),
)
"""Adjectives of people: English, Spanish of both genders."""
COLOURS = (
    ("red", "rojo", "roja"),
    ("white", "blanco", "blanca"),
    ("black", "negro", "negra"),
    ("yellow", "amarillo", "amarilla"),
    ("blue", "azul", "azul"),
    ("green", "verde", "verde"),
    ("small", "pequeño", "pequeña"),
    ("broken", "roto", "rota"),
)
"""Adjectives of things, likewise; the Spanish ones take an s, or es after a consonant."""
NUMBERS = tuple(
    pair.split("/")
    for pair in "two/dos three/tres four/cuatro five/cinco six/seis seven/siete nine/nueve ten/diez twelve/doce".split()
)
PLACES = (
    ("near the bridge", "cerca del puente"),
    ("in the garden", "en el jardín"),
    ("behind the church", "detrás de la iglesia"),
    ("on the beach", "en la playa"),
    ("at the market", "en el mercado"),
    ("under the tree", "debajo del árbol"),
    ("in front of the school", "delante de la escuela"),
    ("beside the river", "junto al río"),
)
WHENS = (
    ("on Monday", "el lunes"),
    ("on Tuesday", "el martes"),
    ("on Wednesday", "el miércoles"),
    ("on Thursday", "el jueves"),
    ("on Friday", "el viernes"),
    ("on Saturday", "el sábado"),
    ("on Sunday", "el domingo"),
)


@dataclass(frozen=True)
class Sentence:
    """A sentence in both languages, and the parts of the English one; a part that it lacks is an empty text."""

    en: str
    es: str
    person: str
    """With its article and adjective: `the old baker`."""
    verb: Verb
    tense: Tense
    count: str
    colour: str
    things: str
    """The thing in the number that the sentence has it in."""
    place: str
    when: str
    combination: str
    """Person, verb and thing, which decide whether the sentence is held out."""

    def text(self, language: Language) -> str:
        """The sentence in a language."""
        return self.en if language == "en" else self.es


def stream(seed: int, *, held_out: bool = False) -> Iterator[Sentence]:
    """Yield sentences without end, the same ones for the same arguments."""
    rng = random.Random(f"{'held-out' if held_out else 'training'} {seed}")
    while True:
        sentence = _sentence(rng)
        if is_held_out(sentence.combination) == held_out:
            yield sentence


def different(seed: int, count: int, *, held_out: bool = False) -> list[Sentence]:
    """The first sentences of a stream that differ from one another."""
    found: dict[str, Sentence] = {}
    for sentence in stream(seed, held_out=held_out):
        found.setdefault(sentence.en, sentence)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("a stream has no end")


def is_held_out(combination: str) -> bool:
    """True if this combination of person, verb and thing is held out of training."""
    return zlib.crc32(combination.encode()) % HELD_OUT_SHARE == 0


def _sentence(rng: random.Random) -> Sentence:
    """One of four forms: a statement, one that begins with the day, a denial, a question."""
    person, thing, verb = rng.choice(PEOPLE), rng.choice(THINGS), rng.choice(VERBS)
    manner = rng.choice(MANNERS) if rng.random() < 0.4 else ("", "", "")
    colour = rng.choice(COLOURS) if rng.random() < 0.6 else ("", "", "")
    number = rng.choice(NUMBERS) if rng.random() < 0.5 else ("", "")
    place = rng.choice(PLACES) if rng.random() < 0.5 else ("", "")
    when = rng.choice(WHENS) if rng.random() < 0.4 else ("", "")
    tense = rng.choice(TENSES)
    plural = bool(number[0]) or rng.random() < 0.3
    who = _words("the", manner[0], person.en)
    quien = _words(_article(person.gender, False), person.es, _agreed(manner, person.gender, False))
    what = _words("" if number[0] else "the", number[0], colour[0], thing.en_plural if plural else thing.en)
    que = _words(
        number[1] or _article(thing.gender, plural),
        thing.es_plural if plural else thing.es,
        _agreed(colour, thing.gender, plural),
    )
    form = rng.choice(("statement", "statement", "statement", "day first", "denial", "question"))
    if form == "day first":
        when = when if when[0] else rng.choice(WHENS)
    es_verb = {"present": verb.es_present, "past": verb.es_past, "future": verb.es_future}[tense]
    en_verb = {"present": verb.en_present, "past": verb.en_past, "future": f"will {verb.en}"}[tense]
    asking = {"present": "does", "past": "did", "future": "will"}[tense]
    denying = {"present": "does not", "past": "did not", "future": "will not"}[tense]
    if form == "statement":
        en, es = _words(who, en_verb, what, place[0], when[0]), _words(quien, es_verb, que, place[1], when[1])
    elif form == "day first":
        en = _words(f"{when[0]},", who, en_verb, what, place[0])
        es = _words(f"{when[1]},", quien, es_verb, que, place[1])
    elif form == "denial":
        en = _words(who, denying, verb.en, what, place[0], when[0])
        es = _words(quien, "no", es_verb, que, place[1], when[1])
    else:
        place = ("", "")
        en, es = _words("where", asking, who, verb.en, what, when[0]), _words("dónde", es_verb, quien, que, when[1])
    ends = ("?", "¿", "?") if form == "question" else (".", "", ".")
    return Sentence(
        en=_capital(en) + ends[0],
        es=ends[1] + _capital(es) + ends[2],
        person=who,
        verb=verb,
        tense=tense,
        count=number[0],
        colour=colour[0],
        things=thing.en_plural if plural else thing.en,
        place=place[0],
        when=when[0],
        combination=f"{person.en}|{verb.en}|{thing.en}",
    )


def _words(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _article(gender: Gender, plural: bool) -> str:
    return {("m", False): "el", ("f", False): "la", ("m", True): "los", ("f", True): "las"}[gender, plural]


def _agreed(adjective: tuple[str, str, str], gender: Gender, plural: bool) -> str:
    """The Spanish form of an adjective."""
    word = adjective[2] if gender == "f" else adjective[1]
    if not word or not plural:
        return word
    return word + ("s" if word[-1] in "aeo" else "es")
