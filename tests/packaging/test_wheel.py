"""The wheel: builds, installs into an empty environment, and runs the demo from an empty folder.

Everything that the wheel asks for is installed for real, but torch and what torch needs: those are
gigabytes on some machines, so they are linked in from the environment of the tests.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (built,) = out.glob("draftwire-*-py3-none-any.whl")
    return built


def test_the_wheel_holds_what_a_user_needs_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for role in ("target", "drafter", "dspark"):
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            assert f"draftwire/models/{role}/{file}" in names
    assert "draftwire/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert {re.sub(r"-.*", "", top) for top in tops} == {"draftwire"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    metadata = archive.read(path).decode()
    assert "License-Expression: Apache-2.0" in metadata
    extras = re.findall(r"^Provides-Extra: (\S+)", metadata, re.MULTILINE)
    assert set(extras) == {"hf", "vllm", "triton", "dev"}
    for extra in extras:  # one that installs nothing promises an engine that is not there
        assert re.search(rf"^Requires-Dist: .*extra == .{extra}\b", metadata, re.MULTILINE), extra
    plain = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert not [line for line in plain if "torch" in line and "extra" not in line]


def torch_files() -> set[Path]:
    """The folders and modules of torch and of everything that it requires, here."""
    todo, seen, files = ["torch"], set(), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in found.files or ():
            if file.parts[0] not in ("..", "__pycache__"):
                files.add(Path(str(found.locate_file(file.parts[0]))))
        for requirement in found.requires or ():
            if "extra ==" not in requirement:
                todo.append(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    return files


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_installs_into_an_empty_environment_and_runs_the_demo(wheel: Path, tmp_path: Path) -> None:
    home, empty = tmp_path / "environment", tmp_path / "empty"
    empty.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(
        subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    )
    for file in torch_files():
        if not (packages / file.name).exists():
            (packages / file.name).symlink_to(file)
    pins = tmp_path / "pins.txt"
    text = (ROOT / "requirements" / "run.txt").read_text()
    pins.write_text("\n".join(line for line in text.splitlines() if "==" in line))
    install = [python, "-m", "pip", "install", "-q", "--no-compile", "-c", pins, f"{wheel}[hf]"]
    subprocess.run(install, check=True, capture_output=True)

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [home / "bin" / "draftwire", "demo", "--quick"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tokens per target pass" in done.stdout and "target-only" in done.stdout
    assert list(empty.iterdir()) == []
    imported = [python, "-c", "import draftwire; print(draftwire.__file__)"]
    found = subprocess.run(imported, cwd=empty, env=environment, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(packages)
