import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from skill_builder.errors import NotASkill, SkillError
from skill_builder.fragments import slug
from skill_builder.skill.validate import RULES, Finding, validate
from tests.guide_index import guide_index

SKILL_MD = """\
---
name: pytorch-fsdp
description: FSDP training in PyTorch.
version: 0.1.0
platforms:
- linux
metadata:
  hermes:
    tags:
    - FSDP
---

# PyTorch FSDP

Run `scripts/search_docs.py`, which reads `references/index.json`; on a node it is
`${HERMES_SKILL_DIR}/scripts/search_docs.py`. Read [the guide](references/guide-start.md#first-steps)
and `references/docs-fsdp2.md`, or `references/guide-other.md`.

```python
print("ready")
```
"""

GUIDE = """\
# First steps

See [`fully_shard`] and [again](#first-steps-1), or [the site](https://example.org/#nowhere).

## First steps

| option | meaning |
|---|---|
| [`x`](docs-fsdp2.md#here) | a\\[`0`\\] |

```python
>>> value = 1
>>> for _ in range(value):
...     value += 1
```

[`fully_shard`]: docs-fsdp2.md#fully_shard
"""

DOCS = """\
# `fully_shard`

<a id="here"></a>

Text about `x<y>` and the list[`int`].
"""


OTHER = "# Other\n\nA guide that the index knows.\n"


@pytest.fixture
def skill(tmp_path, monkeypatch):
    """A skill in which nothing is wrong, on a machine without the client."""
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "pytorch-fsdp"
    for name, text in {
        "SKILL.md": SKILL_MD,
        "LICENSE": "MIT\n",
        "manifest.json": "{}\n",
        "references/guide-start.md": GUIDE,
        "references/docs-fsdp2.md": DOCS,
        "references/guide-other.md": OTHER,
        "references/index.json": guide_index({"guide-other.md": OTHER}),
        "scripts/search_docs.py": 'print("found")\n',
    }.items():
        write(folder / name, text)
    return folder


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def name_in_skill_md(skill, path):
    edit(skill / "SKILL.md", "# PyTorch FSDP", f"# PyTorch FSDP `{path}`")


def test_a_good_skill_has_no_findings(skill):
    assert validate(skill) == []


def test_a_good_skill_for_the_strict_validator_has_no_findings(skill):
    edit(skill / "SKILL.md", "version: 0.1.0\nplatforms:\n- linux\n", "")
    edit(skill / "SKILL.md", "  hermes:\n    tags:\n    - FSDP\n", "  version: 0.1.0\n  hermes.tags: FSDP\n")
    assert validate(skill) == []


def test_a_folder_without_skill_md_is_no_skill(tmp_path):
    with pytest.raises(NotASkill, match=r"has no SKILL\.md"):
        validate(tmp_path)


def test_findings_come_in_the_order_of_files_and_lines(skill):
    (skill / "references/index.json").unlink()
    edit(skill / "references/guide-start.md", "See", "¶ See")
    edit(skill / "SKILL.md", "- linux", "- beos")
    places = [(finding.file, finding.line) for finding in validate(skill)]
    assert places == [
        ("SKILL.md", 5),
        ("SKILL.md", 15),
        ("references/guide-start.md", 3),
        ("references/index.json", 0),
    ]


def test_frontmatter_is_missing(skill):
    write(skill / "SKILL.md", SKILL_MD.replace("---\n", ""))
    assert validate(skill) == [
        Finding(
            "SKILL.md",
            1,
            "frontmatter",
            "error",
            "has no frontmatter",
            "begin with a `---` line, YAML and another `---` line",
        )
    ]


