"""Flags: what the settings of tasks are called on the command line. Knows no task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

OTHER = dict(beams="beam", results="best", alignment="layer", source="from", target="to")  # names in Python
SAME = """
    above batch code generative join length_penalty long longest max_new min_length none pool sample seed stop
    stride temperature template top top_k top_p unit
""".split()
FLAGS = {name: "--" + OTHER.get(name, name).replace("_", "-") for name in (*OTHER, *SAME)}
# A setting where complaints name one: `beams is 0`, `set long to cut`, `Expected source and target, of ...`
NAMED = re.compile(
    rf"(?:^|(?<=: )|(?<=set )|(?<=xpected )|(?<=xpected source and ))({'|'.join(FLAGS)})(?= is | to |,| and )"
)
UNKNOWN = re.compile(r"setting is '(\w+)', expected one of .*")


@contextmanager
def in_flags() -> Iterator[None]:
    """What is wrong is said in the words of the command line."""
    try:
        yield
    except ValueError as error:
        told = str(error)
        if unknown := UNKNOWN.fullmatch(told):
            flag = FLAGS.get(unknown[1], unknown[1])
            raise ValueError(
                f"{flag} is not for this model: one finds, another writes; leave it out"
            ) from None
        raise ValueError(NAMED.sub(lambda found: FLAGS[found[1]], told)) from None
