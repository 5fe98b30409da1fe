# Every target sets itself up in .venv: only Python 3.11 to 3.14, make and git have to be there.
PYTHON ?= python3
ARGS ?=
PY := .venv/bin/python
# Named after this folder: a copy of it elsewhere sets its environment up again, since an environment cannot be moved.
READY := .venv/ready-$(firstword $(shell echo "$(CURDIR)" | cksum))
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
# The same outputs on every machine: the simulated card also where there is a GPU, one thread, no downloads, and
# none of the reader's own IPython start-up files.
SAME := CARD=simulated PYTHONHASHSEED=0 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 IPYTHONDIR=$(CURDIR)/.venv/ipython
STRICT := --nbval --nbval-current-env --nbval-cell-timeout=120 -n 2 --dist loadfile

.PHONY: help lab check test gpu lint notebooks house student browser clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 12

$(READY): environment.yml pyproject.toml tests/tools/install_env.py
	$(PYTHON) tests/tools/install_env.py environment.yml .venv
	@touch $@

lab: $(READY)  ## open the notebooks in JupyterLab (ARGS="--no-browser --port 9000" and the like)
	$(PY) -m jupyterlab $(firstword $(NOTEBOOKS)) $(ARGS)

check: $(READY)  ## which card, which versions, and the smallest run
	$(PY) tests/tools/check.py

test: $(READY)  ## every test, and every notebook cell against its stored output
	$(SAME) $(PY) -m pytest -q -m timing tests || [ $$? -eq 5 ]
	$(SAME) $(PY) -m pytest -q -m "not timing" $(STRICT) $(ARGS) tests $(if $(NOTEBOOKS),notebooks)

gpu: $(READY)  ## the tests that need a CUDA GPU
	CARD=cuda $(PY) -m pytest -v -m gpu $(ARGS) tests

lint: $(READY)  ## ruff over code and notebooks
	$(PY) -m ruff check $(ARGS) .

notebooks: $(READY)  ## run all notebooks, store their outputs, and the README's ladder (ARGS=--check only says what is stale)
	$(SAME) $(PY) tests/tools/run_notebooks.py $(ARGS) $(NOTEBOOKS)
	$(PY) tests/tools/update_readme.py $(ARGS)

house: $(READY)  ## draw the rooms of helpers/ and their imports again (ARGS=--check only says whether it is stale)
	$(PY) tests/tools/draw_house.py $(ARGS)

student: $(READY)  ## copy the notebooks to student/, without solutions and outputs (ARGS=--run also runs the copies)
	$(SAME) $(PY) tests/tools/student_copy.py $(ARGS) notebooks student

browser: $(READY)  ## open and run every notebook in JupyterLab in Chromium, and start its slides
	@$(PY) -c "import playwright" 2>/dev/null || $(PY) -m pip install -q -e ".[browser]"
	$(SAME) $(PY) -m pytest -q -n 2 $(ARGS) tests/notebooks/browser_test.py

clean:  ## remove the environment and everything made here
	rm -rf .venv student screenshots .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
