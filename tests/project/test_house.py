"""The house of `helpers/`: its drawing is fresh, imports run one way, and CONTRIBUTING.md names what is there."""

import ast
import pathlib
import re
import sys

import draw_house
import pytest

from helpers import FusionConfig, FusionTransformer, make_batch, open_card, plots

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACES = re.findall(r"`((?:helpers|tests|notebooks)/[\w/.]+\.\w+)`(?:\s`([A-Za-z_.]+)`)?", PAGE)
PATH = re.findall(r"^\| \d+ \|.*\| `(helpers/\S+\.py)` `(\S+)` \|$", PAGE, flags=re.M)
ROOMS = sorted(path.parent for path in (ROOT / "helpers").rglob("__init__.py"))


def defined(path: pathlib.Path) -> set[str]:
    """Names that a file defines: `name`, and `Class.name` of what stands in a class."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                found.add(target.id)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_the_drawing_is_what_the_imports_say():
    assert draw_house.draw() == draw_house.PICTURE.read_text(encoding="utf-8"), "run `make house`"


def test_files_and_rooms_import_one_way():
    assert draw_house.circle(draw_house.imports()) == []
    assert draw_house.circle(draw_house.uses()) == []


def test_the_simulation_knows_no_card_and_the_model_neither():
    uses = draw_house.uses()
    assert uses["helpers.model"] == {"helpers.units"}
    assert not uses["helpers.measuring"] & {room for room in uses if "simulation" in room or "cards" in room}
    for room in uses:
        if room.startswith("helpers.simulation"):
            assert all(other.startswith("helpers.simulation") or other in ("helpers.torch_private", "helpers.units")
                       for other in uses[room])


def test_a_circle_is_seen(tmp_path):
    (tmp_path / "helpers" / "room").mkdir(parents=True)
    (tmp_path / "helpers" / "__init__.py").touch()
    (tmp_path / "helpers" / "room" / "__init__.py").touch()
    (tmp_path / "helpers" / "room" / "file.py").write_text("from helpers import other")
    (tmp_path / "helpers" / "other.py").write_text("def late():\n    from helpers.room.file import name")
    assert draw_house.circle(draw_house.imports(tmp_path)) == ["helpers.other", "helpers.room.file", "helpers.other"]
    assert draw_house.uses(tmp_path)["helpers.room"] == {"helpers.other"}


def test_the_tool_names_a_circle_of_rooms_and_draws_nothing(monkeypatch, capsys):
    before = draw_house.PICTURE.read_bytes()
    monkeypatch.setattr(draw_house, "uses", lambda: {"helpers.one": {"helpers.two"}, "helpers.two": {"helpers.one"}})
    assert draw_house.main() == 1
    assert capsys.readouterr().out == "imports go in a circle: helpers.one → helpers.two → helpers.one\n"
    assert draw_house.PICTURE.read_bytes() == before


def test_an_arrow_that_follows_from_others_is_left_out():
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert draw_house.without_shortcuts(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}
    assert draw_house.floors(graph) == {"a": 2, "b": 1, "c": 0}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(ROOT).as_posix())
def test_a_room_says_what_it_is_for_and_names_its_files(room):
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert text and text.splitlines()[0].endswith((".", "?")) and len(text.split()) < 120
    if room.name != "helpers":  # the front door: it gives the names of the one import line
        inside = {path.stem for path in room.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert sorted(inside - {"__init__"} - set(re.findall(r"`(\w+)`", text))) == []


def test_what_the_page_names_is_there():
    named = [(ROOT / file, name) for file, name in PLACES if "NN" not in file]
    assert len(named) > 40 and [path for path, _ in named if not path.exists()] == []
    assert [(path.name, name) for path, name in named if name and name not in defined(path)] == []


def test_every_room_is_in_the_drawing_and_ten_questions_lead_to_a_place():
    drawing = draw_house.PICTURE.read_text(encoding="utf-8")
    assert all(f">{room.name}/<" in drawing for room in ROOMS)
    assert len(re.findall(r"^\| W[^|]*\? \| `", PAGE, flags=re.M)) >= 10


def test_a_tensor_takes_the_path_that_the_page_tells():
    """In a run and its plot the functions of the table are called one after the other."""
    config, left = FusionConfig.tiny(), [(str(ROOT / file), name) for file, name in PATH]
    assert len(left) > 15

    def train(device, batch_size):
        model = FusionTransformer(config).to(device)
        model(**make_batch(config, batch_size, device)).loss.backward()

    def note(frame, event, arg):
        if event == "call" and left and left[0] == (frame.f_code.co_filename, frame.f_code.co_qualname):
            del left[0]

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run = open_card(kind="simulated").run(train, batch_size=2)
        plots.breakdown(run)
    finally:
        sys.setprofile(before)
    assert left == []
    tables = {record.role for record in run.live_at_peak if record.operator == "aten._softmax"}
    assert tables == {"activations"}
