"""Puts the server's rooms, which are beside this folder, into the wheel, below the one package `ledgermq_server`."""

from pathlib import Path

from setuptools import find_packages, setup

ROOMS = sorted({path.parent.name for path in Path("..").glob("*/__init__.py")} - {"ledgermq"})

found = find_packages("..", include=[name for room in ROOMS for name in (room, f"{room}.*")])
folders = {f"ledgermq_server.{name}": str(Path("..", *name.split("."))) for name in found}
setup(
    packages=["ledgermq_server", *folders],
    package_dir=folders | {"ledgermq_server": "ledgermq_server"},
    package_data={"": ["*.tsv", "*.c", "*.java", "*.txt"]},
)
