"""Every error a person can cause.

BuilderError
├── ScopeError            scope.yaml: a wrong or unknown key, a page without a category
├── SourceError           pages could not be had
│   ├── SiteUnreachable       no answer from the site
│   ├── PageMissing           the site answered, but not with this page
│   │   └── NotInCache            with --offline: no copy of it was kept
│   ├── PageUnusable          an empty page, no article in it, too large, nested too deep
│   ├── InventoryDamaged      objects.inv cannot be read
│   └── TorchUnusable         torch is missing, too old, or Sphinx could not render it
├── CoverageError         documented objects have no section
├── SkillError            a skill folder cannot be read or written
│   ├── NotASkill             the folder exists and holds something else
│   ├── OverBudget            a share of the size limits is exceeded
│   ├── Shrunk                a build has lost much of what the one before it had
│   └── IndexDamaged          index.json is missing or does not fit the references
├── QuestionsUnusable     a file of questions cannot be read
├── CacheError            the folder of kept pages cannot be changed
│   ├── IndexDamaged          index.json is missing or does not fit the references
│   ├── NameTaken             another skill of the same name is installed
│   └── InstallBusy           another install is at work
├── InvalidSkill          validation found something that keeps a skill from being installed
├── NotACheckout          a command that changes the sources is run by an installed package
└── HistoryError          a release's wheel cannot be had or read, or api_history.json is damaged

The library raises; only ``cli.py`` prints and exits. Anything else that escapes is a bug and tracebacks.
"""

from __future__ import annotations


class BuilderError(Exception):
    """Something a person can mend.

    Args:
        where: The file, URL or option that is at fault.
        problem: What is wrong with it, a clause without a full stop.
        remedy: What to do about it, likewise.
    """

    def __init__(self, where: object, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}; {remedy}")
        self.where = str(where)
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[BuilderError], tuple[str, str, str]]:
        return type(self), (self.where, self.problem, self.remedy)


class ScopeError(BuilderError):
    """``scope.yaml`` says something that cannot be followed."""


class SourceError(BuilderError):
    """Pages could not be had."""


class SiteUnreachable(SourceError):
    """The site does not answer at all."""


class PageMissing(SourceError):
    """The site answers, but does not have the page."""


class NotInCache(PageMissing):
    """No request is to be sent, and no copy of the answer was kept."""


class PageUnusable(SourceError):
    """A page came, but it holds nothing that can be read as documentation."""


class InventoryDamaged(SourceError):
    """``objects.inv`` came, but cannot be read."""


class TorchUnusable(SourceError):
    """torch is missing, too old, or its documentation could not be rendered."""


class CoverageError(BuilderError):
    """Documented objects have no section."""


class SkillError(BuilderError):
    """A skill folder cannot be read or written."""


class NotASkill(SkillError):
    """The folder holds something that is not a skill of ours."""


class OverBudget(SkillError):
    """A share of the size limits is exceeded."""


class Shrunk(SkillError):
    """A build has lost much of what the one before it had."""


class IndexDamaged(SkillError):
    """``references/index.json`` is missing or does not fit the references."""


class QuestionsUnusable(BuilderError):
    """A file of questions cannot be read, or a line of it is no question."""


class CacheError(BuilderError):
    """The folder of kept pages cannot be changed."""


class NameTaken(SkillError):
    """Another skill of the same name is installed, and Hermes would load neither."""


class InstallBusy(SkillError):
    """Another install is at work, and does not end."""


class InvalidSkill(BuilderError):
    """Validation found something that keeps the skill from being installed."""


class NotACheckout(BuilderError):
    """A command that changes the sources is run by an installed package."""


class HistoryError(BuilderError):
    """The version history cannot be read, or a release cannot be added to it."""