FRONTMATTER = [
    (
        "platforms:\n- linux",
        "platforms: [linux]",
        Finding("SKILL.md", 5, "frontmatter", "error", "a flow list or mapping", "write one `- item` a line"),
    ),
    (
        "in PyTorch.",
        "--- in PyTorch.",
        Finding("SKILL.md", 3, "frontmatter", "error", "a value holds `---`", "write a dash or a comma"),
    ),
    (
        "version: 0.1.0",
        "colour: red",
        Finding("SKILL.md", 4, "fields", "error", "unknown field 'colour'", "move it under `metadata`"),
    ),
    (
        "metadata:\n  hermes:\n    tags:\n    - FSDP\n",
        "metadata: FSDP\n",
        Finding("SKILL.md", 7, "metadata", "error", "is no mapping", "write `key: value` lines under it"),
    ),
    (
        "version: 0.1.0\nplatforms:\n- linux\n",
        "",
        Finding(
            "SKILL.md",
            4,
            "metadata",
            "error",
            "the value of 'hermes' is no string",
            "join its parts with commas",
        ),
    ),
    (
        "name: pytorch-fsdp",
        "name: pytorch-fsdp2",
        Finding(
            "SKILL.md",
            2,
            "name",
            "error",
            "'pytorch-fsdp2' is not the folder's name, 'pytorch-fsdp'",
            "rename one of the two",
        ),
    ),
    (
        "FSDP training in PyTorch.",
        "FSDP" + "." * 1021,
        Finding(
            "SKILL.md",
            3,
            "description",
            "error",
            "the description has 1025 characters",
            "use at most 1024",
        ),
    ),
    (
        "description: FSDP training in PyTorch.",
        "description:\n- FSDP",
        Finding("SKILL.md", 3, "description", "error", "is no text", "write it on one line, in quotes"),
    ),
    (
        "version: 0.1.0",
        "compatibility: " + "x" * 501,
        Finding(
            "SKILL.md",
            4,
            "compatibility",
            "error",
            "the compatibility has 501 characters",
            "use at most 500",
        ),
    ),
    (
        "FSDP training in PyTorch.",
        "A" * 54 + "FSDP",
        Finding(
            "SKILL.md",
            3,
            "trigger",
            "error",
            "'FSDP' is not among the first 57 characters",
            "begin with what the skill is for",
        ),
    ),
    (
        "- linux",
        "- platform-agnostic",
        Finding(
            "SKILL.md",
            5,
            "platforms",
            "error",
            "'platform-agnostic' hides the skill from Hermes",
            "use linux, macos, windows",
        ),
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "finding"), FRONTMATTER, ids=[f"{f.rule}: {f.problem}" for *_, f in FRONTMATTER]
)
def test_frontmatter_rule(skill, old, new, finding):
    edit(skill / "SKILL.md", old, new)
    assert validate(skill) == [finding]


@pytest.mark.parametrize("name", ["Pytorch", "-fsdp", "fsdp-", "a--b", "a_b", "2fsdp"])
def test_name_must_be_plain(skill, name):
    edit(skill / "SKILL.md", "name: pytorch-fsdp", f"name: {name}")
    assert validate(skill.rename(skill.with_name(name))) == [
        Finding(
            "SKILL.md",
            2,
            "name",
            "error",
            f"{name!r} is no skill name",
            "use lower-case words and digits joined by single hyphens, a letter first",
        )
    ]


def test_name_has_at_most_64_characters(skill):
    name = "a" * 65
    edit(skill / "SKILL.md", "name: pytorch-fsdp", f"name: {name}")
    assert validate(skill.rename(skill.with_name(name))) == [
        Finding("SKILL.md", 2, "name", "error", "the name has 65 characters", "use at most 64")
    ]


def test_total_size_is_limited(skill):
    for number in range(5):
        write(skill / f"assets/{number}.txt", "x" * (204 * 1024))
        name_in_skill_md(skill, f"assets/{number}.txt")
    (finding,) = validate(skill)
    assert finding.problem.endswith(" KiB in all")
    assert replace(finding, problem="") == Finding(
        ".", 0, "size", "error", "", "shorten it to 1000 KiB, which Hermes installs"
    )


