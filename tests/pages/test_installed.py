"""The pages that are rendered from the installed torch."""

import json
import logging
import os
import re
import sys
import tempfile
import warnings
from dataclasses import asdict, replace
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest
import sphobjinv
from bs4 import BeautifulSoup

from skill_builder.errors import ScopeError, TorchUnusable
from skill_builder.pages.installed import OFFICIAL_DOCS, installed_pages
from skill_builder.pages.rendering import pages_from_json
from skill_builder.scope import StubObject, StubPage, StubSection, load_scope

OFFICIAL_INVENTORY = Path(__file__).parents[2].parent / "shared/docs-site/docs/stable/objects.inv"


def silent(_stage, _done, _total):
    """A progress that nobody watches."""


def small_scope(*names, modules=(), page="distributed"):
    """A scope of one page that documents objects of torch.distributed."""
    objects = tuple(StubObject("torch.distributed", name) for name in names)
    pages = (StubPage(page, "A page", tuple(modules), (StubSection("Objects", objects),)),)
    return replace(load_scope(), installed=pages)


@pytest.fixture(scope="module")
def rendered():
    """The whole source, with its pages and what progress it told."""
    told = []
    source = installed_pages(load_scope(), progress=lambda *step: told.append(step))
    return source, tuple(source.pages), told


