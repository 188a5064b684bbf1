"""Language detectors for translation models, by name.

config.json selects a detector with `task_specific_params.translation.language_detector`."""

import re
from collections.abc import Callable

GERMAN_WORDS = frozenset("""
    aber alle als auf aus bei bin bist bitte da das dass dein deine dem den der des dich die dir
    doch du ein eine einem einen einer er es euch für geht habe haben hast hat hatte hier ich ihm
    ihn ihr ihre im ist ja jetzt kann kein keine man mein meine mich mir mit muss nach nicht
    nichts noch nur oder schon sehr sein seine sich sie sind um und uns vom von vor wann war warum
    wenn wer werden wie wir wird wo zu zum zur
""".split())  # fmt: skip
ENGLISH_WORDS = frozenset("""
    a about again all always and another any are as at be been being but by bye can christmas come
    could did do does down every for from get go good got great had happy has have he hello help
    her here hey hi him his how i if is it just know let like likes ll m made me merry more much
    my need never no not now of on one only our out please re really said see she should some
    something sorry still stop t tell than thank thanks that the their them there they think this
    to too up us ve very we welcome were what when where which who why with would yes you your
""".split())  # fmt: skip
ENGLISH_SUFFIXES = ("ing", "ed", "ly")
UMLAUTS = frozenset("äöüß")


def detect_german_or_english(text: str) -> str:
    """Return `de` or `en`, the language with more frequent words in the text; `de` if equal."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    num_german = sum(word in GERMAN_WORDS or not UMLAUTS.isdisjoint(word) for word in words)
    num_english = sum(word in ENGLISH_WORDS or word.endswith(ENGLISH_SUFFIXES) for word in words)
    return "en" if num_english > num_german else "de"


LANGUAGE_DETECTORS: dict[str, Callable[[str], str]] = {"german-english": detect_german_or_english}
