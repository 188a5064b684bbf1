"""Completion: the shell proposes commands, options and their values, by a script that asks nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cyclopts import App


def installs(app: App) -> Callable[..., None]:
    """The command that sets it up for an app."""

    def install_completion(*, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
        """Let the shell complete commands, options and their values.

        qkv --install-completion --shell zsh

        Parameters
        ----------
        shell
            which; without it, the one that runs this
        """
        from cyclopts.completion.detect import ShellDetectionError, detect_shell

        try:
            found = shell or detect_shell()
        except ShellDetectionError:
            raise ValueError("which shell? Expected --shell and bash, zsh or fish") from None
        script, startup = app.install_completion(shell=found), Path.home() / f".{found}rc"
        print(f"wrote {script}")
        if found == "zsh" and "compinit" not in startup.read_text(errors="replace"):  # who asks the script
            with startup.open("a") as file:
                file.write("autoload -Uz compinit && compinit\n")
        if startup.is_file() and str(script.parent) in startup.read_text(errors="replace"):
            print(f"which {startup} reads")
        print(f"every {found} that is opened from now on completes qkv")

    return install_completion
