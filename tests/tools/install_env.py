"""Install the pip section of environment.yml into a virtual environment, with pip as conda runs it.

    python3 tests/tools/install_env.py environment.yml .venv

Runs on a bare Python, so it uses nothing but the standard library, and reads only the shape that this project's
environment.yml has (tests/project/test_project.py compares it with a real YAML parser).
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import venv

OLDEST, NEWEST = (3, 11), (3, 14)


def pip_section(text):
    """The entries under `- pip:`, in order, without comments."""
    lines = [line.split(" #")[0].rstrip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    start = next(number for number, line in enumerate(lines) if line.strip() == "- pip:")
    indent = len(lines[start]) - len(lines[start].lstrip())
    section = []
    for line in lines[start + 1:]:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        entry = re.match(r"\s*- (.+)", line)
        if entry:
            section.append(entry.group(1).strip())
    return section


def stop(sentence):
    sys.exit("error: " + sentence)


def check_python():
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        stop(f"this is Python {'.'.join(map(str, sys.version_info[:3]))}, and the notebooks need 3.11 to 3.14. "
             "Name another one: `make lab PYTHON=python3.12`.")
    if importlib.util.find_spec("ensurepip") is None:
        stop("this Python cannot make virtual environments (it has no ensurepip). "
             "On Debian and Ubuntu: apt install python3-venv.")


def make_venv(target):
    """The Python inside the folder `target`, which is made anew where it is missing, broken or came from elsewhere."""
    python = target / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    config = target / "pyvenv.cfg"
    same_version = f"import pip, sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    good = (python.exists() and config.exists() and str(target) in config.read_text(encoding="utf-8")
            and subprocess.run([str(python), "-c", same_version]).returncode == 0)
    if not good:
        venv.create(str(target), with_pip=True, clear=True)
    return python


def main():
    check_python()
    if len(sys.argv) != 3:
        stop("usage: install_env.py ENVIRONMENT.YML FOLDER")
    spec, target = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).absolute()
    section = pip_section(spec.read_text(encoding="utf-8"))
    print(f"Setting up {target.name}: {len(section)} packages and what they need. PyTorch alone can take several GB.",
          flush=True)
    python = make_venv(target)
    requirements = target / "requirements.txt"
    requirements.write_text("\n".join(section) + "\n", encoding="utf-8")
    # conda runs pip with these flags in the folder of environment.yml, which is what `-e .` refers to.
    install = [str(python), "-m", "pip", "install", "-q", "-U", "-r", str(requirements), "--exists-action=b"]
    if subprocess.run(install, cwd=str(spec.parent)).returncode:
        stop("pip could not install the packages; its own message is above.")
    if subprocess.run([str(python), "-m", "pip", "check"], stdout=subprocess.DEVNULL).returncode:
        stop(f"the installed packages do not fit together: run `{python} -m pip check`.")


if __name__ == "__main__":
    main()
