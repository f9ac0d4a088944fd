"""Names of Whisper's languages in English, as transformers 5.24 takes them in place of their codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["CODES", "NAMES", "language_token", "names_of"]

_TABLE = """
    af=afrikaans am=amharic ar=arabic as=assamese az=azerbaijani ba=bashkir be=belarusian bg=bulgarian bn=bengali
    bo=tibetan br=breton bs=bosnian ca=catalan/valencian cs=czech cy=welsh da=danish de=german el=greek en=english
    es=spanish/castilian et=estonian eu=basque fa=persian fi=finnish fo=faroese fr=french gl=galician gu=gujarati
    ha=hausa haw=hawaiian he=hebrew hi=hindi hr=croatian ht=haitian_creole/haitian hu=hungarian hy=armenian
    id=indonesian is=icelandic it=italian ja=japanese jw=javanese ka=georgian kk=kazakh km=khmer kn=kannada
    ko=korean la=latin lb=luxembourgish/letzeburgesch ln=lingala lo=lao lt=lithuanian lv=latvian mg=malagasy
    mi=maori mk=macedonian ml=malayalam mn=mongolian mr=marathi ms=malay mt=maltese my=myanmar/burmese ne=nepali
    nl=dutch/flemish nn=nynorsk no=norwegian oc=occitan pa=punjabi/panjabi pl=polish ps=pashto/pushto pt=portuguese
    ro=romanian/moldavian/moldovan ru=russian sa=sanskrit sd=sindhi si=sinhala/sinhalese sk=slovak sl=slovenian
    sn=shona so=somali sq=albanian sr=serbian su=sundanese sv=swedish sw=swahili ta=tamil te=telugu tg=tajik th=thai
    tk=turkmen tl=tagalog tr=turkish tt=tatar uk=ukrainian ur=urdu uz=uzbek vi=vietnamese yi=yiddish yo=yoruba
    yue=cantonese zh=chinese/mandarin
"""
NAMES: Mapping[str, tuple[str, ...]] = {
    code: tuple(names.replace("_", " ").split("/")) for code, names in (each.split("=") for each in _TABLE.split())
}
"""The names of each code, the usual one first."""
CODES: Mapping[str, str] = {name: code for code, names in NAMES.items() for name in names}
"""The code of each name."""


def language_token(given: str, languages: Mapping[str, int]) -> int | None:
    """Return the token of a language.

    Parameters
    ----------
    given : str
        The language's code (``en``), its token (``<|en|>``), or its name in English, in upper or lower case.
    languages : mapping of str to int
        The checkpoint's ``lang_to_id``.

    Returns
    -------
    int or None
        None if the model does not know the language.
    """
    name = given.strip().lower()
    found = (languages.get(each) for each in (name, f"<|{CODES.get(name, name)}|>"))
    return next((token for token in found if token is not None), None)


def names_of(languages: Iterable[str]) -> list[str]:
    """Return the languages of a model in the order of their codes, such as "en (english)"."""
    codes = sorted(name.strip("<|>") for name in languages)
    return [f"{code} ({NAMES[code][0]})" if code in NAMES else code for code in codes]
