"""What a user installs: two wheels, built from this repository and tried in virtual environments that are empty."""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.limits import WAIT_S

PROJECT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")
MINIMAL = "import sys, ledgermq.client; print(sorted({'aiohttp', 'numpy', 'uvloop', 'yaml'} & set(sys.modules)))"

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]


def run(*words: str | Path, cwd: Path | None = None, python_path: str = "") -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=with_path(python_path))
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def with_path(python_path: str) -> dict[str, str]:
    """This process's environment, with a user's modules on Python's path; pip leaves compiling to the first import."""
    return {**os.environ, "PYTHONPATH": python_path, "PIP_NO_COMPILE": "1"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels, built from a copy, so that nothing old lies in a build folder."""
    folder = tmp_path_factory.mktemp("wheels")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    rooms = [path.parent.name for path in PROJECT.glob("*/__init__.py") if path.parent.name != "tests"]
    for name in (*rooms, "server"):
        shutil.copytree(PROJECT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, folder / "source")
    source = folder / "source"
    words = (sys.executable, *PIP, "wheel", "--no-deps", "-w", folder / "dist", source, source / "server")
    if subprocess.run(words, env=with_path("")).returncode != 0:
        index = subprocess.run(
            [sys.executable, *PIP, "download", "--no-deps", "-d", folder / "probe", "setuptools>=69"]
        )
        if index.returncode != 0 and not os.environ.get("CI"):
            pytest.skip("no package index answers, where the packages that a wheel needs come from")
        pytest.fail("the wheels are not built; see above why")
    return folder / "dist"


def environment_with(folder: Path, wheels: Path, *wanted: str) -> Path:
    """The `bin` of a new virtual environment in which packages are installed, by this environment's pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(*pip_in(folder), "install", "--find-links", wheels, *wanted)
    return folder / "bin"


def pip_in(folder: Path) -> tuple[str, ...]:
    """The command pip for a virtual environment."""
    return (sys.executable, *PIP, "--python", str(folder / "bin" / "python"))


@pytest.fixture(scope="module")
def server(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the server, installed as the library's extra."""
    return environment_with(tmp_path_factory.mktemp("server"), wheels, "ledgermq[server]", "ledgermq[testing]")


@pytest.fixture
def users_folder(tmp_path: Path) -> str:
    """Folder of a user whose own modules are called as our rooms are."""
    for name in ("broker", "cli", "store"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "__init__.py").write_text("raise SystemExit('the user\\'s own module')\n")
    return str(tmp_path / "mine")


def names(wheels: Path, pattern: str) -> set[str]:
    (wheel,) = wheels.glob(pattern)
    return set(zipfile.ZipFile(wheel).namelist())


def test_each_wheel_has_one_importable_name(wheels: Path) -> None:
    library, server = names(wheels, "ledgermq-*.whl"), names(wheels, "ledgermq_server-*.whl")
    assert {name.split("/")[0] for name in library if "dist-info" not in name} == {"ledgermq"}
    assert {name.split("/")[0] for name in server if "dist-info" not in name} == {"ledgermq_server"}
    assert "ledgermq/py.typed" in library
    assert "ledgermq_server/node/keys_without_effect.tsv" in server
    sources = {str(path.relative_to(PROJECT)) for room in ("store", "cli") for path in (PROJECT / room).rglob("*.py")}
    assert {f"ledgermq_server/{name}" for name in sources} <= server


def test_the_library_alone_needs_little_and_imports_nothing_of_the_server(wheels: Path, tmp_path: Path) -> None:
    binaries = environment_with(tmp_path / "venv", wheels, "ledgermq")
    python = binaries / "python"
    installed = {line.split("==")[0] for line in run(*pip_in(tmp_path / "venv"), "freeze").split()}
    assert installed == {"ledgermq", "isal", "orjson"}
    assert run(python, "-c", MINIMAL, cwd=tmp_path).strip() == "[]"
    assert not (binaries / "ledgermq").exists()


def test_a_users_own_modules_do_not_break_the_command(server: Path, users_folder: str) -> None:
    assert run(server / "ledgermq", "--version", python_path=users_folder).startswith("ledgermq ")
    explained = run(server / "ledgermq", "config", "explain", "sendMessageThreadPoolNums", python_path=users_folder)
    assert "no effect" in explained


def test_a_cluster_of_the_installed_server_comes_up_and_stops(server: Path, users_folder: str, tmp_path: Path) -> None:
    up = [str(server / "ledgermq"), "cluster", "up", "--mode", "standalone", "--json", "--dir", str(tmp_path / "c")]
    with subprocess.Popen(up, stdout=subprocess.PIPE, text=True, env=with_path(users_folder)) as cluster:
        assert cluster.stdout is not None
        try:
            assert "127.0.0.1" in cluster.stdout.readline()
        finally:
            cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(WAIT_S) == 0


def test_a_users_own_modules_do_not_break_the_command_of_a_checkout(users_folder: str, tmp_path: Path) -> None:
    """From another folder: that of the checkout would be first on the path."""
    words = (sys.executable, "-m", "ledgermq_server", "config", "explain", "listenPort")
    assert "listenPort: " in run(*words, cwd=tmp_path, python_path=users_folder)


@pytest.mark.cluster
def test_the_example_of_tests_against_failover_runs_from_the_wheels(server: Path, tmp_path: Path) -> None:
    shutil.copy(PROJECT / "examples" / "test_failover.py", tmp_path)
    said = run(server / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path)
    assert "2 passed" in said or "1 passed, 1 skipped" in said
