"""Every notebook in a real browser: JupyterLab opens it, runs it from top to bottom, and presents it as slides.

    make browser                                    needs Chromium (CHROMIUM=path names one)
    make browser ARGS="-k 08" SCREENSHOTS=folder    one notebook; pictures of the pages go to that folder

The notebooks are copied first, since JupyterLab writes to what it runs. Those it runs have their outputs cleared, so
that what is seen comes from this run; those it presents keep them.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import nbformat
import pytest
from playwright.sync_api import expect, sync_playwright

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PLANNER = "08_your_own_model"
SECONDS = 180  # for one notebook
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # all cells are in the page, not only the visible ones
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
KERNEL_IS_IDLE = """() => {
    const panel = window.jupyterapp.shell.currentWidget;
    return panel?.sessionContext?.isReady && panel.sessionContext.session?.kernel?.status === 'idle';
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
# All cells ran, or one failed that should not. (The command itself reports back at the first cell that raises.)
FINISHED = """() => {
    const all = window.jupyterapp.shell.currentWidget.content.model.toJSON().cells;
    const cells = all.filter(cell => cell.cell_type === 'code');
    const failed = cell => cell.outputs.some(output => output.output_type === 'error')
        && !(cell.metadata.tags ?? []).includes('raises-exception');
    return cells.every(cell => cell.execution_count !== null) || cells.some(failed);
}"""
CELLS = "() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells"
SHUT_DOWN = "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"
HEIGHT = "() => Math.max(...[...document.querySelectorAll('.jp-WindowedPanel-viewport')].map(e => e.scrollHeight))"

if not NOTEBOOKS:
    pytest.skip("there is no notebook yet", allow_module_level=True)


@pytest.fixture(scope="session")
def screenshots():
    folder = pathlib.Path(os.environ.get("SCREENSHOTS") or tempfile.mkdtemp(prefix="screenshots-"))
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    print(f"\nscreenshots: {folder}")


def copy_notebooks(work: pathlib.Path) -> None:
    for folder in ("notebooks", "slides"):
        shutil.copytree(ROOT / "notebooks", work / folder, ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(ROOT / "tests" / "data", work / "tests" / "data")  # published measurements, which 09 reads
    for path in (work / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, path)


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A JupyterLab over the copied notebooks, with no settings but the test's; `lab(path)` gives an address."""
    work = tmp_path_factory.mktemp("lab")
    copy_notebooks(work)
    for name, settings in SETTINGS.items():
        path = work / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    folders = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
               "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces"}
    environment = os.environ | {name: str(work / folder) for name, folder in folders.items()}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
               "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}",
               "--LabApp.expose_app_in_browser=True", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = (work / "lab.log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=1).close()
                break
            time.sleep(0.1)
        else:
            pytest.fail("JupyterLab did not start:\n" + (work / "lab.log").read_text())
        yield lambda path: f"http://127.0.0.1:{port}/{path}?token={token}&reset"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="session")
def browser():
    names = [os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    path = next((shutil.which(name) for name in names if name and shutil.which(name)), None)
    if not path:
        pytest.fail("no Chromium here: install one (Debian: apt-get install chromium) or name it with CHROMIUM=path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page whose errors fail the test at its end, those thrown and those logged to the console."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    problems = watch(page)
    yield page
    page.close()
    assert problems == []


@pytest.fixture
def slides(browser):
    """A page for jupyterlab-rise, on which only thrown errors fail the test.

    It is built on JupyterLab 4.3 and always logs errors of its own: it wants fonts from the network and optional style
    sheets, and cannot load today's widgets (in the slides their static pictures stand in).
    """
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    problems = watch(page)
    yield page
    page.close()
    assert [problem for problem in problems if problem.startswith("thrown")] == []


def watch(page) -> list[str]:
    """The list that errors of the page will be added to."""
    problems = []

    def logged(message):
        if message.type == "error":
            problems.append(f"logged: {message.text} ({message.location.get('url')})")

    page.on("pageerror", lambda error: problems.append(f"thrown: {error}"))
    page.on("console", logged)
    return problems


def open_notebook(page, address: str) -> None:
    page.goto(address)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")


def run_all(page) -> list[dict]:
    """Run the notebook; returns its cells as JSON, with their outputs."""
    page.evaluate(RUN_ALL)
    page.wait_for_function(FINISHED, timeout=1000 * SECONDS, polling=200)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    return page.evaluate(CELLS)


def picture(page, path: pathlib.Path) -> None:
    """A picture of the whole notebook: the window is made as high as the notebook is."""
    size = page.viewport_size
    page.set_viewport_size({"width": size["width"], "height": min(int(page.evaluate(HEIGHT)) + 200, 16_000)})
    page.evaluate("() => document.querySelectorAll('.jp-WindowedPanel-outer').forEach(e => { e.scrollTop = 0; })")
    page.wait_for_timeout(500)
    page.screenshot(path=str(path))
    page.set_viewport_size(size)


def check_outputs(cells: list[dict]) -> None:
    for cell in cells:
        allowed = "raises-exception" in cell["metadata"].get("tags", [])
        for output in cell.get("outputs", []):
            assert allowed or output["output_type"] != "error", output
            assert output.get("name") != "stderr", output
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), "not every cell ran, or not in order"


def check_pictures(page) -> None:
    broken = page.evaluate("() => [...document.querySelectorAll('.jp-OutputArea img')]"
                           ".filter(i => i.complete && !i.naturalWidth).length")
    assert broken == 0, f"{broken} pictures are not drawn"


def controls(page):
    """Every widget on the page that takes input, and the keys that move it: (where it is, keys)."""
    # A drop-down list would take arrow keys, but JupyterLab keeps those for moving between cells.
    assert page.locator(".widget-dropdown").count() == 0, "for the keyboard use a SelectionSlider or ToggleButtons"
    found = [(handle, ("ArrowRight", "ArrowLeft")) for handle in page.locator(".widget-slider .noUi-handle").all()]
    for group in page.locator(".widget-toggle-buttons").all():
        found.append((group.locator("button:not(.mod-active)").first, (" ",)))
    for selector in (".widget-toggle-button:not(.widget-toggle-buttons *)", ".widget-checkbox input"):
        found += [(control, (" ",)) for control in page.locator(selector).all()]
    return [(control, keys) for control, keys in found if control.is_visible() and control.is_enabled()]


def move_controls(page, most: int | None = None) -> int:
    """Move widgets once each, by keyboard: the planner's last picture must change each time. Returns their number.

    most: only so many of them.
    """
    image = page.locator(".jp-OutputArea-output img.widget-image").last
    image.scroll_into_view_if_needed()
    found = controls(page)[:most]
    for number, (control, keys) in enumerate(found):
        before = image.get_attribute("src")
        if "ArrowRight" in keys and control.get_attribute("aria-valuenow") == control.get_attribute("aria-valuemax"):
            keys = ("ArrowLeft",)  # at the end of its range it moves only the other way
        for key in keys:
            control.focus()
            page.keyboard.press(key)
            with contextlib.suppress(AssertionError):
                expect(image).not_to_have_attribute("src", before, timeout=20_000)
                break
        else:
            pytest.fail(f"control {number} changed nothing: {control}")
    return len(found)


def check_planner(page, screenshots: pathlib.Path) -> None:
    """The planner answers each of its controls, and some in the other theme and in a narrow window."""
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        for width in (1280, 800):
            page.set_viewport_size({"width": width, "height": 1000})
            first = theme.endswith("Light") and width == 1280
            assert move_controls(page, None if first else 2) >= (13 if first else 2)
            page.screenshot(path=str(screenshots / f"{PLANNER}_{theme.split()[-1].lower()}_{width}.png"))
    check_outputs(page.evaluate(CELLS))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_in_jupyterlab(path, lab, page, screenshots):
    open_notebook(page, lab(f"lab/tree/notebooks/{path.name}"))
    check_outputs(run_all(page))
    picture(page, screenshots / f"{path.stem}.png")
    check_pictures(page)
    if path.stem == PLANNER:
        check_planner(page, screenshots)
    page.evaluate(SHUT_DOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_presents_as_slides(path, lab, slides, screenshots):
    """The title is the first slide, and the space bar goes on."""
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# ").strip()
    slide = start_slides(slides, lab(f"rise/slides/{path.name}"))
    expect(slide).to_contain_text(title.replace("`", ""), timeout=60_000)
    slides.screenshot(path=str(screenshots / f"{path.stem}_slide.png"))
    slides.keyboard.press("Space")
    expect(slide).not_to_contain_text(title, timeout=10_000)


def test_code_runs_while_presenting(lab, slides):
    slide = start_slides(slides, lab(f"rise/notebooks/{NOTEBOOKS[0].name}"))
    for _ in range(30):
        if slide.locator(".jp-CodeCell").count():
            break
        slides.keyboard.press("Space")
        slides.wait_for_timeout(300)
    cell = slide.locator(".jp-CodeCell").first
    cell.locator(".cm-content").click()
    slides.keyboard.press("Shift+Enter")
    expect(slides.locator(".jp-InputPrompt", has_text="[1]:")).to_have_count(1, timeout=60_000)


def start_slides(page, address: str):
    """Open a notebook as slides; returns the place of the slide that is shown."""
    page.goto(address)
    slide = page.locator(".reveal .slides section.present:not(.stack)").first
    slide.wait_for(timeout=60_000)
    return slide
