"""Java for tests: classes fetched by Maven, those of Open MQ above all, and programs that use them.

`python -m peers.openmq` prints the folder of the unpacked distribution.
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
"""The client, the API, and the classes that client and broker share, such as GPacket."""


class Unavailable(Exception):
    """The peer cannot run here; the message names the missing program."""


def jdk_tool(name: str) -> str:
    """Return the path of `java` or `javac`, from JAVA_HOME if that is a JDK.

    Raises
    ------
    Unavailable
        There is no JDK.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else None
    if (tool := found or shutil.which(name)) is None:
        raise Unavailable(f"no {name}: a JDK 17 or newer is needed")
    return tool


def _run(*command: str, cwd: str | None = None) -> None:
    """Run a command to its end; raise `subprocess.CalledProcessError` with its output."""
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
    """Return the folder of the unpacked distribution; fetch it by Maven if necessary.

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
                    cwd=folder,  # Maven leaves a file in its working folder
                )
            except subprocess.CalledProcessError as failed:
                raise Unavailable(f"Maven could not fetch {ARTIFACT}") from failed
            _move(Path(folder, "unpacked"), HOME)
    return HOME / "mq"


def jars(name: str, *artifacts: str, with_theirs: bool = True) -> Path:
    """Return a folder with the jars of artifacts; fetch them by Maven if necessary.

    `with_theirs` is whether it has the artifacts that those depend on too.

    Raises
    ------
    Unavailable
        There is no Maven, or it cannot reach its repository.
    """
    folder = BUILD / f"jars-{name}"
    if not folder.is_dir():
        if (maven := shutil.which("mvn")) is None:
            raise Unavailable(f"no mvn: Maven is needed to fetch {artifacts[0]}")
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as part:
            Path(part, "pom.xml").write_text(_POM.format("".join(map(_dependency, artifacts))))
            options = [f"-DoutputDirectory={part}/jars", f"-DexcludeTransitive={not with_theirs}"]
            words = (maven, "--quiet", "--batch-mode", "dependency:copy-dependencies", *options)
            try:
                _run(*words, cwd=part)
            except subprocess.CalledProcessError as failed:
                raise Unavailable(f"Maven could not fetch {artifacts[0]}") from failed
            _move(Path(part, "jars"), folder)
    return folder


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""


def _dependency(artifact: str) -> str:
    names = ("groupId", "artifactId", "version")
    parts = zip(names, artifact.split(":"), strict=True)
    return f"<dependency>{''.join(f'<{name}>{part}</{name}>' for name, part in parts)}</dependency>"


def java(source: Path, *flags: str) -> list[str]:
    """Compile `source` against the shipped classes once; return the command that runs it.

    Raises
    ------
    Unavailable
        There is no distribution or no JDK. (A source that does not compile is an error.)
    """
    return java_with(source, [str(fetch() / "lib" / jar) for jar in JARS], *flags)


def java_with(source: Path, path: list[str], *flags: str) -> list[str]:
    """Compile `source` against other classes once; return the command that runs it."""
    # The name contains the time of the source, so that an edited source is compiled again.
    classes = BUILD / "peers" / f"{source.stem}-{source.stat().st_mtime_ns}"
    if not classes.is_dir():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as folder:
            made = Path(folder, "classes")
            on = os.pathsep.join(path)
            _run(jdk_tool("javac"), "-cp", on, "-d", str(made), str(source))
            _move(made, classes)
    return [jdk_tool("java"), *flags, "-cp", os.pathsep.join([*path, str(classes)]), source.stem]


def _move(made: Path, target: Path) -> None:
    """Move a finished folder to its target, unless a concurrent run was first."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise


if __name__ == "__main__":
    print(fetch())