@pytest.fixture
def fake_torch(tmp_path, monkeypatch):
    """Puts a package `torch` with the given source before the real one."""

    def write(source):
        package = tmp_path / "site-packages" / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source)
        monkeypatch.syspath_prepend(package.parent)
        return package

    return write


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch):
    """A folder that holds all temporary files of a test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_pages_have_their_official_addresses_in_order(rendered):
    _, pages, _ = rendered
    assert [page.url for page in pages] == sorted(f"{OFFICIAL_DOCS}{page.name}.html" for page in load_scope().installed)


def test_the_process_that_renders_is_told_the_pages_in_json():
    pages = load_scope().installed
    assert pages_from_json(json.loads(json.dumps([asdict(page) for page in pages]))) == pages


def test_source_says_which_torch_it_is(rendered):
    source, _, _ = rendered
    release = installed_version("torch")
    assert source.origin == "installed"
    assert source.version == ".".join(release.split(".")[:2])
    assert source.address.startswith(f"torch {release} in ")
    assert Path(source.address.partition(" in ")[2], "distributed").is_dir()


def test_every_object_has_its_anchor_on_its_page(rendered):
    source, pages, _ = rendered
    anchors = {page.url: set(re.findall(r'\bid="([^"]+)"', page.html)) for page in pages}
    placed = [item.url.partition("#") for item in source.objects]
    assert [(page, anchor) for page, _, anchor in placed if anchor not in anchors[page]] == []


@pytest.mark.parametrize(
    ("place", "role"),
    [
        ("distributed.fsdp.fully_shard.html#torch.distributed.fsdp.fully_shard", "function"),
        ("distributed.fsdp.fully_shard.html#torch.distributed.fsdp.FSDPModule.unshard", "method"),
        ("fsdp.html#torch.distributed.fsdp.MixedPrecision", "class"),
        ("distributed.html#torch.distributed.device_mesh.DeviceMesh.get_group", "method"),
        ("distributed.html#torch.distributed.Store.__init__", "method"),
        ("distributed.checkpoint.html#torch.distributed.checkpoint.state_dict_saver.save", "function"),
        ("distributed.tensor.html#torch.distributed.tensor.placement_types.Shard", "class"),
        ("elastic/run.html#module-torch.distributed.run", "module"),
        ("generated/torch.nn.utils.clip_grad_norm_.html#torch.nn.utils.clip_grad_norm_", "function"),
        ("torch_cuda_memory.html#torch.cuda.memory._record_memory_history", "function"),
    ],
)
def test_objects_have_the_anchors_of_the_official_site(rendered, place, role):
    source, _, _ = rendered
    name = place.partition("#")[2].removeprefix("module-")
    found = {(item.url, item.name): item.role for item in source.objects}
    assert found[OFFICIAL_DOCS + place, name] == role


def test_no_object_of_the_official_site_is_lacking(rendered):
    if not OFFICIAL_INVENTORY.exists():
        pytest.skip("needs ../shared/docs-site, a rendering of the official pages")
    source, _, _ = rendered
    official = sphobjinv.Inventory(OFFICIAL_INVENTORY)
    if not source.version.startswith(official.version):
        pytest.skip(f"documents torch {official.version}, and {source.version} is installed")
    scope = load_scope()
    wanted = {
        (OFFICIAL_DOCS + item.uri_expanded, item.name)
        for item in official.objects
        if item.domain == "py" and scope.has_object(item.name, item.uri.partition(".html#")[0])
    }
    assert wanted
    assert wanted - {(item.url, item.name) for item in source.objects} == set()


@pytest.mark.parametrize(
    "anchor",
    [
        "devicemesh",
        "point-to-point-communication",
        "collective-functions",
        "debugging-torch-distributed-applications",
    ],
)
def test_headings_have_the_anchors_that_categories_name(rendered, anchor):
    _, pages, _ = rendered
    html = next(page.html for page in pages if page.url == f"{OFFICIAL_DOCS}distributed.html")
    assert BeautifulSoup(html, "lxml").select_one(f"[role=main] section#{anchor} > h2")


def test_every_page_has_a_category():
    scope = load_scope()
    names = {category.name for category in scope.categories}
    assert {scope.category_of(page.name, (), "", "") for page in scope.installed} <= names


def test_articles_hold_docstrings_and_signatures(rendered):
    _, pages, _ = rendered
    [html] = [page.html for page in pages if page.url.endswith("/distributed.fsdp.fully_shard.html")]
    article = BeautifulSoup(html, "lxml").select_one("[role=main]")
    signature = article.find(id="torch.distributed.fsdp.FSDPModule.set_requires_gradient_sync").get_text()
    assert re.match(r"set_requires_gradient_sync\(requires_gradient_sync: bool, \*", signature.strip())
    assert "gradient accumulation" in article.get_text()
    assert not article.select(".headerlink, .sphinxsidebar")


def test_source_links_lead_to_the_line_of_the_release(rendered):
    source, pages, _ = rendered
    [html] = [page.html for page in pages if page.url.endswith("/distributed.fsdp.fully_shard.html")]
    definition = BeautifulSoup(html, "lxml").find(id="torch.distributed.fsdp.FSDPModule")
    link = definition.select_one("a:has(.viewcode-link)")["href"]
    tag, file, line = re.fullmatch(
        r"https://github\.com/pytorch/pytorch/blob/v([^/]+)/(torch/.+\.py)#L(\d+)", link
    ).groups()
    package = Path(source.address.partition(" in ")[2])
    assert tag == installed_version("torch").partition("+")[0]
    lines = (package.parent / file).read_text().split("\n")
    assert lines[int(line) - 1].startswith("class FSDPModule")


def test_progress_counts_every_page_once(rendered):
    _, pages, told = rendered
    assert told == [("rendering", done, len(pages)) for done in range(len(pages) + 1)]


def test_docstring_warnings_are_counted_not_listed(rendered):
    source, _, _ = rendered
    assert [note for note in source.notes if re.fullmatch(r"\d+ warnings from torch's docstrings", note)]


def test_nothing_is_printed_and_nothing_changes_here(own_temporary_folder, capfd):
    before = (
        sys.path.copy(),
        dict(os.environ),
        warnings.filters.copy(),
        logging.root.handlers.copy(),
        {name for name in sys.modules if name.partition(".")[0] in {"torch", "sphinx", "docutils"}},
    )
    source = installed_pages(small_scope("barrier", "reduce_op"), progress=silent)
    assert [item.name for item in source.objects] == [
        "torch.distributed.barrier",
        "torch.distributed.reduce_op",
    ]
    assert before == (
        sys.path,
        dict(os.environ),
        warnings.filters,
        logging.root.handlers,
        {name for name in sys.modules if name.partition(".")[0] in {"torch", "sphinx", "docutils"}},
    )
    assert list(own_temporary_folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_same_torch_gives_the_same_pages():
    scope = small_scope("Backend", "Work", "init_process_group")
    first, second = (installed_pages(scope, progress=silent) for _ in range(2))
    assert first.objects == second.objects
    assert list(first.pages) == list(second.pages)


def test_what_this_torch_lacks_is_left_out_and_noted():
    scope = small_scope("barrier", "teleport", modules=["torch.distributed", "torch.distributed.warp"])
    source = installed_pages(scope, progress=silent)
    assert [item.name for item in source.objects] == ["torch.distributed", "torch.distributed.barrier"]
    assert source.notes == [
        f"2 names that torch {installed_version('torch')} lacks: torch.distributed.teleport, torch.distributed.warp"
    ]


def test_members_that_this_torch_lacks_are_left_out_and_noted():
    scope = small_scope()
    item = StubObject("torch.distributed", "HashStore", ("set", "get", "beam"))
    page = replace(scope.installed[0], sections=(StubSection("", (item,)),))
    source = installed_pages(replace(scope, installed=(page,)), progress=silent)
    assert {name.name for name in source.objects if name.role == "method"} == {
        "torch.distributed.HashStore.get",
        "torch.distributed.HashStore.set",
    }
    assert "torch.distributed.HashStore.beam" in source.notes[0]


def test_objects_out_of_scope_are_not_listed():
    source = installed_pages(small_scope("barrier", page="somewhere/else"), progress=silent)
    scope = small_scope("barrier", page="index")
    excluded = installed_pages(scope, progress=silent)
    assert [item.url for item in source.objects] == [f"{OFFICIAL_DOCS}somewhere/else.html#torch.distributed.barrier"]
    assert excluded.objects == ()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise ModuleNotFoundError('no torch', name='torch')", r"torch: is not installed; pip install .*"),
        ("import a_module_that_is_not_there", r"torch: cannot be imported \(No module named '.*'\); .*"),
        (
            "raise ImportError('libc10.so:\\ngone')",
            r"torch: cannot be imported \(libc10\.so:\); reinstall .*",
        ),
        ("raise OSError()", r"torch: cannot be imported \(OSError\); reinstall .*"),
        ("__version__ = '2.5.1+cu121'", r"torch in .*: is 2\.5\.1\+cu121, older than 2\.6; upgrade .*"),
        ("__version__ = '1.13'", r"torch in .*: is 1\.13, older than 2\.6; upgrade .*"),
        ("", r"torch in .*torch: has no version, so it is not PyTorch; remove it, .*"),
        (
            "raise ValueError('odd')",
            r"torch: its documentation .* \(exit status 1: ValueError: odd\); check .*",
        ),
        ("import os; os._exit(3)", r"torch: its documentation .* \(exit status 3: chatter\); check .*"),
        (
            "import os; os.truncate(2, 0); os.kill(os.getpid(), 9)",
            r"torch: its documentation .* \(exit status -9: it printed nothing\); check .*",
        ),
    ],
)
def test_unusable_torch_is_one_line_with_a_remedy(fake_torch, own_temporary_folder, capfd, source, problem):
    fake_torch(f"print('chatter')\n{source}\n")
    with pytest.raises(TorchUnusable) as caught:
        installed_pages(load_scope(), progress=silent)
    assert re.fullmatch(problem, str(caught.value))
    assert list(own_temporary_folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("source", ["raise ModuleNotFoundError('', name='torch')", "__version__ = '2.5.1'"])
def test_remedy_names_the_install_command(fake_torch, source):
    fake_torch(source)
    with pytest.raises(TorchUnusable, match=re.escape("pip install 'fsdp-skill[torch]'")):
        installed_pages(load_scope(), progress=silent)


def test_failing_sphinx_is_one_line(fake_torch):
    fake_torch("__version__ = '2.9.0'\nimport sphinx.application\ndel sphinx.application.Sphinx.build\n")
    with pytest.raises(TorchUnusable, match=r"could not be rendered \(exit status 1: AttributeError: .*'build'"):
        installed_pages(small_scope("barrier"), progress=silent)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads command lines from /proc")
def test_an_interrupt_leaves_no_process_and_no_folder(own_temporary_folder):
    running = []

    def command_lines():
        lines = [file.read_bytes().decode() for file in Path("/proc").glob("[0-9]*/cmdline")]
        return [line for line in lines if str(own_temporary_folder) in line]

    def interrupt(_stage, done, _total):
        if done == 2:
            running.extend(command_lines())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        installed_pages(load_scope(), progress=interrupt)
    assert running
    assert command_lines() == []
    assert list(own_temporary_folder.iterdir()) == []


def test_pages_are_rendered_whatever_the_working_directory_holds(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    if sys.version_info < (3, 11):
        pytest.skip("Python 3.10 has no -P: `python -m` looks in the working directory first")
    assert installed_pages(small_scope("barrier"), progress=silent).objects


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "no page is named here"),
        ("page: {}", "key 'title' is missing"),
        ("page: {title: A, colour: red}", "unknown key 'colour'"),
        ("page: {title: A, objects: {torch: save}}", "a list of objects is expected here"),
        ("page: {title: A, objects: {torch: [{save: all}]}}", "a list of names is expected here"),
        ("page: {title: A, objects: {torch: [save it]}}", "torch.save it is no name in Python"),
        ("page: {title: A, sections: {One: {torch: [{a: [b], c: [d]}]}}}", "a text is expected here"),
    ],
)
def test_wrong_pages_in_the_scope_name_their_line(tmp_path, text, complaint):
    official = load_scope().path.read_text()
    head, _, rest = official.partition("\ninstalled:\n")
    tail = rest[rest.index("\n\n# KiB") :]
    file = tmp_path / "scope.yaml"
    file.write_text(f"{head}\ninstalled:\n  {text}{tail}")
    line = head.count("\n") + 3
    with pytest.raises(ScopeError, match=re.escape(complaint)) as caught:
        load_scope(file)
    assert caught.value.where == f"{file}:{line}"


def test_objects_in_the_scope_say_how_much_is_documented(tmp_path):
    official = load_scope().path.read_text()
    head, _, rest = official.partition("\ninstalled:\n")
    tail = rest[rest.index("\n\n# KiB") :]
    file = tmp_path / "scope.yaml"
    file.write_text(
        f"{head}\ninstalled:\n"
        "  elastic/page:\n"
        "    title: A page\n"
        "    modules: [torch]\n"
        "    objects:\n"
        "      torch: [__doc__, save]\n"
        "    sections:\n"
        "      Heading:\n"
        "        torch.nn:\n"
        "          - Module.*\n"
        f"          - Linear: [forward, __init__]{tail}"
    )
    assert load_scope(file).installed == (
        StubPage(
            "elastic/page",
            "A page",
            ("torch",),
            (
                StubSection("", (StubObject("torch", "__doc__"), StubObject("torch", "save"))),
                StubSection(
                    "Heading",
                    (
                        StubObject("torch.nn", "Module", ("*",)),
                        StubObject("torch.nn", "Linear", ("forward", "__init__")),
                    ),
                ),
            ),
        ),
    )
