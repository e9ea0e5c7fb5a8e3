"""Writes docs/config.md from the settings, docs/commands.md from the help, and the table of docs/privacy.md."""

from pathlib import Path

from docs.writers.commands import commands_page
from docs.writers.privacy import PAGE, with_table
from docs.writers.settings import settings_page

Path("docs/config.md").write_text(settings_page())
Path("docs/commands.md").write_text(commands_page())
PAGE.write_text(with_table(PAGE.read_text()))
