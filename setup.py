"""The build of a wheel: kernels are compiled into it, for this kind of processor (ADR 16)."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

COMPILED = Path("wireyard", "compiled")


class BuildWithKernels(build_py):
    """Builds the package with compiled kernels, unless it is installed to be edited."""

    def run(self) -> None:
        """Copy the package, and compile its kernels."""
        super().run()
        if self.editable_mode:
            return
        path = os.pathsep.join(filter(None, (self.build_lib, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "wireyard.warm", "--ship", f"{self.build_lib}/{COMPILED}"]
        if subprocess.run(command, env=environment, check=False).returncode:
            self.warn("kernels cannot be compiled here; commands compile them when they need them")


class WheelOfPlatform(bdist_wheel):
    """A wheel for any version of Python, and for one platform if it has compiled kernels."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, its binary interface, and the platform."""
        python, abi, platform = super().get_tag()
        built = Path(self.get_finalized_command("build_py").build_lib)
        if platform == "any" and any((built / COMPILED).glob("*")):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return python, abi, platform


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelOfPlatform})