def test_number_of_files_is_limited(skill):
    for number in range(43):
        write(skill / f"assets/{number}.txt", "x")
        name_in_skill_md(skill, f"assets/{number}.txt")
    assert validate(skill) == [Finding(".", 0, "size", "error", "51 files", "merge some, Hermes takes 50")]


def test_size_of_a_file_is_limited(skill):
    write(skill / "references/guide-start.md", GUIDE + "x" * 250 * 1024)
    assert validate(skill) == [
        Finding(
            "references/guide-start.md",
            0,
            "size",
            "error",
            "251 KiB",
            "split it, a file may have 250 KiB",
        )
    ]


def test_suffix_of_a_program_is_refused(skill):
    write(skill / "assets/weights.bin", "x")
    name_in_skill_md(skill, "assets/weights.bin")
    assert validate(skill) == [
        Finding(
            "assets/weights.bin",
            0,
            "suffix",
            "error",
            "Hermes refuses files that end in .bin",
            "remove or rename it",
        )
    ]


def test_a_file_that_is_no_text_is_refused(skill):
    (skill / "LICENSE").write_bytes(b"\xff\xfe")
    assert validate(skill) == [
        Finding("LICENSE", 0, "encoding", "error", "is not UTF-8 text", "remove it or save it as UTF-8")
    ]


def test_symlinks_are_refused(skill):
    (skill / "NOTICE").symlink_to("LICENSE")
    assert validate(skill) == [
        Finding("NOTICE", 0, "symlink", "error", "is a symbolic link", "replace it by a copy of the file")
    ]


def test_skill_md_is_at_most_4000_tokens(skill):
    write(skill / "SKILL.md", SKILL_MD.ljust(16_000))
    assert validate(skill) == []
    write(skill / "SKILL.md", SKILL_MD.ljust(16_001))
    assert validate(skill) == [
        Finding("SKILL.md", 0, "tokens", "error", "4001 tokens of 4 characters", "shorten it to 4000")
    ]


@pytest.mark.parametrize(
    "named",
    ["`references/docs-*.md`", "${HERMES_SKILL_DIR}/references/docs-*.md", "(see references/docs-*.md)"],
)
def test_named_path_must_exist(skill, named):
    edit(skill / "SKILL.md", "# PyTorch FSDP", f"# PyTorch FSDP: {named}")
    assert validate(skill) == [
        Finding(
            "SKILL.md",
            13,
            "named",
            "error",
            "names 'references/docs-*.md', which is not there",
            "add the file or correct the path",
        )
    ]


@pytest.mark.parametrize("mention", ["", "docs-fsdp2.md", "${HERMES_SKILL_DIR}/references/docs-fsdp2.md"])
def test_every_file_must_be_named_as_the_client_wants_it(skill, mention):
    edit(skill / "SKILL.md", "`references/docs-fsdp2.md`", f"`{mention}`")
    assert validate(skill) == [
        Finding(
            "references/docs-fsdp2.md",
            0,
            "unnamed",
            "error",
            "is not named in SKILL.md, so Hermes leaves it behind",
            "write `references/docs-fsdp2.md` in SKILL.md, after a backtick, a quote or a space",
        )
    ]


@pytest.mark.parametrize("path", ["NOTICE", "data/terms.json", "assets/two words.json"])
def test_a_file_elsewhere_never_arrives(skill, path):
    write(skill / path, "{}")
    assert validate(skill) == [
        Finding(
            path,
            0,
            "unnamed",
            "error",
            "Hermes never installs a file of this path",
            "move it to references/, scripts/ or assets/, without spaces in its name",
        )
    ]


LINKS = [
    ("#first-steps-1", "#second", 3, "'#second' leads to no heading of references/guide-start.md"),
    (
        "docs-fsdp2.md#here",
        "docs-fsdp2.md#x",
        9,
        "'docs-fsdp2.md#x' leads to no heading of references/docs-fsdp2.md",
    ),
    ("]: docs-fsdp2.md#fully_shard", "]: docs.md", 3, "'docs.md' leads to no file of the skill"),
    ("(#first-steps-1)", "(../../SKILL.md)", 3, "'../../SKILL.md' leads to no file of the skill"),
]


