"""The rules that keep the code readable: small files and functions, imports that point one way, a public interface that is typed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pyramidvit"
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = [
    {"errors", "cpu", "config", "types", "files"},
    {"geometry", "models.kernels", "models.layers", "models.pos_embed", "data.bands", "data.image", "data.listing"},
    {"models.epsilon", "models.pvt", "models.pvt_v2", "models.pooling", "models.mvit", "models.variants"},
    {"weights", "data.folders"},
    {"models", "data", "losses", "metrics", "draw", "tiling", "coco_results", "optim"},
    {"tasks"},
    {"runs", "checkpoint", "runtime", "session", "plan", "step", "display", "report", "engine", "summary", "predict", "views", "bench"}
    | {"timelines", "export"},
    {"verbs"},
    {"cli", "__main__"},
]
"""Lowest first. A name stands for a file, or for all of a package that is not named more closely."""

MAX_LINES, MAX_FUNCTION_LINES, MAX_REACHABLE = 300, 60, 35
FRONT_PAGES = {"config", "models", "weights", "metrics", "draw"}
"""Packages whose ``__init__`` says all that one task needs to know of them."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def layer_of(module: str) -> int:
    for name in (module, module.split(".")[0]):
        for number, members in enumerate(LAYERS):
            if name in members:
                return number
    raise AssertionError(f"{module} belongs to no layer: add it to LAYERS and to docs/architecture.md")


def own_imports(path: Path, *, top_level: bool = True) -> set[str]:
    """Modules of ours that a file imports, outside of ``if TYPE_CHECKING``; with top_level=False, those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)] if not top_level else tree.body
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pyramidvit":
            base = node.module.removeprefix("pyramidvit").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in MODULES else base)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("pyramidvit").lstrip(".") for a in node.names if a.name.split(".")[0] == "pyramidvit"}
    return found - {""}


@pytest.mark.parametrize("module", MODULES)
def test_files_and_functions_are_short(module):
    text = MODULES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("module", [m for m in MODULES if m])
def test_imports_point_down_and_stand_at_the_top(module):
    assert own_imports(MODULES[module], top_level=False) == set()
    for imported in own_imports(MODULES[module]):
        assert layer_of(imported) <= layer_of(module), f"{module} imports {imported} from a higher layer"


def test_there_are_no_cycles():
    graph = {module: own_imports(path) for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join([*trail, module])
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_models_and_data_do_not_know_each_other():
    for module, path in MODULES.items():
        package = module.split(".")[0]
        if package in ("models", "data"):
            other = "data" if package == "models" else "models"
            assert not [name for name in own_imports(path) if name.split(".")[0] == other], module


def test_one_task_is_learned_from_few_files():
    """From the engine and a task, a newcomer reaches everything within 35 files; packages that are used by their front page count once."""
    reached: set[str] = set()
    todo = ["engine", "tasks.classify"]
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += own_imports(MODULES[module])
    opened = {name.split(".")[0] if name.split(".")[0] in FRONT_PAGES else name for name in reached}
    assert len(opened) <= MAX_REACHABLE, sorted(opened)


@pytest.mark.slow
def test_public_functions_are_annotated():
    missing = []
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            for function in [node, *getattr(node, "body", [])]:
                if isinstance(function, ast.FunctionDef) and not function.name.startswith("_"):
                    arguments = [a for a in (*function.args.args, *function.args.kwonlyargs) if a.arg not in ("self", "cls")]
                    if function.returns is None or any(a.annotation is None for a in arguments):
                        missing.append(f"{module}.{function.name}")
    assert missing == []


@pytest.mark.slow
def test_nothing_hides_failures():
    """No bare except, no strict=False, no pickle, no yaml.load."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("yaml.load", "pickle.load", "pickle.loads", "torch.load", "eval", "exec"), path
                if called.endswith("load_state_dict"):
                    assert not any(k.arg == "strict" for k in node.keywords), path


def test_every_module_is_in_the_architecture_page():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    missing = [path.name for path in FILES if path.name != "__init__.py" and path.stem not in page]
    assert missing == []


def test_importing_the_package_is_cheap_and_quiet(tmp_path):
    """The command line's help must not wait for torch."""
    code = "import sys, pyramidvit, pyramidvit.cli; print([m for m in ('torch', 'torchvision', 'timm', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
