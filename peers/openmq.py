"""The shipped Open MQ classes: fetched by Maven, unpacked under build/, and our Java run on them.

`python -m peers.openmq` prints where the unpacked distribution is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ARTIFACT = "org.glassfish.mq:mq-distribution:6.5.0:zip"
BUILD = Path(__file__).resolve().parent.parent / "build"
HOME = BUILD / "openmq-6.5.0"
JARS = ("imq.jar", "jms.jar", "imqutil.jar")
"""Client, API, and what client and broker share: the GPacket is in the last alone."""


class Unavailable(Exception):
    """The peer cannot be had here; the text says what is missing."""


def jdk_tool(name: str) -> str:
    """Return the path of `java` or `javac`, of JAVA_HOME when that is a JDK.

    Raises
    ------
    Unavailable
        There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else None
    if (tool := found or shutil.which(name)) is None:
        raise Unavailable(f"no {name}: a JDK 17 or newer is needed")
    return tool


def _run(*command: str, cwd: str | None = None) -> None:
    """Run one command to its end; raise `subprocess.CalledProcessError` with what it printed."""
    try:
        subprocess.run(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
    except subprocess.CalledProcessError as failed:
        failed.add_note(failed.stdout[-2000:])
        raise


def fetch() -> Path:
    """Return the folder of the unpacked distribution; fetch it by Maven the first time.

    Raises
    ------
    Unavailable
        There is no Maven, or it cannot reach its repository.
    """
    if not HOME.is_dir():
        if (maven := shutil.which("mvn")) is None:
            raise Unavailable("no mvn: Maven is needed to fetch the Open MQ classes")
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            try:
                _run(
                    *(maven, "--quiet", "--batch-mode", "dependency:unpack"),
                    *(f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}/unpacked"),
                    cwd=folder,  # Maven leaves a marker file where it runs
                )
            except subprocess.CalledProcessError as failed:
                raise Unavailable(f"Maven could not fetch {ARTIFACT}") from failed
            _put(Path(folder, "unpacked"), HOME)
    return HOME / "mq"


def java(source: Path, *flags: str) -> list[str]:
    """Compile `source` against the shipped classes once; return the command that runs it.

    Raises
    ------
    Unavailable
        There is no distribution or no JDK. (A source that does not compile is an error.)
    """
    jars = os.pathsep.join(str(fetch() / "lib" / jar) for jar in JARS)
    # A name of its own for every state of the source: an edit is compiled anew.
    classes = BUILD / "peers" / f"{source.stem}-{source.stat().st_mtime_ns}"
    if not classes.is_dir():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
            made = Path(folder, "classes")
            _run(jdk_tool("javac"), "-cp", jars, "-d", str(made), str(source))
            _put(made, classes)
    return [jdk_tool("java"), *flags, "-cp", f"{jars}{os.pathsep}{classes}", source.stem]


def _put(made: Path, place: Path) -> None:
    """Move a finished folder into place; another run that was first is as good."""
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise


if __name__ == "__main__":
    print(fetch())
