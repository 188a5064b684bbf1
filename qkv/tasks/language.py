"""Language: is a text German or English? A guess, by the small words that sentences are full of."""

import re

GERMAN = frozenset("""
    aber alle als auf aus bei bin bist bitte da das dass dein deine dem den der des dich die dir doch du
    ein eine einem einen einer er es euch für geht habe haben hast hat hatte hier ich ihm ihn ihr ihre
    im ist ja jetzt kann kein keine man mein meine mich mir mit muss nach nicht nichts noch nur oder
    schon sehr sein seine sich sie sind um und uns vom von vor wann war warum wenn wer werden wie wir
    wird wo zu zum zur
""".split())  # fmt: skip
ENGLISH = frozenset("""
    a about again all always and another any are as at be been being but by can come could did do does
    down every for from get go good got had has have he help her here him his how i if is it just know
    let like likes ll m made me more much my need never not now of on one only our out please re really
    said see she should some something still stop t tell than that the their them there they think this
    to too up us ve very we were what when where which who why with would you your
""".split())  # fmt: skip
ENDS = ("ing", "ed", "ly")  # of English words
UMLAUTS = frozenset("äöüß")


def german_or_english(text: str) -> str:
    """`de` or `en`: the one with more words in it; German where that does not tell."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    german = sum(word in GERMAN or not UMLAUTS.isdisjoint(word) for word in words)
    english = sum(word in ENGLISH or word.endswith(ENDS) for word in words)
    return "en" if english > german else "de"
