"""Hosts of a test's own: network namespaces that hang on one switch. Linux, root and iproute2."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_serial = itertools.count()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Host:
    """One host with an address of its own; nothing listens on it but what a test starts there."""

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.address = f"10.77.0.{number}"
        self._space = f"{network.name}-{name}"
        self._switch, self._cable = network.switch, f"to-{name}"
        _ip("netns", "add", self._space)
        network.spaces.append(self._space)
        _ip(
            "-n", self._switch, "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._space
        )
        _ip("-n", self._switch, "link", "set", self._cable, "master", "bridge", "up")
        _ip("-n", self._space, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self._space, "link", "set", device, "up")

    def command(self, words: list[str]) -> list[str]:
        """The command, to be run on this host; its process id is the command's own."""
        return ["ip", "netns", "exec", self._space, *words]

    def binary(self, folder: Path, program: str) -> str:
        """A program that runs the given one on this host, for who takes the path of one."""
        script = folder / f"on-{self._space}"
        script.write_text(f'#!/bin/sh\nexec {" ".join(self.command([program]))} "$@"\n')
        script.chmod(0o755)
        return str(script)

    def unplug(self) -> None:
        """Nothing passes, and nobody is told."""
        _ip("-n", self._switch, "link", "set", self._cable, "down")

    def plug_in(self) -> None:
        _ip("-n", self._switch, "link", "set", self._cable, "up")


class Network:
    """A switch and its hosts; skips the test where they cannot be made."""

    def __init__(self) -> None:
        self.name = f"tm{os.getpid()}-{next(_serial)}"
        self.switch = f"{self.name}-switch"
        self.spaces: list[str] = []
        if shutil.which("ip") is None or os.geteuid() != 0:
            pytest.skip("network namespaces need root and iproute2")
        try:
            _ip("netns", "add", self.switch)
            self.spaces.append(self.switch)
            _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "bridge", "up")
        except OSError as error:
            self.close()
            pytest.skip(f"no network namespaces here: {error}")

    def host(self, name: str) -> Host:
        return Host(self, name, len(self.spaces) + 1)

    def close(self) -> None:
        for space in reversed(self.spaces):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
