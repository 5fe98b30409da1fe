"""Draw the rooms of `helpers/` and which of them uses which, from the imports: makes helpers/house.svg.

    python tests/tools/draw_house.py           draws it again
    python tests/tools/draw_house.py --check   draws nothing, exit code 1 if the drawing is stale

A room is a folder of `helpers/`, or a file that stands in it by itself. It stands one floor above the highest room that
it uses. An arrow that follows from two others is left out, so that the picture stays readable.
"""

import ast
import functools
import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICTURE = ROOT / "helpers" / "house.svg"
WIDTH, MARGIN, GAP, FLOOR, LINE = 1040, 12, 12, 50, 16  # pixels; FLOOR is the space between two floors
LETTER = 6.6  # pixels of a letter of the text, on average
STYLE = """
  text { font: 12px Verdana, "DejaVu Sans", sans-serif; fill: #222; }
  .name { font-weight: bold; font-size: 13.5px; } .files { fill: #666; }
  .room { fill: #fff; stroke: #555; } .inside { fill: #e8f1fa; }
  path { fill: none; stroke: #8a8a8a; stroke-width: 1.2; marker-end: url(#end); }
"""


def module_name(path: pathlib.Path, root: pathlib.Path = ROOT) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """module: the modules of `helpers` that it imports, at its head or within a function."""
    files = {module_name(path, root): path for path in sorted((root / "helpers").rglob("*.py"))}
    found = {}
    for name, path in files.items():
        used = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    raise ValueError(f"{path}, line {node.lineno}: write a full import, `from helpers.… import …`.")
                modules = {f"{node.module}.{alias.name}" for alias in node.names} & set(files)
                used |= modules or {node.module}
        found[name] = used & set(files) - {name}
    return found


def room_of(module: str, root: pathlib.Path = ROOT) -> str:
    """The folder of a module, or the module itself where it stands in `helpers/`."""
    path = root.joinpath(*module.split("."))
    return module if path.is_dir() or module.count(".") == 1 else module.rpartition(".")[0]


def uses(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """room: the other rooms that it imports from."""
    rooms: dict[str, set[str]] = {}
    for module, used in imports(root).items():
        rooms.setdefault(room_of(module, root), set()).update(room_of(other, root) for other in used)
    return {room: used - {room} for room, used in rooms.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The names along a circle of imports; empty where there is none."""
    done, way = set(), []

    def visit(name):
        if name in way:
            return [*way[way.index(name):], name]
        if name not in done:
            way.append(name)
            for other in sorted(graph[name]):
                if found := visit(other):
                    return found
            way.pop()
            done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name))), [])


def floors(graph: dict[str, set[str]]) -> dict[str, int]:
    """room: its floor, 0 where it uses no other."""
    @functools.cache
    def floor(room):
        return 1 + max(map(floor, graph[room]), default=-1)
    return {room: floor(room) for room in graph}


def without_shortcuts(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from others."""
    @functools.cache
    def below(room):
        return graph[room].union(*map(below, graph[room]))
    return {room: used - set().union(*map(below, used)) for room, used in graph.items()}


def head(room: str) -> tuple[str, list[str]]:
    """First sentence of a room's docstring, and its files."""
    folder = ROOT.joinpath(*room.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = " ".join(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))).split())
    sentence = re.split(r"(?<=[.?!]) ", text)[0].rstrip(".").replace("`", "")
    files = [] if room == "helpers" or not folder.is_dir() else sorted(
        path.stem for path in folder.glob("*.py") if path.name != "__init__.py")
    return sentence, files


def wrapped(text: str, width: float) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + 1 + len(word) > width / LETTER and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def arranged(graph: dict[str, set[str]]) -> list[list[tuple[str, ...]]]:
    """For each floor, from the lowest, its rooms and the arrows (user, used) that pass it, from left to right."""
    level, levels = floors(graph), [[] for _ in range(1 + max(floors(graph).values()))]
    links: dict[tuple, list[tuple]] = {}  # what is one floor above -> what is below
    for room in sorted(graph):
        levels[level[room]].append((room,))
    for room, used in sorted(graph.items()):
        for other in sorted(used):
            chain = [(room,), *((room, other, str(at)) for at in range(level[room] - 1, level[other], -1)), (other,)]
            for at, part in enumerate(chain[1:-1], 1):
                levels[level[room] - at].append(part)
            for above, below in zip(chain, chain[1:], strict=False):
                links.setdefault(above, []).append(below)
                links.setdefault(below, []).append(above)
    for sweep in range(24):  # each goes to the middle of its neighbours, upwards and downwards in turn
        order = range(len(levels)) if sweep % 2 else reversed(range(len(levels)))
        for at in order:
            place = {part: (index + 0.5) / len(row) for row in levels for index, part in enumerate(row)}
            levels[at].sort(key=lambda part, place=place: (
                sum(place[other] for other in links.get(part, [part])) / len(links.get(part, [part])), part))
    return levels


