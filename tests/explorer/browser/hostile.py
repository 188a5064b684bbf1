"""Texts that try to become markup, code, or a mess on the screen. HACK sets `window.hacked`."""

from __future__ import annotations

HACK = "window.hacked=1"

MARKUP = [
    f"<script>{HACK}</script>", f"</script><script>{HACK}</script>", "</script>", "<!--", "-->",
    "<![CDATA[", f"<img src=x onerror={HACK}>", f'"><img src=x onerror={HACK}>',
    f"'><img src=x onerror={HACK}>", f"<svg onload={HACK}>", f"<svg><script>{HACK}</script></svg>",
    f"<body onload={HACK}>", f"<iframe srcdoc='<script>parent.{HACK}</script>'>",
    f'<iframe src="javascript:parent.{HACK}">', f"<details open ontoggle={HACK}>",
    f"<input autofocus onfocus={HACK}>", "<base href=//example.org>",
    "<meta http-equiv=refresh content=0;url=//example.org>",
    "<link rel=stylesheet href=//example.org/x.css>", "<style>*{display:none}</style>", "</style>",
    "</title>", "</textarea>", "</select>", "</main>", "</body></html>",
    f"<a href=javascript:{HACK}>x</a>", "<form action=//example.org><button>x",
    "<object data=//example.org>", f"<math><mtext></mtext><mglyph><style><img src=x onerror={HACK}>",
    f"<template><script>{HACK}</script>",
    f"<noscript><p title='</noscript><img src=x onerror={HACK}>'>", f"<video><source onerror={HACK}>",
    f"<marquee onstart={HACK}>", f"<x contenteditable onblur={HACK}>", "<plaintext>", "<xmp>",
    "<frameset>", f"\" onmouseover=\"{HACK}\" x=\"", f"' onfocus='{HACK}' autofocus x='",
    "` onerror=`1", "&lt;script&gt;", "&#60;script&#62;", "&amp;&quot;&apos;", "&#x202e;", "&nbsp;",
    "&", "<", ">", "\"", "'", "`",
]  # fmt: skip
CODE = [
    "{{7*7}}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "{{constructor.constructor('" + HACK + "')()}}",
    "[[7*7]]", f"javascript:{HACK}", f"data:text/html,<script>{HACK}</script>", "vbscript:alert(1)",
    "__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "null", "undefined", "NaN",
    "[object Object]", "\\u003cscript\\u003e", f"';{HACK};//", f"\");{HACK};//", f"*/{HACK}/*", "\\",
    "\\\\", "%3Cscript%3E", "%00", "%", "%zz", "#text=x&view=matrix", "?token=x",
    "expression(alert(1))", "url(//example.org)", "red;background:url(//example.org)",
    "../../etc/passwd", "'; DROP TABLE tokens;--",
]  # fmt: skip
UNICODE = [
    "\u2028", "\u2029", "a\u2028b", "\u202e", "\u202eevil\u202c", "\u2066\u2067\u2069", "\u200b",
    "\u200e\u200f", "\ufeff", "\u00ad", "\x00", "a\x00b", "\x01\x02\x1f\x7f", "\x1b[31mred",
    "\x08\x08\x08", "\x85", "\ufffe", "\uffff", "\U000e0041", "\U0010ffff", "e" + "\u0301" * 60,
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢", "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪🇩",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e9\u05dc\u05d5\u05dd", "ﷺ", "𒐫", "\u3000", "ı",
    "ﬀ", "\u0345", "꧁꧂", "W" * 300, "A" * 10_000,
]  # fmt: skip
TEXTS = [*MARKUP, *CODE, *UNICODE]
# A page cannot send them: a text with a lone surrogate, in JavaScript.
LONE_SURROGATES = "'\\ud800' + ' a\\udfffb ' + '\\udc00\\ud800'"

# What the page may consist of: nothing that a text would add.
ELEMENTS = frozenset(
    "html head meta link title style body header main script noscript div section h1 h2 p br strong span bdi "
    "form label textarea button select option input ul li canvas img table caption thead tbody tr th td "
    "details summary figure figcaption svg g path rect text line".split()
)
INSPECT = """() => {
    const elements = [...document.querySelectorAll("*")];
    return {
        hacked: window.hacked ?? null,
        names: [...new Set(elements.map(element => element.localName))],
        scripts: document.scripts.length,
        styles: document.querySelectorAll("style, link").length,
        images: [...document.images].map(image => image.src.slice(0, 15)),
        handlers: elements.flatMap(element => element.getAttributeNames())
            .filter(name => name.startsWith("on")).length,
        links: document.querySelectorAll("a, [href]:not(link), [action]").length,
    };
}"""
