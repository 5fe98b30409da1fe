"""The project around the notebooks: what is installed, what is declared, how long files are, where links lead."""

import ast
import importlib.metadata
import pathlib
import re
import sys
import tomllib

import install_env
import nbformat
import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = (ROOT / "environment.yml").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PIN = re.compile(r"([a-z0-9-]+)==([0-9.]+)")
PINS = dict(PIN.fullmatch(entry).groups() for entry in install_env.pip_section(ENVIRONMENT) if PIN.fullmatch(entry))
ELSEWHERE = {"cuda_dispatch"}  # imported by a script that runs in an environment of its own
# Packages whose import has another name.
PACKAGE_OF = {"PIL": "pillow", "yaml": "pyyaml", "IPython": "ipython", "huggingface_hub": "huggingface-hub"}


def test_environment_is_what_a_yaml_parser_reads():
    conda = yaml.safe_load(ENVIRONMENT)
    assert set(conda) == {"name", "channels", "dependencies"}
    python, pip, section = conda["dependencies"]
    assert re.fullmatch(r"python=3\.\d+", python) and pip == "pip"
    assert section == {"pip": install_env.pip_section(ENVIRONMENT)}


def test_environment_pins_every_package_once_and_installs_the_helpers_last():
    section = install_env.pip_section(ENVIRONMENT)
    assert section[-1] == "-e ."
    unpinned = [entry for entry in section[:-1] if not PIN.fullmatch(entry)]
    assert not unpinned and len(PINS) == len(section) - 1


def test_python_versions_agree_everywhere():
    (low, high), wanted = (install_env.OLDEST, install_env.NEWEST), PYPROJECT["project"]["requires-python"]
    assert wanted == f">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
    conda = re.search(r"python=3\.(\d+)", ENVIRONMENT).group(1)
    assert low <= (3, int(conda)) <= high
    assert f"Python {low[0]}.{low[1]} to {high[0]}.{high[1]}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_helpers_declare_no_dependencies():
    """An install of the helpers on a hosted notebook must not replace its PyTorch."""
    assert PYPROJECT["project"]["dependencies"] == []


def test_installed_versions_are_the_pinned_ones():
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in PINS}  # torch says 2.13.0+cpu
    assert installed == PINS


def test_old_python_gets_one_clear_sentence(monkeypatch):
    for version in ((3, 10, 1), (3, 15, 0)):
        monkeypatch.setattr(sys, "version_info", version)
        with pytest.raises(SystemExit, match=r"the notebooks need 3\.11 to 3\.14"):
            install_env.check_python()


def sources(path: pathlib.Path) -> str:
    """The Python in a file or notebook."""
    if path.suffix == ".py":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    return TransformerManager().transform_cell(code)


def imported(path: pathlib.Path) -> set[str]:
    """Top-level names of the modules that a file imports from outside the project and the standard library."""
    found = set()
    for node in ast.walk(ast.parse(sources(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
    ours = {"helpers", "tests", *(file.stem for file in (ROOT / "tests").rglob("*.py"))}
    return {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - ours - ELSEWHERE


def test_every_import_is_in_the_environment():
    extra = [entry.split("==")[0] for entry in PYPROJECT["project"]["optional-dependencies"]["browser"]]
    files = [ROOT / "conftest.py", *(ROOT / "helpers").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *NOTEBOOKS]
    missing = {f"{path.relative_to(ROOT)}: {name}" for path in files for name in imported(path)
               if PACKAGE_OF.get(name, name) not in {*PINS, *extra}}
    assert not missing


def test_helper_files_stay_readable():
    """A helper file over 250 lines does two jobs."""
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
               for path in (ROOT / "helpers").rglob("*.py")}
    assert lengths and {name: length for name, length in lengths.items() if length > 250} == {}


def slugs(text: str) -> set[str]:
    """Anchors of a Markdown text's headings, as JupyterLab (spaces to dashes) and code hosts (lower case) make them."""
    headings = re.findall(r"^#+ (.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.M)
    plain = [re.sub(r"[`*]", "", heading) for heading in headings]
    return ({heading.replace(" ", "-") for heading in plain}
            | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain})


def markdown(path: pathlib.Path) -> str:
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *(ROOT / "notebooks").glob("*.md"), *NOTEBOOKS],
                         ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", markdown(path), flags=re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", link):
            continue  # another site: not asked, tests need no network
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if re.fullmatch(r"\d\d_\w+\.ipynb", target.name) and not target.exists():
            continue  # the README lists the whole series, also what is not written yet
        if not target.exists() or (anchor and anchor not in slugs(markdown(target))):
            broken.append(link)
    assert broken == []


def test_the_readme_lists_every_notebook_with_its_minutes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| \[`(\d\d_\w+)`\]\(notebooks/\1\.ipynb\) \|.*\| (\d+) \|$", readme, flags=re.M))
    minutes = {path.stem: re.search(r"(\d+) minutes", markdown(path)).group(1) for path in NOTEBOOKS}
    assert {name: listed.get(name) for name in minutes} == minutes
