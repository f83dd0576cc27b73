"""How Sphinx makes the site from these pages: `make docs`, into build/site."""

import sys
from pathlib import Path

_DOCS = Path(__file__).parent
sys.path[:0] = [str(_DOCS.parent / "src"), str(_DOCS)]

# These are found by the path above.
from semistream import __version__  # noqa: E402
from site_parts.palette import DARK, LIGHT  # noqa: E402

project = "semistream"
author = "the authors of semistream"
copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "site_parts.extension",
]
exclude_patterns = ["site_parts"]
nitpicky = True
# Single backticks in docstrings are code, as in Markdown.
default_role = "literal"
# Only public names have a place to lead to: not inner ones in signatures, and not those of other
# projects, whose inventories are on the network.
nitpick_ignore_regex = [("py:.*", r"(?!semistream\.(?:[A-Za-z_]+|errors\.\w+)$).*")]

# Notebooks are shown as they are committed; `make notebooks` runs them.
nb_execution_mode = "off"
nb_merge_streams = True

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# Only what follows a prompt is copied, where there is one.
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = "semistream"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {
        **LIGHT,
        "color-brand-primary": "#0a6bb5",
        "color-brand-content": "#0a6bb5",
        "font-stack": "Inter, system-ui, -apple-system, 'Segoe UI', sans-serif",
    },
    "dark_css_variables": {
        **DARK,
        "color-brand-primary": "#6cb6ff",
        "color-brand-content": "#6cb6ff",
    },
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
