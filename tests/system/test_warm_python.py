"""Programs that run in forks of a process with fairseq: what they see, print and return is as without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

from tests.helpers.processes import is_running, wait_until
from warm_python import WarmPython

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere commands run without it")

SCRIPT = """
import os, sys
import beside
print(sys.argv, sys.path[0], __name__, os.path.abspath(__file__), os.getcwd(), os.environ["WORD"], sys.stdin.read())
print("torch" in sys.modules, file=sys.stderr)
exec(sys.argv[1])
"""


@pytest.fixture
def environment(warm_python: WarmPython) -> Dict[str, str]:
    return warm_python.environment(WORD="a word")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "scripts" / "beside.py").touch()
    return tmp_path


def shell(command: str, folder: Path, environment: Dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "action", ["pass", "sys.exit(7)", "sys.exit('a message')", "os.kill(os.getpid(), 15)", "os.write(1, b'bytes')"]
)
def test_a_command_is_as_without_it(folder: Path, environment: Dict[str, str], action: str) -> None:
    command = f'echo text | python scripts/script.py "{action}" > out; echo $?; cat out'
    always = {**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found, expected = (shell(command, folder, variables) for variables in (environment, always))
    assert found.stdout == expected.stdout
    assert "a word text" in found.stdout
    assert found.stderr.replace("True", "False") == expected.stderr
    assert "True" in found.stderr


def test_a_command_runs_as_always_before_the_modules_are_imported(folder: Path) -> None:
    programs = WarmPython(folder, ["fairseq"])
    found = shell("python scripts/script.py pass a b </dev/null", folder, programs.environment(WORD="a word"))
    programs.close()
    assert found.stdout.startswith("['scripts/script.py', 'pass', 'a', 'b'] ")
    assert found.stderr == "False\n"


def test_what_a_command_starts_needs_no_imports_either(folder: Path, environment: Dict[str, str]) -> None:
    started = "import sys; print('torch' in sys.modules)"
    action = f"import subprocess; subprocess.run([sys.executable, *sys.argv[2:], '-c', \"{started}\"])"
    (folder / "action").write_text(action)
    for options, expected in (("", "True"), ("-I", "False")):  # Python itself, where there are further options
        found = shell(f'python scripts/script.py "$(cat action)" {options} </dev/null', folder, environment)
        assert expected in found.stdout.splitlines(), found.stderr


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_processes_inherit_descriptors(folder: Path, environment: Dict[str, str], method: str) -> None:
    process = f"multiprocessing.get_context({method!r}).Process(target=print, args=('it runs',))"
    lines = ["import multiprocessing", "if __name__ == '__main__':", f"    process = {process}"]
    lines += ["    process.start()", "    process.join()"]
    (folder / "start.py").write_text("\n".join(lines), encoding="utf-8")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, multiprocessing starts Python with an option
    found = shell('python "$PWD/start.py"', folder, environment)
    assert (found.stdout, found.stderr) == ("it runs\n", "")


def test_an_exception_is_shown(folder: Path, environment: Dict[str, str]) -> None:
    found = shell('python scripts/script.py "1 / 0"; echo $?', folder, environment)
    assert found.stdout.endswith("\n1\n")
    assert found.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_console_script(folder: Path, environment: Dict[str, str]) -> None:
    found = shell("ctxgates user-dir", folder, environment)
    assert Path(found.stdout.strip(), "tasks").is_dir(), found.stderr


def test_a_command_stops_with_its_shell(folder: Path, environment: Dict[str, str]) -> None:
    """The runner stops all processes of a step's group; the command is none of them."""
    action = "open('started', 'w').write(str(os.getpid())); import time; time.sleep(60)"
    command = f'python scripts/script.py "{action}"'
    process = subprocess.Popen(["sh", "-c", command], cwd=folder, env=environment, start_new_session=True)
    assert wait_until(lambda: (folder / "started").exists() and (folder / "started").read_text() != "")
    number = int((folder / "started").read_text())
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    assert wait_until(lambda: not is_running(number))