def draw() -> str:
    graph = without_shortcuts(uses())
    levels = arranged(graph)
    boxes, parts, y = {}, [], MARGIN  # (x, y, width, height) of rooms and of passing arrows
    for row in reversed(levels):
        rooms = [part for part in row if len(part) == 1]
        passing = len(row) - len(rooms)
        room_width = min(260, (WIDTH - 2 * MARGIN - GAP * (len(row) - 1) - GAP * passing) / max(len(rooms), 1))
        texts = {part: text_of(part[0], room_width - 16) for part in rooms}
        height = max(len(lines) for lines in texts.values()) * LINE + 14
        free = WIDTH - 2 * MARGIN - room_width * len(rooms) - GAP * passing
        space = free / (len(row) + 1)
        x = MARGIN + space
        for part in row:
            width = room_width if len(part) == 1 else GAP
            boxes[part] = (x, y, width, height)
            if len(part) == 1:
                parts += room_box(part[0], texts[part], boxes[part])
            x += width + space
        y += height + FLOOR
    arrows = [arrow(room, other, boxes, levels) for room, used in sorted(graph.items()) for other in sorted(used)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - FLOOR + MARGIN}" role="img">',
        f"<title>{escape(in_words(graph))}</title>", f"<style>{STYLE}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<polygon points="0,0 8,4 0,8" fill="#8a8a8a"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#fafafa"/>', *arrows, *parts, "</svg>", ""])


def text_of(room: str, width: float) -> list[tuple[str, str]]:
    """(class, line) of what stands in a room's box."""
    sentence, files = head(room)
    folder = ROOT.joinpath(*room.split(".")).is_dir()
    name = room.removeprefix("helpers.").removeprefix("simulation.") + ("/" if folder else ".py")  # blue says the rest
    return ([("name", name)] + [("", line) for line in wrapped(sentence, width)]
            + [("files", line) for line in wrapped(", ".join(files), width) if line])


def room_box(room: str, lines, box) -> list[str]:
    x, y, width, height = box
    inside = " inside" if room.startswith("helpers.simulation") else ""
    found = [f'<rect class="room{inside}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="5"/>']
    for number, (kind, line) in enumerate(lines):
        found.append(f'<text class="{kind}" x="{x + 8:.0f}" y="{y + 18 + number * LINE:.0f}">{escape(line)}</text>')
    return found


def arrow(room: str, other: str, boxes, levels) -> str:
    """From the bottom of a room down to the top of the one that it uses, past the floors between."""
    way = sorted((box for part, box in boxes.items() if part[:2] == (room, other)), key=lambda box: box[1])
    start, end = boxes[(room,)], boxes[(other,)]
    target = (way or [end])[0]
    source = (way or [start])[-1]
    x, y = door(start, target), start[1] + start[3]
    path = f"M{x:.0f},{y:.0f}"
    for left, top, width, height in way:
        middle = left + width / 2
        path += f" C{x:.0f},{y + FLOOR / 2:.0f} {middle:.0f},{top - FLOOR / 2:.0f} {middle:.0f},{top:.0f}"
        x, y = middle, top + height
        path += f" V{y:.0f}"
    last = door(end, source)
    return (f'<path d="{path} C{x:.0f},{y + FLOOR / 2:.0f} {last:.0f},{end[1] - FLOOR / 2:.0f} '
            f'{last:.0f},{end[1]:.0f}"/>')


def door(box, towards) -> float:
    """Where an arrow leaves or enters a box: nearer to the side on which its other end is."""
    middle, there = box[0] + box[2] / 2, towards[0] + towards[2] / 2
    return middle + max(-0.42, min(0.42, (there - middle) / WIDTH)) * box[2]


def in_words(graph: dict[str, set[str]]) -> str:
    def short(room):
        return room.removeprefix("helpers.").replace(".", "/")
    return "The rooms of helpers, each above those that it uses. " + ". ".join(
        f"{short(room)} uses {', '.join(short(other) for other in sorted(used)) or 'none'}"
        for room, used in sorted(graph.items(), key=lambda item: (-floors(graph)[item[0]], item[0])))


def main() -> int:
    if found := circle(imports()) or circle(uses()):  # rooms can go in a circle where their files do not
        print("imports go in a circle:", " → ".join(found))
        return 1
    drawing, old = draw(), PICTURE.read_text(encoding="utf-8") if PICTURE.exists() else ""
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(drawing, encoding="utf-8")
        print("drawn:", PICTURE.relative_to(ROOT))
    elif drawing != old:
        print("stale:", PICTURE.relative_to(ROOT))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
