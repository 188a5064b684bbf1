"""Shell completion of commands, options and their values, by a static script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cyclopts import App


def make_completion_command(app: App) -> Callable[..., None]:
    """Return the command that installs the completion script of an app."""

    def install_completion(*, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
        """Install shell completion of commands, options and their values.

        qkv --install-completion --shell zsh

        Parameters
        ----------
        shell
            shell to install it for; default: the current shell
        """
        from cyclopts.completion.detect import ShellDetectionError, detect_shell

        try:
            shell_name = shell or detect_shell()
        except ShellDetectionError:
            raise ValueError("unknown shell; expected --shell bash, zsh or fish") from None
        script = app.install_completion(shell=shell_name)
        startup_file = Path.home() / f".{shell_name}rc"
        print(f"wrote {script}")
        # zsh reads the script only after compinit
        if shell_name == "zsh" and "compinit" not in startup_file.read_text(errors="replace"):
            with startup_file.open("a") as file:
                file.write("autoload -Uz compinit && compinit\n")
        if startup_file.is_file() and str(script.parent) in startup_file.read_text(
            errors="replace"
        ):
            print(f"loaded by {startup_file}")
        print(f"completion is active in every new {shell_name}")

    return install_completion