@pytest.mark.parametrize(("old", "new", "line", "problem"), LINKS)
def test_links_must_resolve(skill, old, new, line, problem):
    edit(skill / "references/guide-start.md", old, new)
    assert validate(skill) == [
        Finding(
            "references/guide-start.md",
            line,
            "links",
            "error",
            problem,
            "correct the link or add what it leads to",
        )
    ]


@pytest.mark.parametrize(("file", "severity"), [("guide-start.md", "error"), ("docs-fsdp2.md", "warning")])
def test_a_reference_link_must_have_a_definition(skill, file, severity):
    path = skill / "references" / file
    write(path, path.read_text(encoding="utf-8") + "\nOne line\nand see [`FSDPModule`].\n")
    line = path.read_text(encoding="utf-8").count("\n")
    assert validate(skill) == [
        Finding(
            f"references/{file}",
            line,
            "links",
            severity,
            "[`FSDPModule`] has no definition",
            "add a line `[`FSDPModule`]: target` or drop the brackets",
        )
    ]


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("First steps", "first-steps"),
        ("torch.distributed.fsdp", "torchdistributedfsdp"),
        ("What? A - B & C", "what-a---b--c"),
        ("set_modules_to_forward_prefetch", "set_modules_to_forward_prefetch"),
        ("Über Größe", "über-größe"),
    ],
)
def test_headings_get_the_fragments_that_github_gives(heading, expected):
    assert slug(heading) == expected


BAD_CODE = [
    ("```python\nx = 1\ny = = 2\n```\n", 3),
    ("```python\n>>> x = 1\n1\n>>> x x\n```\n", 4),
    ("- item\n\n  ```py\n  x\n  x y\n  ```\n", 5),
]


@pytest.mark.parametrize(("file", "severity"), [("guide-start.md", "error"), ("docs-fsdp2.md", "warning")])
@pytest.mark.parametrize(("code", "line"), BAD_CODE)
def test_python_must_parse(skill, file, severity, code, line):
    path = skill / "references" / file
    before = path.read_text(encoding="utf-8") + "\n"
    write(path, before + code)
    assert validate(skill) == [
        Finding(
            f"references/{file}",
            before.count("\n") + line,
            "python",
            severity,
            "does not parse as Python (invalid syntax)",
            "correct the code",
        )
    ]


def test_a_session_whose_lines_all_have_the_first_prompt_parses(skill):
    write(skill / "references/guide-start.md", GUIDE + "\n```python\n>>> if x:\n>>>     y = 1\n1\n```\n")
    assert validate(skill) == []


def test_scripts_must_parse(skill):
    write(skill / "scripts/search_docs.py", "x = 1\ny =\n")
    assert validate(skill) == [
        Finding(
            "scripts/search_docs.py",
            2,
            "python",
            "error",
            "does not parse as Python (invalid syntax)",
            "correct the code",
        )
    ]


def test_code_nested_too_deep_for_the_parser_is_found(skill):
    write(skill / "scripts/search_docs.py", "(" * 100_000 + ")" * 100_000)
    assert [(f.file, f.rule) for f in validate(skill)] == [("scripts/search_docs.py", "python")]


def test_what_is_no_python_is_not_parsed(skill):
    write(skill / "references/guide-start.md", GUIDE + "\n```bash\ntorchrun x.py\n```\n\n```\nx x\n```\n")
    assert validate(skill) == []


LEFTOVERS = [
    ("Text <b>bold</b>.", 1, ["raw HTML: </b>", "raw HTML: <b>"], "write Markdown or set it as code"),
    ("<div>\n</div>", 1, ["raw HTML: <div>"], "write Markdown or set it as code"),
    ("<!-- note -->", 1, ["raw HTML: <!-- note -->"], "write Markdown or set it as code"),
    ("One\ntwo[¶](#first-steps)", 2, ["leftover '¶'"], "remove it"),
    ("def [[source]](https://example.org)", 1, ["leftover '[source]'"], "remove it"),
    ("Created On: Dec 01, 2020", 1, ["leftover 'Created On'"], "remove it"),
    ("## Title\uf0c1", 1, ["leftover '\\uf0c1'"], "remove it"),
]


