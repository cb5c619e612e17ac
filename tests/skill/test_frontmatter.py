from textwrap import dedent

import pytest

from skill_builder.errors import SkillError
from skill_builder.skill.frontmatter import render, split

SOURCE = dedent(
    """\
    ---
    name: pytorch-fsdp
    description: "FSDP: shard a model; colons, 'quotes' and ümläute survive."
    version: 0.0.0
    author: The authors
    license: MIT
    platforms:
      - linux
      - macos
    dependencies:
    - torch>=2.6
    - transformers>=4.57
    metadata:
      hermes:
        tags: [FSDP, PyTorch]
        related_skills: []
    ---

    # Title

    ---
    The body stays.
    """
)

HERMES = dedent(
    """\
    ---
    name: pytorch-fsdp
    description: 'FSDP: shard a model; colons, ''quotes'' and ümläute survive.'
    version: 1.10.0
    author: The authors
    license: MIT
    platforms:
    - linux
    - macos
    dependencies:
    - torch>=2.6
    - transformers>=4.57
    metadata:
      hermes:
        tags:
        - FSDP
        - PyTorch
    ---

    # Title

    ---
    The body stays.
    """
)

AGENT_SKILLS = dedent(
    """\
    ---
    name: pytorch-fsdp
    description: 'FSDP: shard a model; colons, ''quotes'' and ümläute survive.'
    license: MIT
    metadata:
      version: 1.10.0
      author: The authors
      platforms: linux, macos
      dependencies: torch>=2.6, transformers>=4.57
      hermes.tags: FSDP, PyTorch
    ---

    # Title

    ---
    The body stays.
    """
)


def test_splits_into_fields_and_body():
    fields, body = split(SOURCE)
    assert fields["platforms"] == ["linux", "macos"]
    assert fields["metadata"] == {"hermes": {"tags": ["FSDP", "PyTorch"], "related_skills": []}}
    assert body == "\n# Title\n\n---\nThe body stays.\n"


def test_scalars_stay_as_they_are_written():
    fields, _ = split("---\nname: a\ndescription: b\nversion: 1.10\nreleased: 2025-01-02\nfree: yes\n---\n")
    assert (fields["version"], fields["released"], fields["free"]) == ("1.10", "2025-01-02", "yes")


@pytest.mark.parametrize(("target", "expected"), [("hermes", HERMES), ("agentskills", AGENT_SKILLS)])
def test_renders_a_target_with_block_lists_only(target, expected):
    assert render(SOURCE, target, version="1.10.0") == expected


@pytest.mark.parametrize("target", ["hermes", "agentskills"])
def test_rendering_again_changes_nothing(target):
    once = render(SOURCE, target, version="1.10.0")
    assert render(once, "hermes", version="1.10.0") == (
        once if target == "hermes" else once.replace("license:", "version: 1.10.0\nlicense:", 1)
    )


def test_a_version_that_yaml_takes_for_a_number_stays_text():
    assert "version: '1.10'\n" in render(SOURCE, "hermes", version="1.10")


def test_a_version_is_added_after_the_required_fields():
    source = "---\nname: a\ndescription: b\nlicense: MIT\n---\n"
    expected = "---\nname: a\ndescription: b\nversion: 1.0.0\nlicense: MIT\n---\n"
    assert render(source, "hermes", version="1.0.0") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# Title\n",
            "SKILL.md:1: has no frontmatter; begin with a `---` line, YAML and another `---` line",
        ),
        (
            "---\nname: a\n",
            "SKILL.md:1: has no frontmatter; begin with a `---` line, YAML and another `---` line",
        ),
        (
            "---\nname: a\ndescription: b: c\n---\n",
            "SKILL.md:3: is not YAML; mend the syntax at this line",
        ),
        (
            "---\nname: a\x07\ndescription: b\n---\n",
            "SKILL.md:1: is not YAML; mend the syntax at this line",
        ),
        (
            "---\n- name\n---\n",
            "SKILL.md:1: the frontmatter is no mapping; write `key: value` lines",
        ),
        (
            "---\nname: a\ndescription: b\n? [c]\n: d\n---\n",
            "SKILL.md:4: a key is no text; write `key: value` lines",
        ),
        (
            "---\nname: a\ndescription: b\nmetadata:\n  x: 1\n  x: 2\n---\n",
            "SKILL.md:6: key 'x' stands twice; remove one of the two",
        ),
        (
            "---\ndescription: b\n---\n",
            "SKILL.md:1: the frontmatter has no name; add a `name:` line",
        ),
        (
            "---\nname: a\ndescription:\n---\n",
            "SKILL.md:1: the frontmatter has no description; add a `description:` line",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text, message):
    with pytest.raises(SkillError) as raised:
        split(text)
    assert str(raised.value) == message


def test_metadata_must_be_a_mapping_to_be_moved():
    source = "---\nname: a\ndescription: b\nmetadata: text\n---\n"
    with pytest.raises(SkillError, match="`metadata` is no mapping"):
        render(source, "agentskills", version="1.0.0")
