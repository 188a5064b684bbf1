"""tools/wiki_text.py: plain text of articles."""

import runpy
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).resolve().parent.parent.parent / "tools" / "wiki_text.py"))

DUMP = """<page><title>Tea</title><text xml:space="preserve">{{Infobox|{{nested|x}} name=Tea}}
'''Tea''' is a [[beverage|drink]] of leaf and of hot water&lt;ref&gt;Book.&lt;/ref&gt; that most people like.
== History ==
{| class="table"
| a cell of a table that is long enough to be taken for a paragraph, were it not one
|}
[[Image:Tea.jpg|thumb|A [[cup]] of tea, with a caption that is long enough for a paragraph of its own]]
* It is said to have been found, [http://example.org by chance], five thousand years ago &amp;mdash; they say.
Too short.
</text></page>
<page><title>Chai</title><text xml:space="preserve">#REDIRECT [[Tea]]</text></page>"""


def test_markup_is_removed_and_words_are_kept() -> None:
    assert list(TOOL["articles"](DUMP)) == [
        [
            "Tea is a drink of leaf and of hot water that most people like.",
            "It is said to have been found, by chance, five thousand years ago — they say.",
        ]
    ]
