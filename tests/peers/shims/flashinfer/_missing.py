"""Modules of FlashInfer that flashcore has nothing of: they can be imported, and a test that calls their functions is skipped with the
reason."""

import sys
import types

import pytest


def module(name, what):
    def get(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def call(*args, **kwargs):
            pytest.skip(f"flashcore.flashinfer has no {what}")

        return type(attribute, (), {"__init__": call}) if attribute[0].isupper() else call  # classes are named in annotations

    made = types.ModuleType(name)
    made.__getattr__ = get
    made.__path__ = []
    sys.modules[name] = made
    return made
