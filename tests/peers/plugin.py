"""The pytest plugin of scripts/peer-tests: draws parameter sets, leaves out by name what flashcore has no kernel for, and writes what became of
each test. The peers' files stay as they are, but for the inner loops that `rules.EDITS` names."""

import importlib.util
import json
import os
import random
import signal
import sys
import time
import types
from collections import Counter
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import rules  # noqa: E402

SETTINGS = json.loads(os.environ["FLASHCORE_PEER_TESTS"])
DEADLINE = time.monotonic() + SETTINGS["seconds"]
if SETTINGS["suite"] == "pytorch":
    import sdpa

    sdpa.install()
elif SETTINGS["device"] == "cpu":
    import on_cpu

    on_cpu.install()

for _name in ("numpy", "scipy"):  # imported by files for tests that are left out
    if importlib.util.find_spec(_name) is None:
        sys.modules[_name] = types.ModuleType(_name)

_left_out = {}  # of each test {reason: parameter sets}
_totals = {}
_drawn = {}
_results = []


class _TooSlow(BaseException):
    pass


def pytest_configure(config):
    for mark in ("solo", "timeout", "slow"):
        config.addinivalue_line("markers", f"{mark}: a mark of the peers' files")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Parameter sets are drawn before items are made of them: some tests have hundreds of thousands."""
    definition = metafunc.definition
    marks = list(definition.iter_markers("parametrize"))
    if not marks or any(mark.kwargs.get("indirect") for mark in marks):
        return
    axes = []
    for mark in marks:
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        values = mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]
        names = [x.strip() for x in names.split(",") if x.strip()] if isinstance(names, str) else list(names)
        sets = []
        for value in values:
            param = value if hasattr(value, "marks") else pytest.param(*(value if len(names) > 1 else (value,)))
            sets.append(param)
        axes.append((names, sets))
    for node in definition.listchain():
        node.own_markers[:] = [mark for mark in node.own_markers if mark.name != "parametrize"]
    names = [name for of_axis, _ in axes for name in of_axis]
    allowed, why = [], Counter()
    count = 1
    for _, sets in axes:
        count *= len(sets)
    test = f"{definition.path.name}::{metafunc.function.__name__}"

    def unfold(number):
        chosen = []
        for _, sets in axes:
            number, at = divmod(number, len(sets))
            chosen.append(sets[at])
        return chosen

    for number in range(count):
        values = dict(zip(names, (x for param in unfold(number) for x in param.values)))
        reason = rules.why_left_out(test, values, SETTINGS)
        if reason is None:
            allowed.append(number)
        else:
            why[reason] += 1
    _totals[test], _left_out[test] = count, dict(why)
    draw = random.Random(f"{SETTINGS['seed']} {test}")
    chosen = sorted(draw.sample(allowed, min(SETTINGS["sample"], len(allowed))))
    _drawn[test] = len(chosen)
    sets = []
    for number in chosen:
        params = unfold(number)
        values = [x for param in params for x in param.values]
        text = "-".join(f"{name}={_text(x)}" for name, x in zip(names, values))
        sets.append(pytest.param(*values, marks=[mark for param in params for mark in param.marks], id=text))
    metafunc.parametrize(names, sets)


def _text(x):
    return getattr(x, "__name__", None) or str(x).removeprefix("torch.").replace(" ", "")


def pytest_collection_modifyitems(config, items):
    """What the file parametrises by itself is drawn here; then this process's share is kept."""
    by_test = {}
    for item in items:
        if item.path.name in rules.EDITS and not getattr(item.module, "is_edited", False):
            raise pytest.UsageError(f"{item.path} was imported as {item.module.__name__}, without the changes of EDITS of rules.py")
        by_test.setdefault(rules.group_of(item), []).append(item)
    kept = []
    for test, of_test in sorted(by_test.items()):
        if test in _totals:
            kept += of_test if _drawn[test] else []  # pytest makes one item of an empty set
            continue
        allowed, why = [], Counter()
        for item in of_test:
            reason = rules.why_no_sdpa_test(item, SETTINGS) if SETTINGS["suite"] == "pytorch" else rules.why_left_out(test, {}, SETTINGS)
            if reason is None:
                allowed.append(item)
            else:
                why[reason] += 1
        _totals[test], _left_out[test] = len(allowed) + sum(why.values()), dict(why)
        draw = random.Random(f"{SETTINGS['seed']} {test}")
        kept += draw.sample(allowed, min(SETTINGS["sample"], len(allowed)))
    # Tests take turns, so that a deadline cuts none of them off whole.
    random.Random(SETTINGS["seed"]).shuffle(kept)
    items[:] = kept[SETTINGS["share"] :: SETTINGS["shares"]]


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule(module_path, parent):
    _load_edited(Path(module_path))
    return (yield)


def _load_edited(path):
    """The file as a module, its inner loops without the values of rules.EDITS. Each text is there as often as the rule says, or it is told."""
    edits = rules.EDITS.get(path.name)
    name = rules.module_name(path)
    if edits is None or name in sys.modules:
        return
    text = path.read_text()
    for old, new, times in edits:
        if text.count(old) != times:
            raise pytest.UsageError(f"{path} has {text.count(old)} times, not {times}: {old}; the file is of another version: change EDITS of rules.py")
        text = text.replace(old, new)
    spec = importlib.util.spec_from_loader(name, None, origin=str(path))
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    module.is_edited = True
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), module.__dict__)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if time.monotonic() <= DEADLINE:
        return None
    _record(item, "not run", "no time was left", 0.0)
    return True


def _alarm(*_):
    raise _TooSlow


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SETTINGS["test_seconds"])
    try:
        if SETTINGS["suite"] == "pytorch":
            sdpa.begin()
        made = yield
        if SETTINGS["suite"] == "pytorch":
            sdpa.require_computed()
        return made
    except torch.OutOfMemoryError:
        pytest.skip("TIME: other processes' tests had the GPU's memory")
    except Exception as error:
        if SETTINGS["suite"] == "pytorch":
            sdpa.skip_if_refused(error)
        reason = rules.why_refused(error)
        if reason is None:
            raise
        pytest.skip(reason)
    finally:
        signal.alarm(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "teardown" and SETTINGS["device"] == "cuda":
        torch.cuda.empty_cache()  # other processes test on the same GPU
    if call.excinfo is not None and call.excinfo.errisinstance(_TooSlow):  # unittest's classes catch it themselves
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: TIME: longer than {SETTINGS['test_seconds']} s")
    if report.when == "call" or not report.passed:
        what = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        if hasattr(report, "wasxfail"):
            what = f"the file expects it to fail: {report.wasxfail.removeprefix('reason: ')}"
        result = "not run" if what.startswith("Skipped: TIME:") else "skipped" if report.skipped else report.outcome
        error = {"error": f"{type(call.excinfo.value).__name__}: {call.excinfo.value}"[:600]} if report.failed else {}
        _record(item, result, what.removeprefix("Skipped: "), call.duration, **error)
    return report


def _record(item, result, what, seconds, **more):
    _results.append(dict(test=rules.group_of(item), name=item.name, result=result, why=what[-6000:], seconds=round(seconds, 2), **more))
    _write(-1)  # a process that hangs or dies later has told this much


def pytest_sessionfinish(session, exitstatus):
    _write(int(exitstatus))


def _write(exitstatus):
    Path(SETTINGS["out"]).write_text(json.dumps(dict(totals=_totals, left_out=_left_out, results=_results, exit=exitstatus)))
