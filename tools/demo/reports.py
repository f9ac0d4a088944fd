"""Short made-up news reports with one-line headlines: the training text of the demo model in `export/demo`.

A report gives one event in two neighbouring sentences (what, where and how many; then who and when) and pads it with
sentences about other people, towns and numbers. Its headline must copy the event's facts and nothing else, so anyone
can judge a model by looking. Each event has several admissible headlines of different length, drawn at random for
training: the wording is ambiguous on purpose, so that search strategies differ.

Held-out reports are set apart by their facts: a town, number and person that meet in a held-out report never meet in
a training report, whatever the seeds.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

HELD_OUT_SHARE = 8  # one combination of facts in eight is never trained on

TOWN_STEMS = (
    "Alder Ash Birch Black Bright Clear Cold Dun East Elm Fair Fern Glen Green Hazel Heath "
    "High Holm Kings Lang Linden Marsh Mill New North Oak Red Salt Sand Silver Stone Thorn West White Wind Winter"
).split()
TOWN_ENDINGS = "bridge brook bury dale field ford ham ley mouth port stead ton well wick wood worth".split()
TOWNS = tuple(stem + ending for stem in TOWN_STEMS for ending in TOWN_ENDINGS)
FIRST_NAMES = (
    "Ada Amir Anna Ben Carla Carlos Clara Daniel David Diego Elena Emma Erik Fatima Felix Grace Hana Hugo Ines Ivan "
    "Jack Jana Julia Karim Laura Leo Lina Lucas Maria Marta Mina Nadia Nina Noah Olga Omar Oscar Paula Peter Priya "
    "Rosa Ruth Samir Sara Simon Sofia Tariq Thomas Vera Yusuf"
).split()
SURNAMES = (
    "Abbott Ahmed Allen Bailey Baker Banks Bauer Becker Bennett Carter Castro Chen Clarke Cooper Costa Dalton Davis "
    "Diaz Evans Fischer Fletcher Foster Garcia Gibson Gray Haddad Harris Hughes Ito Jansen Jensen Kaya Keller Khan "
    "Kim Kovacs Larsen Lewis Lopez Mason Meyer Miller Moreno Morgan Murphy Nguyen Novak Okafor Olsen Palmer Patel "
    "Perez Petrov Quinn Ramos Reed Rossi Sato Schmidt Shah Silva Singh Taylor Turner Walker Weber Wright Young"
).split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
WHENS = tuple([f"on {day}" for day in WEEKDAYS] + [f"in {month}" for month in MONTHS])


@dataclass(frozen=True)
class Theme:
    """A kind of event. Templates may use {town}, {count}, {thing}, {person}, {role} and {when}."""

    things: tuple[str, ...]
    roles: tuple[str, ...]
    leads: tuple[str, ...]
    """Lead sentences: what, where and how many."""
    details: tuple[str, ...]
    """Sentences for who and when; always right after the lead."""
    headlines: tuple[tuple[float, str], ...]
    """Admissible headlines, each with its share of the training data."""


THEMES = (
    Theme(
        things=("homes", "flats", "cottages", "garages"),
        roles=("mayor", "planner", "builder"),
        leads=(
            "The council in {town} has approved {count} {thing}.",
            "Councillors in {town} voted for {count} new {thing}.",
            "Plans for {count} {thing} in {town} have been passed.",
        ),
        details=(
            "Building starts {when}, said {role} {person}.",
            "{person}, the {role}, said that building would start {when}.",
        ),
        headlines=(
            (0.50, "{town} council approves {count} {thing}"),
            (0.35, "{count} {thing} approved in {town}, building starts {when}"),
            (0.15, "{count} {thing} approved in {town}, says {person}"),
        ),
    ),
    Theme(
        things=("books", "maps", "letters", "comics"),
        roles=("librarian", "donor", "historian"),
        leads=(
            "The library in {town} has been given {count} {thing}.",
            "A gift of {count} {thing} has reached the library in {town}.",
            "Readers in {town} can look forward to {count} {thing} at the library.",
        ),
        details=(
            "They can be borrowed {when}, said {role} {person}.",
            "The {role}, {person}, expects to put them on the shelves {when}.",
        ),
        headlines=(
            (0.45, "{town} library receives {count} {thing}"),
            (0.30, "{count} {thing} for {town} library"),
            (0.25, "{count} {thing} reach {town} library, on the shelves {when}"),
        ),
    ),
    Theme(
        things=("trees", "roses", "shrubs", "tulips"),
        roles=("gardener", "volunteer", "ranger"),
        leads=(
            "Volunteers in {town} have planted {count} {thing}.",
            "The park in {town} now has {count} new {thing}.",
            "{count} {thing} were planted in the park in {town}.",
        ),
        details=(
            "They should bloom {when}, said {role} {person}.",
            "The park opens again {when}, according to {person}, a {role}.",
        ),
        headlines=(
            (0.40, "{count} {thing} planted in {town}"),
            (0.30, "{town} park gains {count} {thing}, says {person}"),
            (0.30, "{town} park gains {count} {thing}, more to see {when}"),
        ),
    ),
    Theme(
        things=("roofs", "cars", "fences", "sheds"),
        roles=("carpenter", "farmer", "warden"),
        leads=(
            "A storm in {town} has damaged {count} {thing}.",
            "Strong wind damaged {count} {thing} in {town}.",
            "In {town}, {count} {thing} were damaged by a storm.",
        ),
        details=(
            "Repairs will begin {when}, said {person}, a {role}.",
            "The {role}, {person}, hopes that repairs will begin {when}.",
        ),
        headlines=(
            (0.50, "Storm damages {count} {thing} in {town}"),
            (0.25, "{count} {thing} damaged by storm in {town}, repairs begin {when}"),
            (0.25, "{town} storm damages {count} {thing}"),
        ),
    ),
    Theme(
        things=("fans", "guests", "neighbours", "reporters"),
        roles=("coach", "captain", "goalkeeper"),
        leads=(
            "The team from {town} won at home in front of {count} {thing}.",
            "In {town}, {count} {thing} watched the home team win.",
            "{count} {thing} cheered as the team from {town} won the match.",
        ),
        details=(
            "The next match is {when}, said {role} {person}.",
            "{person}, the {role}, is ready for the next match {when}.",
        ),
        headlines=(
            (0.40, "{count} {thing} see {town} win"),
            (0.35, "{town} win in front of {count} {thing}, next match {when}"),
            (0.25, "{town} win in front of {count} {thing}"),
        ),
    ),
    Theme(
        things=("bakers", "clerks", "cooks", "drivers"),
        roles=("manager", "owner", "director"),
        leads=(
            "A new shop in {town} will hire {count} {thing}.",
            "A shop in {town} is looking for {count} {thing}.",
            "{count} {thing} will find work at a new shop in {town}.",
        ),
        details=(
            "The doors open {when}, said {role} {person}.",
            "{person}, the {role}, will open the doors {when}.",
        ),
        headlines=(
            (0.50, "{town} shop to hire {count} {thing}"),
            (0.35, "New shop in {town} needs {count} {thing}, doors open {when}"),
            (0.15, "New shop in {town} needs {count} {thing}, says {person}"),
        ),
    ),
    Theme(
        things=("days", "weeks", "nights", "hours"),
        roles=("inspector", "surveyor", "foreman"),
        leads=(
            "The bridge in {town} will be closed for {count} {thing}.",
            "Drivers in {town} must do without the bridge for {count} {thing}.",
            "Repairs will close the bridge in {town} for {count} {thing}.",
        ),
        details=(
            "Work begins {when}, said {role} {person}.",
            "{person}, the {role}, said that work would begin {when}.",
        ),
        headlines=(
            (0.45, "{town} bridge to close for {count} {thing}"),
            (0.30, "{town} bridge closed for {count} {thing}, work begins {when}"),
            (0.25, "Bridge in {town} closed for {count} {thing}, says {person}"),
        ),
    ),
    Theme(
        things=("pupils", "students", "teachers", "children"),
        roles=("teacher", "principal", "caretaker"),
        leads=(
            "The school in {town} has welcomed {count} new {thing}.",
            "{count} {thing} have joined the school in {town}.",
            "There was cake for {count} new {thing} at the school in {town}.",
        ),
        details=(
            "Lessons start {when}, said {role} {person}.",
            "The {role}, {person}, said that lessons would start {when}.",
        ),
        headlines=(
            (0.40, "{town} school welcomes {count} {thing}"),
            (0.30, "{count} {thing} join {town} school, lessons start {when}"),
            (0.30, "{count} {thing} join {town} school, says {person}"),
        ),
    ),
    Theme(
        things=("benches", "lamps", "clocks", "lockers"),
        roles=("conductor", "signalman", "architect"),
        leads=(
            "The station in {town} is getting {count} {thing}.",
            "The railway will put {count} {thing} into the station in {town}.",
            "{count} new {thing} have arrived at the station in {town}.",
        ),
        details=(
            "They will be ready {when}, said {role} {person}.",
            "{person}, the {role}, wants them to be ready {when}.",
        ),
        headlines=(
            (0.50, "{town} station gets {count} {thing}"),
            (0.40, "{count} new {thing} for travellers at {town} station, ready {when}"),
            (0.10, "{count} new {thing} at {town} station"),
        ),
    ),
    Theme(
        things=("singers", "dancers", "drummers", "jugglers"),
        roles=("organiser", "composer", "host"),
        leads=(
            "The festival in {town} has invited {count} {thing}.",
            "{count} {thing} will perform at the festival in {town}.",
            "The stage in {town} will be shared by {count} {thing}.",
        ),
        details=(
            "The festival opens {when}, said {role} {person}.",
            "{person}, the {role}, will open the festival {when}.",
        ),
        headlines=(
            (0.40, "{count} {thing} to perform in {town}"),
            (0.35, "{town} festival opens {when} with {count} {thing}"),
            (0.25, "{town} festival invites {count} {thing}, says {person}"),
        ),
    ),
    Theme(
        things=("sheep", "cats", "hikers", "ponies"),
        roles=("firefighter", "vet", "officer"),
        leads=(
            "Firefighters in {town} have rescued {count} {thing}.",
            "{count} {thing} were rescued from a flooded field in {town}.",
            "A rescue team in {town} brought {count} {thing} to safety.",
        ),
        details=(
            "All of them can go home {when}, said {role} {person}.",
            "{person}, the {role}, will take them home {when}.",
        ),
        headlines=(
            (0.50, "{count} {thing} rescued in {town}"),
            (0.30, "Rescue in {town}: {count} {thing} safe, going home {when}"),
            (0.20, "Rescue in {town}: {count} {thing} safe, says {person}"),
        ),
    ),
    Theme(
        things=("boats", "bicycles", "buses", "pianos"),
        roles=("designer", "mechanic", "founder"),
        leads=(
            "The factory in {town} will build {count} {thing}.",
            "An order for {count} {thing} has come to the factory in {town}.",
            "Workers at the factory in {town} are to build {count} {thing}.",
        ),
        details=(
            "The first one will be finished {when}, said {role} {person}.",
            "{person}, the {role}, will show the first one {when}.",
        ),
        headlines=(
            (0.45, "{town} factory to build {count} {thing}"),
            (0.35, "Order for {count} {thing} goes to {town}, first one ready {when}"),
            (0.20, "Order for {count} {thing} goes to {town}, says {person}"),
        ),
    ),
)

DISTRACTORS = (
    "The weather in {town} stayed dry {when}.",
    "A poster in {town} shows {count} {thing}.",
    "{person} has lived in {town} for {count} months.",
    "A cafe in {town} sold {count} cups of tea.",
    "Bus fares in {town} may rise {when}.",
    "A film about {count} {thing} is on in {town}.",
    "The road to {town} is {count} miles long.",
    "{person} has written a song about {count} {thing}.",
    "Rain is expected in {town} {when}.",
    "A reader called {person} wrote to us {when}.",
    "In {town} the swimming pool is closed {when}.",
    "An old painting in {town} shows {count} {thing}.",
    "{person} found an old coin near {town}.",
    "The mayor of {town} will not comment.",
    "It was quiet elsewhere.",
    "Our photographer, {person}, took {count} pictures.",
    "{town} will vote on its budget {when}.",
    "Ticket {count} won the lottery in {town}.",
    "Many people went home early.",
    "{person} from {town} baked {count} pies.",
)

THINGS = tuple(thing for theme in THEMES for thing in theme.things)
HEADLINE_OPENERS = frozenset(form.split()[0] for theme in THEMES for _, form in theme.headlines)


@dataclass(frozen=True)
class Report:
    """One report: its text on one line, its admissible headlines, and the facts that they may mention."""

    text: str
    headlines: tuple[str, ...]
    weights: tuple[float, ...]
    """Frequency of each of `headlines` as the training target; sums to 1."""
    facts: dict[str, str]
    """`where`, `how many` and `what`, which every headline has; `who` and `when`, which some have."""


def generate(seed: int, count: int, *, held_out: bool = False) -> list[Report]:
    """Return `count` different reports, the same ones for the same arguments.

    Training reports (the default) and held-out reports never share a combination of town, number and person.
    """
    return list(islice(stream(seed, held_out=held_out), count))


def stream(seed: int, *, held_out: bool = False) -> Iterator[Report]:
    """Yield different reports without end."""
    rng = random.Random(f"{'held-out' if held_out else 'training'} {seed}")
    seen: set[int] = set()
    while True:
        report = _report(rng, held_out)
        key = zlib.crc32(report.text.encode())
        if key not in seen:
            seen.add(key)
            yield report


def is_held_out(facts: dict[str, str]) -> bool:
    """True if this combination of town, number and person is held out of training."""
    combination = f"{facts['where']}|{facts['how many']}|{facts['who']}"
    return zlib.crc32(combination.encode()) % HELD_OUT_SHARE == 0


def facts_right(headline: str, report: Report) -> bool:
    """True if a headline has the right where, how many and what, and no name, number or date of another event.

    Wording is not judged. A fact that is mentioned at all must be mentioned in full.
    """
    words = re.findall(r"\w+", headline)
    allowed = {word for fact in report.facts.values() for word in fact.split()}
    for position, word in enumerate(words):
        states_a_fact = word[0].isupper() or word[0].isdigit() or word in THINGS
        opens_the_line = position == 0 and word in HEADLINE_OPENERS
        if states_a_fact and word not in allowed and not opens_the_line:
            return False
    for name, fact in report.facts.items():
        # "on" and "in" also stand before towns, so a date counts as mentioned by its last word only.
        hints = fact.split()[-1:] if name == "when" else fact.split()
        mentioned = name in ("where", "how many", "what") or any(hint in words for hint in hints)
        if mentioned and not re.search(rf"\b{re.escape(fact)}\b", headline):
            return False
    return True


def _report(rng: random.Random, held_out: bool) -> Report:
    theme = rng.choice(THEMES)
    event = _draw_facts(rng, theme)
    while is_held_out(event) != held_out:
        event = _draw_facts(rng, theme)
    slots = _slots(event) | {"role": rng.choice(theme.roles)}
    sentences = _distractors(rng, theme, event, count=rng.randint(1, 3))
    place = rng.randint(0, len(sentences))
    sentences[place:place] = [rng.choice(theme.leads).format(**slots), rng.choice(theme.details).format(**slots)]
    weights, forms = zip(*theme.headlines, strict=True)
    return Report(
        text=" ".join(sentences),
        headlines=tuple(form.format(**slots) for form in forms),
        weights=weights,
        facts=event,
    )


def _distractors(rng: random.Random, theme: Theme, event: dict[str, str], count: int) -> list[str]:
    """Sentences whose names, numbers and dates all differ from the event's."""
    sentences = []
    for template in rng.sample(DISTRACTORS, count):
        other = _draw_facts(rng, theme if rng.random() < 0.5 else rng.choice(THEMES))
        while _words(other) & _words(event):
            other = _draw_facts(rng, rng.choice(THEMES))
        sentences.append(template.format(**_slots(other)))
    return sentences


def _draw_facts(rng: random.Random, theme: Theme) -> dict[str, str]:
    number = rng.randint(2, 99) if rng.random() < 0.5 else rng.randint(100, 999)
    return {
        "who": f"{rng.choice(FIRST_NAMES)} {rng.choice(SURNAMES)}",
        "what": rng.choice(theme.things),
        "where": rng.choice(TOWNS),
        "how many": str(number),
        "when": rng.choice(WHENS),
    }


def _words(facts: dict[str, str]) -> set[str]:
    """The words that distinguish these facts from others."""
    return set(" ".join(facts.values()).split()) - {"on", "in"}


def _slots(facts: dict[str, str]) -> dict[str, str]:
    names = {"who": "person", "what": "thing", "where": "town", "how many": "count", "when": "when"}
    return {names[fact]: value for fact, value in facts.items()}
