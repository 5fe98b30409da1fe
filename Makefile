.PHONY: test lab
PYTHON ?= python3

.venv/ready: environment.yml pyproject.toml
	$(PYTHON) -m venv .venv
	sed -n "/- pip:/,\$$p" environment.yml | sed -n "s/^ *- \([^:]*\)$$/\1/p" > .venv/requirements.txt
	.venv/bin/python -m pip install -q -r .venv/requirements.txt
	touch $@

test: .venv/ready
	CARD=simulated OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q tests

lab: .venv/ready
	.venv/bin/python -m jupyterlab notebooks
