"""The screen: how commands print, in the width and the colours that there are. Knows no command."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def complain(message: str) -> None:
    print("qkv:", " ".join(message.split()), file=sys.stderr)


def console() -> Console:
    """As wide as the terminal; where there is none, as COLUMNS says, or 100."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((100, 24)).columns
    return Console(width=width, highlight=False, markup=False, emoji=False)


def say(*parts: RenderableType) -> None:
    """Prints as rich draws it; off a terminal without the blanks that fill its lines."""
    screen = console()
    with screen.capture() as caught:
        for part in parts:
            screen.print(part)
    text = caught.get()
    sys.stdout.write(text if screen.is_terminal else re.sub(r" +$", "", text, flags=re.MULTILINE))
