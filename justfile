# `just setup`, then `just test`. Every recipe is one line that can be typed by hand.

# Install the package and its test tools into the active environment, editable.
setup:
    pip install -e '.[test]'

# All tests; pass arguments through: `just test -m "not slow"`.
test *arguments:
    pytest {{arguments}}

# What a change must satisfy besides the tests.
lint:
    ruff check
    ruff format --check
    mypy
    lint-imports

# The sample's questions, exact and sampled attention side by side.
bench *arguments:
    python benchmarks/sample_questions.py {{arguments}}

# Rewrite docs/cli.md from the commands' own help.
docs:
    python scripts/cli_reference.py

# From a fresh environment, as a continuous integration server would.
ci:
    .ci/run
