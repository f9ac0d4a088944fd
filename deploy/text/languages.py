"""The languages of texts: their codes, and the likeliest language of a text, which py3langid finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tightbeam.deploy.errors import InputError

__all__ = ["DetectedLanguage", "DetectorMissing", "likely_languages", "likely_name", "short_codes"]

READ = 4096
"""Characters of the texts that are read: more change little."""
INSTALL = "pip install 'tightbeam[detect]'"


class DetectorMissing(InputError):
    """No detector of languages is installed."""


class DetectedLanguage(NamedTuple):
    """A language that a text may have.

    Attributes
    ----------
    code : str
        Its code, one of the caller's.
    probability : float
        Its probability among all languages that the detector knows.
    """

    code: str
    probability: float


def short_codes(names: Iterable[str]) -> dict[str, str]:
    """Return a model's names of languages (en_XX, eng_Latn, en) by their shortest codes that differ (en, zh-Hans)."""
    own = list(names)
    forms = [[*_forms(name), name] for name in own]
    counts = [Counter(level) for level in zip(*forms, strict=True)]
    return {
        next(code for code, count in zip(each, counts, strict=True) if count[code] == 1): name
        for each, name in zip(forms, own, strict=True)
    }


def _forms(name: str) -> list[str]:
    """Return the codes of a language, the shortest first."""
    import langcodes

    tag = name.strip("_").replace("_", "-")
    try:
        whole = [langcodes.standardize_tag(tag, macro=macro) for macro in (True, False)]
    except ValueError:  # not a code
        return [name] * 4
    return [form for each in whole for form in (each.split("-")[0], each)]


def likely_name(text: str, names: Iterable[str]) -> str:
    """Return a model's name of the likeliest language of a text, among ``names``. Raises as `likely_languages`."""
    _detector()  # before langcodes, which its extra installs
    codes = _cached_codes(tuple(names))
    return codes[likely_languages([text], codes)[0].code]


def likely_languages(texts: Sequence[str], codes: Iterable[str]) -> list[DetectedLanguage]:
    """Return the languages that texts may have, the likeliest first. All texts are taken for one language.

    Parameters
    ----------
    texts
        The texts.
    codes
        Codes of the languages to choose from; those that the detector does not know are left out.

    Returns
    -------
    list of DetectedLanguage

    Raises
    ------
    DetectorMissing
        The detector is not installed.
    InputError
        The texts have no letter, or the detector knows none of the languages.
    """
    detector = _detector()
    text = "\n".join(texts)[:READ]
    if not any(map(str.isalpha, text)):
        raise InputError(
            "the text has no letter, so its language cannot be found; pass the source language by its code"
        )
    own = _codes_of_labels(tuple(detector.labels), tuple(codes))
    if not own:
        raise InputError("the detector of languages knows none of these; pass the source language by its code")
    found = Counter[str]()
    for label, probability in detector.rank(text):
        if label in own:
            found[own[label]] += probability
    return [DetectedLanguage(code, probability) for code, probability in found.most_common()]


@lru_cache(1)
def _detector() -> Any:
    """Load the detector, which takes a second and 100 MB. Raises DetectorMissing."""
    try:
        import langcodes  # noqa: F401
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        problem = "no detector of languages is installed"
        raise DetectorMissing(f"{problem}; {INSTALL}, or pass the source language by its code") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


_cached_codes = lru_cache(64)(short_codes)


@lru_cache(64)
def _codes_of_labels(labels: tuple[str, ...], codes: tuple[str, ...]) -> dict[str, str]:
    """Return the caller's code of each language of the detector that has one: nb for no, zh-Hans for zh."""
    import langcodes

    found = {label: langcodes.closest_match(label, codes, max_distance=1) for label in labels}
    return {label: code for label, (code, _) in found.items() if code in codes}