@pytest.mark.parametrize(("text", "line", "problems", "remedy"), LEFTOVERS)
def test_no_markup_is_left_over(skill, text, line, problems, remedy):
    write(skill / "references/guide-start.md", f"{GUIDE}\n{text}\n")
    first = GUIDE.count("\n") + 1
    assert validate(skill) == [
        Finding("references/guide-start.md", first + line, "markup", "error", problem, remedy) for problem in problems
    ]


def test_markup_in_code_is_no_leftover(skill):
    write(skill / "references/guide-start.md", GUIDE + "\n`<b>` `¶` `[source]`\n\n```html\n<b>¶</b>\n```\n")
    assert validate(skill) == []


def test_invisible_characters_are_found_in_code_too(skill):
    write(skill / "scripts/search_docs.py", "x = 1\ny = '\u200b'\n")
    assert validate(skill) == [
        Finding("scripts/search_docs.py", 2, "invisible", "error", "invisible character U+200B", "remove it")
    ]


# Written in two parts, so that this file holds no form that a scanner looks for.
ENVIRON = "os." + "environ"


@pytest.mark.parametrize("form", [f'{ENVIRON}["RANK"]', f"{ENVIRON}.copy()", f"`{ENVIRON}`"])
def test_without_the_client_the_known_blocker_is_found(skill, form):
    write(skill / "references/guide-start.md", f"{GUIDE}\n    {form}\n")
    assert validate(skill) == [
        Finding(
            "references/guide-start.md",
            19,
            "environ",
            "error",
            "Hermes blocks os.environ in this form",
            'write `os.environ.get("NAME")`, or `environ[...]` with `from os import environ`',
        )
    ]


def test_reading_the_environment_by_name_is_allowed(skill):
    write(skill / "references/guide-start.md", f'{GUIDE}\n    {ENVIRON}.get("RANK")\n    environ["RANK"]\n')
    assert validate(skill) == []


def test_index_must_be_there(skill):
    path = skill / "references/index.json"
    path.unlink()
    edit(skill / "SKILL.md", "`references/index.json`", "the index")
    problem = f"{path}: No such file or directory"
    assert validate(skill) == [Finding("references/index.json", 0, "index", "error", problem, "build the skill anew")]


def test_index_must_be_whole(skill):
    path = skill / "references/index.json"
    write(path, '{\n"a": ]\n')
    (finding,) = validate(skill)
    assert finding.problem.startswith(f"{path} is not of format ")


def test_index_must_fit_the_references(skill):
    write(skill / "references/guide-other.md", f"# New title\n\n{OTHER}")
    (finding,) = validate(skill)
    assert finding.problem == "references/guide-other.md:1 is not the heading 'Other'"
    write(skill / "references/guide-other.md", "")
    (finding,) = validate(skill)
    assert finding.problem == "references/guide-other.md has no line 3"


def test_a_client_that_is_named_must_exist(skill):
    with pytest.raises(SkillError, match="does not exist; name the client's python or its hermes"):
        validate(skill, hermes=skill / "hermes")


def test_a_python_without_the_client_is_named(skill):
    with pytest.raises(SkillError, match=r"scanner did not run \(ModuleNotFoundError: No module named 'tools"):
        validate(skill, hermes=Path(sys.executable))


def test_every_rule_explains_itself():
    assert [rule.__name__ for rule in RULES if not rule.__doc__] == []


def test_a_large_skill_index_is_read_as_text(skill):
    large = json.loads((skill / "references/index.json").read_text(encoding="utf-8")) | {"x": list(range(20_000))}
    write(skill / "references/index.json", json.dumps(large))
    assert validate(skill) == []
